// @ts-check
/**
 * Which rows the credit heatmap has: one a sample, or, where these would be too low to see, means over several. And the scale of
 * the colours, which a few extreme samples do not set.
 *
 * Samples that stand together, from top to bottom: of one prompt, or of all from `number` to `last`. Each row has one sample or
 * the mean of several:
 * @typedef {{prompt: string, number: number, last: number, samples: number[], rows: Row[]}} Section
 * @typedef {{samples: number[], kind: "all" | "reinforced" | "discouraged"}} Row
 *
 * The value at which the colours end; `beyond` is the number of rows that go beyond it, the farthest up to `largest`:
 * @typedef {{limit: number, beyond: number, largest: number}} ColorScale
 *
 * @typedef {import("./heatmap.js").Group} Group
 */

/** Pixels of the lowest row. */
export const READABLE = 3;

const SHARE = 0.95; // of the rows, which the colours tell apart to their largest value
const EXTREME = 3; // times that value
const FEWEST = 8; // rows, of which a share means something

/**
 * Pixels between two sections.
 *
 * @param {number} sections
 */
export function gapOf(sections) {
  return sections > 10 ? 1 : 4;
}

/**
 * @param {Section[]} sections
 * @param {number} height
 */
function fit(sections, height) {
  const rows = sections.reduce((sum, section) => sum + section.rows.length, 0);
  return rows * READABLE + gapOf(sections.length) * (sections.length - 1) <= height;
}

/**
 * A row a sample where they fit. Else each prompt has two, of its reinforced and of its discouraged samples; or one; or several
 * prompts share one.
 *
 * @param {Group[]} groups with their samples in order
 * @param {number} height for all rows, in pixels
 * @param {object} options
 * @param {number[] | null} options.open samples that are shown one by one, as far as they fit; the others are, if they still fit
 * @param {((sample: number) => Value) | null} options.advantage of a sample; null where there are no advantages to show
 * @returns {Section[]}
 */
export function sectionsOf(groups, height, { open, advantage }) {
  const single = groups.map(oneByOne);
  if (fit(single, height)) return single;
  if (open) {
    const inside = narrowed(groups, open);
    const around = groups.map((group) => (inside[0]?.samples.length === group.samples.length && inside[0].number === group.number ? oneByOne(group) : together([group])));
    if (inside.length === 1 && fit(around, height)) return around;
    return sectionsOf(inside, height, { open: null, advantage });
  }
  if (groups.length === 1) return [inRuns(groups[0], Math.max(1, Math.floor(height / READABLE)))];
  const halves = advantage && groups.map((group) => parted(group, advantage));
  if (halves && fit(halves, height)) return halves;
  const most = Math.max(1, Math.floor((height + gapOf(groups.length)) / (READABLE + gapOf(groups.length))));
  return runs(groups, Math.ceil(groups.length / most)).map(together);
}

/**
 * @param {Group} group
 * @returns {Section}
 */
function oneByOne(group) {
  return { ...group, last: group.number, rows: group.samples.map((sample) => row([sample])) };
}

/**
 * @param {Group[]} groups
 * @returns {Section}
 */
function together(groups) {
  const samples = groups.flatMap((group) => group.samples);
  const { number } = groups[0];
  const prompt = groups.length === 1 ? groups[0].prompt : "";
  return { prompt, number, last: groups[groups.length - 1].number, samples, rows: [row(samples)] };
}

/**
 * @param {Group} group
 * @param {(sample: number) => Value} advantage
 * @returns {Section}
 */
function parted(group, advantage) {
  const reinforced = group.samples.filter((sample) => (advantage(sample) ?? 0) > 0);
  const discouraged = group.samples.filter((sample) => (advantage(sample) ?? 0) < 0);
  const rows = [row(reinforced, "reinforced"), row(discouraged, "discouraged")].filter(({ samples }) => samples.length);
  return { ...together([group]), rows: rows.length ? rows : [row(group.samples)] };
}

/**
 * @param {Group} group
 * @param {number} most rows
 * @returns {Section}
 */
function inRuns(group, most) {
  const rows = runs(group.samples, Math.ceil(group.samples.length / most)).map((samples) => row(samples));
  return { ...together([group]), rows };
}

/**
 * @param {number[]} samples
 * @param {Row["kind"]} kind
 * @returns {Row}
 */
function row(samples, kind = "all") {
  return { samples, kind };
}

/**
 * @template T
 * @param {T[]} items
 * @param {number} length
 */
function runs(items, length) {
  return Array.from({ length: Math.ceil(items.length / length) }, (_, i) => items.slice(i * length, (i + 1) * length));
}

/**
 * @param {Group[]} groups
 * @param {number[]} samples
 */
function narrowed(groups, samples) {
  const kept = new Set(samples);
  return groups
    .map((group) => ({ ...group, samples: group.samples.filter((sample) => kept.has(sample)) }))
    .filter((group) => group.samples.length);
}

/**
 * What opens when a row of several samples is clicked: all of its section, or, where that is all there is, the row itself.
 *
 * @param {Section[]} sections
 * @param {number} index of the row
 * @returns {number[]}
 */
export function openedBy(sections, index) {
  const [section, row] = rowAt(sections, index);
  return sections.length === 1 || section.rows.length > 2 ? row.samples : section.samples;
}

/**
 * @param {Section[]} sections
 * @param {number} index of a row, from the top
 * @returns {[Section, Row]}
 */
export function rowAt(sections, index) {
  let first = 0;
  for (const section of sections) {
    if (index < first + section.rows.length) return [section, section.rows[index - first]];
    first += section.rows.length;
  }
  throw new RangeError(`there is no row ${index}`);
}

/**
 * The colours end at the largest value; or, if that is extreme, at the value that 95 % of the rows keep within.
 *
 * @param {Value[][]} rows
 * @param {number} least at which they may end
 * @returns {ColorScale}
 */
export function colorScale(rows, least) {
  const known = rows.map((row) => row.filter((value) => value !== null)).filter((row) => row.length);
  const peaks = known.map((row) => row.reduce((most, value) => Math.max(most, Math.abs(value)), 0)).sort((a, b) => a - b);
  const largest = peaks.at(-1) ?? 0;
  const common = peaks.length < FEWEST ? largest : peaks[Math.floor(SHARE * (peaks.length - 1))];
  const robust = common > 0 && largest > EXTREME * common ? common : largest;
  const limit = Math.max(robust, least) || 1;
  return { limit, beyond: peaks.filter((peak) => peak > limit).length, largest };
}
