// @ts-check
/** What the routes say of this machine's memory and of the queue, in the words that the sidebar shows. */
import { t } from "./language.js";

const GB = 1024 ** 3;

/**
 * @param {number} bytes
 */
function gigabytes(bytes) {
  return bytes < 10 * GB ? (bytes / GB).toFixed(1) : String(Math.round(bytes / GB));
}

/**
 * A device's memory: what to call it, its figures, and the parts of its bar, 0 … 1, `others` including what is free of ours.
 *
 * @param {Memory} memory
 */
export function memoryLine({ name, used, total, ours }) {
  const figures = t("{used} of {total} GB", { used: gigabytes(used), total: gigabytes(total) });
  const part = ours ? t("OTCA {part}", { part: gigabytes(ours) }) : "";
  return {
    label: name || t("Main memory"),
    text: [figures, part].filter(Boolean).join(" · "),
    used: total ? Math.min(1, used / total) : 0,
    ours: total ? Math.min(used, ours ?? 0) / total : 0,
  };
}

/**
 * Who waits, in order, each with what it waits for.
 *
 * @param {Queue} queue
 */
export function queueEntries({ at_work: atWork, guest, waiting }) {
  return waiting.map(({ id, iterations }, place) => ({
    id,
    first: place === 0,
    text: `${t("{iterations} iterations", { iterations })} · ${
      place ? t("begins after {run}", { run: waiting[place - 1].id }) : firstWaitsFor(atWork, guest)
    }`,
  }));
}

/**
 * @param {string[]} atWork
 * @param {boolean} guest
 */
function firstWaitsFor(atWork, guest) {
  if (atWork.length > 1) return t("begins when one of these ends: {runs}", { runs: atWork.join(", ") });
  if (atWork.length) return t("begins when {run} ends", { run: atWork[0] });
  return guest ? t("begins when the pictures of a prompt are made") : t("begins in a moment");
}
