// @ts-check
/**
 * The table of Reward Stack: what stands in which row, and what the rewards' correlations mean in words.
 *
 * @typedef {{name: string, heldOut: boolean, meaning: string}} Column
 * @typedef {{column: number, descending: boolean}} Sort
 * @typedef {{sample: number, values: Value[], advantages: Value[]}} ScoreRow
 */
import { signed } from "./format.js";
import { t } from "./language.js";

// What the scores of a judge are, all of them from 0 to 1.
/** @type {Record<string, string>} */
const MEANINGS = {
  yes_no: t("P(yes)"),
  grade: t("grade 1–5, as 0–1"),
  which: t("share of wins"),
  share: t("share of wins"),
  written: t("lower grade 0–25, as 0–1"),
};
const CONFLICT = -0.3;
const AGREEMENT = 0.8;

/**
 * The columns: trained rewards first, then those held out.
 *
 * @param {Scores} scores
 * @returns {Column[]}
 */
export function scoreColumns({ names, held_out_names: heldOut, meanings = [] }) {
  return [...names, ...heldOut].map((name, index) => {
    return { name, heldOut: index >= names.length, meaning: MEANINGS[meanings[index]] ?? "" };
  });
}

/**
 * Samples grouped by prompt, as the sampler numbered the groups.
 *
 * @param {Scores} scores
 * @param {Sort | null} sort orders the samples within each group, those without a score last; null: as sampled, or as ranked
 * @returns {{group: number, prompt: string, samples: ScoreRow[]}[]}
 */
export function scoreGroups(scores, sort) {
  /** @type {Map<number, ScoreRow[]>} */
  const groups = new Map();
  scores.groups.forEach((group, sample) => {
    const row = {
      sample,
      values: [...scores.values[sample], ...scores.held_out[sample]],
      advantages: scores.advantages[sample],
    };
    groups.set(group, [...(groups.get(group) ?? []), row]);
  });
  return [...groups].map(([group, samples]) => ({
    group,
    prompt: scores.prompts[group] ?? "",
    samples: sort ? sorted(samples, sort) : ranked(samples, scores.places),
  }));
}

/**
 * @param {ScoreRow[]} samples
 * @param {number[] | null} [places] of a ranking: the best one first
 */
function ranked(samples, places) {
  return places ? [...samples].sort((a, b) => places[a.sample] - places[b.sample]) : samples;
}

/**
 * @param {ScoreRow[]} samples
 * @param {Sort} sort
 */
function sorted(samples, { column, descending }) {
  const scored = samples.filter(({ values }) => Number.isFinite(values[column]));
  const unscored = samples.filter(({ values }) => !Number.isFinite(values[column]));
  const value = (/** @type {ScoreRow} */ row) => Number(row.values[column]);
  scored.sort((a, b) => (descending ? value(b) - value(a) : value(a) - value(b)));
  return [...scored, ...unscored];
}

/**
 * Decimals of each column, so that its numbers line up and its largest has three significant digits.
 *
 * @param {Scores} scores
 */
export function columnDigits(scores) {
  return scoreColumns(scores).map((_, column) => {
    const values = scores.values.map((row, sample) => [...row, ...scores.held_out[sample]][column]);
    const largest = Math.max(...values.map((value) => Math.abs(value ?? 0)));
    return largest > 0 ? Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(largest)))) : 2;
  });
}

/**
 * The order after a click on a header: best first, worst first, then as it was.
 *
 * @param {Sort | null} sort
 * @param {number} column
 * @returns {Sort | null}
 */
export function nextSort(sort, column) {
  if (sort?.column !== column) return { column, descending: true };
  return sort.descending ? { column, descending: false } : null;
}

/**
 * What the correlations mean for training, one sentence for each pair that conflicts or says the same.
 *
 * @param {Column[]} columns
 * @param {Value[][]} matrix
 */
export function correlationSentences(columns, matrix) {
  const pairs = [];
  for (let i = 0; i < columns.length; i++) {
    for (let j = i + 1; j < columns.length; j++) {
      const value = matrix[i][j];
      if (value === null || !Number.isFinite(value) || (value > CONFLICT && value < AGREEMENT)) continue;
      const pair = { first: columns[i].name, second: columns[j].name, correlation: signed(value) };
      pairs.push({
        value,
        conflict: value <= CONFLICT,
        text:
          value <= CONFLICT
            ? t("{first} and {second} conflict ({correlation}).", pair)
            : t("{first} and {second} ask for nearly the same ({correlation}).", pair),
      });
    }
  }
  pairs.sort((a, b) => a.value - b.value);
  return pairs.map(({ conflict, text }) => ({ conflict, text }));
}

/**
 * Where a sample's thumbnail lies on the sheet, in pixels of the sheet.
 *
 * @param {number} sample
 * @param {number} size
 * @param {number} columns
 */
export function thumbnailOffset(sample, size, columns) {
  return { x: (sample % columns) * size, y: Math.floor(sample / columns) * size };
}
