// @ts-check
/** The list of runs, as its user wants to see it: which of them, and in which order. */

/**
 * What the user asks of the list; empty texts ask for nothing.
 *
 * @typedef {{text: string, status: string, sort: string}} Query
 */

/** @type {Query} */
export const EVERYTHING = { text: "", status: "", sort: "newest" };

/** By which the list can be sorted; each says which of two runs comes first. */
const ORDERS = /** @type {Record<string, (a: Run, b: Run) => number>} */ ({
  newest: () => 0, // as the server lists them
  name: (a, b) => a.id.localeCompare(b.id, undefined, { numeric: true, sensitivity: "base" }),
  score: (a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity) || 0, // no score: last, and there as they were
});

export const SORTS = Object.keys(ORDERS);

/**
 * The runs that a query asks for, in its order. Every word of the text must be in the name or the notes.
 *
 * @param {Run[]} runs the newest first
 * @param {Query} query
 */
export function listed(runs, { text, status, sort }) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (/** @type {Run} */ run) => {
    if (status && run.status !== status) return false;
    const all = words.length ? `${run.id}\n${run.notes ?? ""}`.toLowerCase() : "";
    return words.every((word) => all.includes(word));
  };
  return runs.filter(fits).sort(ORDERS[sort] ?? ORDERS.newest);
}

/** @param {Query} query whether it leaves any run out */
export function isNarrow({ text, status }) {
  return Boolean(text.trim() || status);
}

/**
 * "512 bytes", "1.2 MB", "3 GB": as file managers count, by 1000.
 *
 * @param {number} bytes
 */
export function fileSize(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB", "TB"];
  const power = Math.min(units.length, Math.floor(Math.log10(bytes) / 3));
  const value = bytes / 1000 ** power;
  return `${value < 10 ? Number(value.toFixed(1)) : Math.round(value)} ${units[power - 1]}`;
}
