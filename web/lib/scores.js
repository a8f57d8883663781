// The Reward Stack's table: what stands in which row, and what the rewards' correlations mean in words.
import { signed } from "./format.js";

const CONFLICT = -0.3;
const AGREEMENT = 0.8;

/** The columns of an `otca_scores` payload: trained rewards first, then those held out. */
export function scoreColumns({ names, held_out_names: heldOut }) {
  return [...names.map((name) => ({ name, heldOut: false })), ...heldOut.map((name) => ({ name, heldOut: true }))];
}

/**
 * Samples grouped by prompt, as the sampler numbered the groups.
 * @param sort {{column: number, descending: boolean} | null} orders the samples within each group, unknown ones last
 * @returns {{group: number, prompt: string, samples: {sample: number, values: number[], advantages: number[]}[]}[]}
 */
export function scoreGroups(scores, sort) {
  const groups = new Map();
  scores.groups.forEach((group, sample) => {
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push({
      sample,
      values: [...scores.values[sample], ...scores.held_out[sample]],
      advantages: scores.advantages[sample],
    });
  });
  return [...groups].map(([group, samples]) => ({
    group,
    prompt: scores.prompts[group] ?? "",
    samples: sort ? sorted(samples, sort) : samples,
  }));
}

function sorted(samples, { column, descending }) {
  const known = samples.filter(({ values }) => Number.isFinite(values[column]));
  const unknown = samples.filter(({ values }) => !Number.isFinite(values[column]));
  known.sort((a, b) => (descending ? b.values[column] - a.values[column] : a.values[column] - b.values[column]));
  return [...known, ...unknown];
}

/** Decimals of each column, so that its numbers line up and its largest has three significant digits. */
export function columnDigits(scores) {
  return scoreColumns(scores).map((_, column) => {
    const values = scores.values.map((row, sample) => [...row, ...scores.held_out[sample]][column]);
    const largest = Math.max(...values.map((value) => Math.abs(value ?? 0)));
    return largest > 0 ? Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(largest)))) : 2;
  });
}

/** The order after a click on a header: best first, worst first, then as sampled. */
export function nextSort(sort, column) {
  if (sort?.column !== column) return { column, descending: true };
  return sort.descending ? { column, descending: false } : null;
}

/** What the correlations mean for training, one sentence a pair that conflicts or says the same. */
export function correlationSentences(columns, matrix) {
  const found = [];
  for (let i = 0; i < columns.length; i++) {
    for (let j = i + 1; j < columns.length; j++) {
      const value = matrix[i][j];
      if (!Number.isFinite(value) || (value > CONFLICT && value < AGREEMENT)) continue;
      const pair = `${columns[i].name} and ${columns[j].name}`;
      found.push({
        value,
        conflict: value <= CONFLICT,
        text: value <= CONFLICT ? `${pair} pull against each other` : `${pair} ask for nearly the same`,
      });
    }
  }
  found.sort((a, b) => a.value - b.value);
  return found.map(({ value, conflict, text }) => ({ conflict, text: `${text} (${signed(value)}).` }));
}

/** Where a sample's thumbnail lies on the sheet, in pixels of the sheet. */
export function thumbnailOffset(sample, size, columns) {
  return { x: (sample % columns) * size, y: Math.floor(sample / columns) * size };
}
