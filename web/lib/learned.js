// @ts-check
/** What a run on the canvas has learned so far, and how long the rest takes: what Training Run says below its curves. */
import { fixed, signed, significant } from "./format.js";
import { t } from "./language.js";

const CLEAR = 2; // standard errors that a rise is to be above to be more than chance

/**
 * How far a reward has come on the fixed prompts and seeds: its first and last mean, and the rise between them in words. Without
 * two evaluations that can be compared there is none. Scores between -1 and 1 are said in points, hundredths.
 *
 * @param {Evaluation[]} evaluations
 * @param {string} name
 * @returns {{ends: string, rise: string, inPoints: boolean, tone: "good" | "bad" | "unclear"} | null}
 */
export function learned(evaluations, name) {
  const last = evaluations.at(-1);
  const first = last && evaluations.find(({ iteration }) => iteration === last.since);
  const [change, error] = last?.rewards[name]?.rise ?? [null, null];
  const before = first?.rewards[name]?.mean;
  const after = last?.rewards[name]?.mean;
  if (change === null || typeof before !== "number" || typeof after !== "number") return null;
  const isClear = error !== null && Math.abs(change) > CLEAR * error;
  const inPoints = Math.max(Math.abs(before), Math.abs(after)) <= 1;
  const unit = inPoints ? 100 : 1;
  const size = unit * Math.abs(error || change) || 1; // its first digit is the last one that is worth saying, or the one after it
  const digits = Math.max(0, (inPoints ? 0 : 1) - Math.floor(Math.log10(size)));
  const number = signed(unit * change, digits);
  const rise = inPoints ? t("{change} points", { change: number }) : number;
  const plusMinus = error === null ? "" : ` ± ${fixed(unit * error, digits)}`;
  const since = first?.iteration ? t("since iteration {iteration}", { iteration: first.iteration }) : t("since the start");
  return {
    inPoints,
    ends: `${significant(before)} → ${significant(after)}`,
    rise: isClear ? `${rise} ${since}${plusMinus}` : `${rise}${plusMinus}: ${t("not clear yet")}`, // short, since nodes are narrow
    tone: !isClear ? "unclear" : change > 0 ? "good" : "bad",
  };
}

const ENOUGH = 20; // held-out pairs that a standard error says something of

/**
 * How often the model agreed with opinions that it never saw, in the form of an evaluation: of few pairs how many, without an error.
 *
 * @param {Partial<Row>} row
 * @returns {{mean: number, standard_error: number | null, words: string | null} | null} null: it was not measured there
 */
export function agreement(row) {
  const { "opinions/agreement": mean, "opinions/agreement_error": error, "opinions/held_out": pairs } = row;
  if (typeof mean !== "number" || !Number.isFinite(mean)) return null;
  const isFew = typeof pairs === "number" && pairs < ENOUGH;
  const words = isFew ? t("{right} of {pairs} pairs", { right: significant(mean * pairs), pairs }) : null;
  return { mean, standard_error: isFew || !Number.isFinite(error) ? null : Number(error), words };
}

/**
 * The pictures of one strip: those evaluations' grids that show the same prompts and seeds as the last one, and the numbers of at
 * most `most` pictures in each, spread over all.
 *
 * @param {Grid[]} grids
 * @param {number | undefined} since the first evaluation that can be compared with the last one; undefined: there is none
 * @param {number} most
 * @returns {{grids: Grid[], numbers: number[]}}
 */
export function strip(grids, since, most) {
  const last = grids.at(-1);
  if (!last) return { grids: [], numbers: [] };
  const shows = (/** @type {Grid} */ { pictures }) => JSON.stringify(pictures.map(({ prompt, seed }) => [prompt, seed]));
  const alike = grids.filter((grid) => grid === last || (since !== undefined && grid.iteration >= since && shows(grid) === shows(last)));
  const count = Math.min(most, last.pictures.length);
  return { grids: alike, numbers: Array.from({ length: count }, (_, place) => Math.floor((place * last.pictures.length) / count)) };
}

/**
 * Seconds until the queue is empty, from the seconds that prompts took: all but the first, which also loads, and of the last ten.
 * null before the second.
 *
 * @param {number[]} took
 * @param {number} waiting prompts
 */
export function secondsToCome(took, waiting) {
  const known = took.slice(1).slice(-10);
  return known.length && waiting ? (waiting * known.reduce((sum, seconds) => sum + seconds, 0)) / known.length : null;
}
