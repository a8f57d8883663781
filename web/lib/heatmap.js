// @ts-check
/**
 * The credit heatmap without its drawing: what a node sent, in which order its rows stand, where everything lies, what
 * it says. B samples, T' trained steps, K objectives.
 *
 * The payloads of a credit node and of the fuse node behind it:
 * @typedef {{credit: Credit | null, advantages: Advantages | null}} State
 *
 * The same once there is a credit, as all functions below need it that do not say otherwise:
 * @typedef {{credit: Credit, advantages: Advantages | null}} Filled
 *
 * A position in the picture; `row` is not the sample's number:
 * @typedef {{row: number, column: number}} Cell
 *
 * @typedef {"advantage" | "weight"} Coloring
 * @typedef {{prompt: string, number: number, samples: number[]}} Group
 * @typedef {{x: number, y: number, width: number, height: number}} Box
 * @typedef {ReturnType<typeof layout>} Layout
 */
import { count, fixed, percent, signed, significant } from "./format.js";
import { gapOf } from "./heatmap_rows.js";
import { t } from "./language.js";

/** @type {State} */
export const EMPTY = { credit: null, advantages: null };

/**
 * The state after a payload. Advantages belong to the credit that they were made of, so another credit drops them. The same payload
 * sent again, as when it is replayed, changes nothing.
 *
 * @param {State} state
 * @param {"credit" | "advantages"} kind
 * @param {any} data
 * @returns {State}
 */
export function received(state, kind, data) {
  if (kind === "credit") {
    return JSON.stringify(data) === JSON.stringify(state.credit) ? state : { credit: data, advantages: null };
  }
  if (JSON.stringify(data) === JSON.stringify(state.advantages)) return state;
  const { credit } = state;
  if (!credit || data.step_advantage.length !== credit.weights.length) return state;
  return data.step_advantage[0].length === credit.trained.length ? { credit, advantages: data } : state;
}

/**
 * Whether it says where the rewards' gradient came from, and not how credit was given.
 *
 * @param {Credit | null} credit
 */
export const isGradient = (credit) => credit?.method?.startsWith("reward_gradient") ?? false;

/**
 * Whether two credits are of the same samples and steps, so that a place in one is a place in the other.
 *
 * @param {Credit | null} one
 * @param {Credit | null} other
 */
export function haveSameCells(one, other) {
  const cells = (/** @type {Credit | null} */ credit) => JSON.stringify(credit && [credit.groups, credit.trained]);
  return cells(one) === cells(other);
}

/**
 * The state as one objective alone has it: its weights, and its part in each effective advantage. As it is where the objective
 * has no weights of its own, or is none of the credit's.
 *
 * @param {Filled} state
 * @param {string} objective its name; "" for all together
 * @returns {Filled}
 */
export function ofObjective({ credit, advantages }, objective) {
  const k = credit.objectives?.indexOf(objective) ?? -1;
  if (!credit.by_objective || k < 0) return { credit, advantages };
  return {
    credit: { ...credit, weights: credit.by_objective[k] },
    advantages: advantages?.by_objective ? { ...advantages, step_advantage: advantages.by_objective[k] } : advantages,
  };
}

/**
 * What is coloured: the chosen one, or weights as long as there are no advantages.
 *
 * @param {State} state
 * @param {Coloring} chosen
 * @returns {Coloring}
 */
export function shownView(state, chosen) {
  return state.advantages ? chosen : "weight";
}

/**
 * @param {Filled} state
 * @param {number} sample
 */
export function isMasked(state, sample) {
  return state.advantages?.valid[sample] === false || state.credit.weights[sample].includes(null);
}

/**
 * The groups with their samples from top to bottom: [{prompt, number, samples}], number counting from 1.
 * order "advantage": best fused advantage on top, masked samples last. order "sampled": as they were made.
 *
 * @param {Filled} state
 * @param {string} order
 * @returns {Group[]}
 */
export function groupedRows(state, order) {
  const { groups, prompts } = state.credit;
  /** @type {Map<number, number[]>} */
  const samplesOf = new Map();
  groups.forEach((group, sample) => samplesOf.set(group, [...(samplesOf.get(group) ?? []), sample]));
  const height = (/** @type {number} */ sample) => (isMasked(state, sample) ? -Infinity : (state.advantages?.advantage[sample] ?? NaN));
  return [...samplesOf].map(([group, samples], i) => {
    if (order === "advantage" && state.advantages) samples.sort((a, b) => compare(height(b), height(a)));
    return { prompt: prompts[group] ?? "", number: i + 1, samples };
  });
}

/**
 * @param {number} a
 * @param {number} b
 */
function compare(a, b) {
  return a === b ? 0 : a - b; // not a − b alone: −∞ − −∞ is NaN
}

/**
 * The coloured values [B][T'], and the one that means nothing in particular. Masked samples are null.
 *
 * @param {Filled} state
 * @param {Coloring} view
 */
export function field(state, view) {
  const source = view === "advantage" && state.advantages ? state.advantages.step_advantage : state.credit.weights;
  const values = source.map((row, sample) => (isMasked(state, sample) ? row.map(() => null) : row));
  if (view === "advantage") return { values, neutral: 0 };
  // The mean weight is what weighting all steps alike gives: 1, or 1/T' where weights add up to one.
  const known = values.flat().filter((value) => value !== null);
  return { values, neutral: known.length ? known.reduce((sum, value) => sum + value) / known.length : 1 };
}

/**
 * Mean of each column over some samples, null where none of them has a value.
 *
 * @param {Value[][]} values
 * @param {number[]} samples
 * @returns {Value[]}
 */
export function columnMeans(values, samples) {
  return values[0].map((_, column) => {
    const known = samples.map((sample) => values[sample][column]).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value) / known.length : null;
  });
}

export const METRICS = {
  font: 12, // nine pixels where a page of 1400 x 900 shows the quickstart
  scale: 28, // the colour scale on top, with its numbers
  strip: 36,
  axis: 29, // two lines: step, σ
  gap: 5,
  gutter: 44, // "mean", "step"
  wideGutter: 104, // a prompt's text
  wideFrom: 420,
  shares: 12,
};

/** Height of everything but the cells. */
export const FRAME_HEIGHT = METRICS.scale + METRICS.strip + METRICS.axis + 2 * METRICS.gap;

/**
 * Where everything lies, in CSS pixels.
 * rowsOfGroups: rows of each group; columns: T'; shares: [K] or null.
 *
 * @param {{width: number, height: number, rowsOfGroups: number[], columns: number, shares: number[] | null}} picture
 */
export function layout({ width, height, rowsOfGroups, columns, shares }) {
  const { scale, strip, gap, wideFrom } = METRICS;
  const groupGap = gapOf(rowsOfGroups.length);
  const gutter = width >= wideFrom ? METRICS.wideGutter : METRICS.gutter;
  const right = shares ? METRICS.shares + 2 * gap : 0;
  const rows = rowsOfGroups.reduce((sum, number) => sum + number, 0);
  const x = gutter;
  const cells = { x, y: scale, width: Math.max(1, width - x - right), height: Math.max(1, height - FRAME_HEIGHT) };
  const rowHeight = (cells.height - groupGap * (rowsOfGroups.length - 1)) / rows;
  const tops = [];
  const groups = [];
  let y = cells.y;
  for (const number of rowsOfGroups) {
    groups.push({ y, height: number * rowHeight, first: tops.length, rows: number });
    for (let row = 0; row < number; row++) tops.push(y + row * rowHeight);
    y += number * rowHeight + groupGap;
  }
  const bottom = cells.y + cells.height;
  return {
    width,
    height,
    wide: gutter === METRICS.wideGutter,
    gutter: gutter - 2 * gap,
    scale: { x: cells.x, y: 2, width: cells.width, height: 9 },
    cells,
    rowHeight,
    columnWidth: cells.width / columns,
    columns,
    tops,
    groups,
    strip: { x, y: bottom + gap, width: cells.width, height: strip },
    axis: { x, y: bottom + 2 * gap + strip, width: cells.width },
    shares: shares && stacked(shares, { x: width - METRICS.shares, y: cells.y, width: METRICS.shares, height: cells.height }),
  };
}

/**
 * @param {number[]} shares
 * @param {Box} box
 */
function stacked(shares, box) {
  let y = box.y;
  return shares.map((share) => {
    const part = { ...box, y, height: share * box.height };
    y += part.height;
    return part;
  });
}

/**
 * The rectangle of a cell.
 *
 * @param {Layout} layout
 * @param {Cell} cell
 * @returns {Box}
 */
export function cellBox({ tops, cells, columnWidth, rowHeight }, { row, column }) {
  return { x: cells.x + column * columnWidth, y: tops[row], width: columnWidth, height: rowHeight };
}

/**
 * What lies at a point.
 *
 * @typedef {({kind: "cell"} & Cell) | {kind: "mean", column: number} | {kind: "group", group: number}
 *   | {kind: "share", objective: number}} Target
 *
 * @param {Layout} place
 * @param {number} x
 * @param {number} y
 * @returns {Target | null}
 */
export function hit(place, x, y) {
  const objective = place.shares?.findIndex((box) => inside(box, x, y)) ?? -1;
  if (objective >= 0) return { kind: "share", objective };
  const column = Math.floor((x - place.cells.x) / place.columnWidth);
  const inColumn = column >= 0 && column < place.columns;
  if (inColumn && y >= place.strip.y && y < place.strip.y + place.strip.height) return { kind: "mean", column };
  const group = place.groups.findIndex((box) => y >= box.y && y < box.y + box.height);
  if (group < 0 || x < 0) return null;
  if (x < place.cells.x) return { kind: "group", group };
  if (!inColumn) return null;
  const { first, rows, y: top } = place.groups[group];
  return { kind: "cell", row: first + Math.min(rows - 1, Math.floor((y - top) / place.rowHeight)), column };
}

/**
 * @param {Box} box
 * @param {number} x
 * @param {number} y
 */
function inside(box, x, y) {
  return x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height;
}

/**
 * The columns whose label is written: as many as fit without touching, evenly spaced from the first.
 *
 * @param {number} columns
 * @param {number} columnWidth
 * @param {number} labelWidth
 */
export function labelled(columns, columnWidth, labelWidth) {
  const every = Math.max(1, Math.ceil(labelWidth / columnWidth));
  return Array.from({ length: Math.ceil(columns / every) }, (_, i) => i * every);
}

/**
 * The cell that a key moves to, null for other keys. Page keys go to the group above and below.
 *
 * @param {Cell} from
 * @param {string} key
 * @param {number[]} rowsOfGroups
 * @param {number} columns
 * @returns {Cell | null}
 */
export function moved({ row, column }, key, rowsOfGroups, columns) {
  let rows = 0;
  const firsts = rowsOfGroups.map((number) => (rows += number) - number);
  const group = firsts.findLastIndex((first) => first <= row);
  /** @type {Record<string, Cell>} */
  const targets = {
    ArrowUp: { row: Math.max(0, row - 1), column },
    ArrowDown: { row: Math.min(rows - 1, row + 1), column },
    ArrowLeft: { row, column: Math.max(0, column - 1) },
    ArrowRight: { row, column: Math.min(columns - 1, column + 1) },
    Home: { row, column: 0 },
    End: { row, column: columns - 1 },
    PageUp: { row: firsts[Math.max(0, group - 1)], column },
    PageDown: { row: firsts[Math.min(firsts.length - 1, group + 1)], column },
  };
  return targets[key] ?? null;
}

/**
 * All that is known of a sample at a step, as texts; `place` names the two.
 *
 * @typedef {{symbol: string, meaning: string, value: string}} Fact
 * @typedef {{name: string, advantage: string, coefficient: string, weight?: string}} Objective
 * @typedef {{prompt: string, place: string, numbers: Fact[], objectives: Objective[], note: string}} Facts
 *
 * @param {Filled} state
 * @param {number} sample
 * @param {number} column
 * @returns {Facts}
 */
export function cellFacts({ credit, advantages }, sample, column) {
  const masked = isMasked({ credit, advantages }, sample);
  const numbers = numbersOf({ credit, advantages: masked ? null : advantages }, column, (valueOf) => valueOf(sample));
  return {
    prompt: credit.prompts[credit.groups[sample]] ?? "",
    place: `${t("sample {number}", { number: sample })} · ${stepName(credit, column)}`,
    numbers,
    objectives: !advantages || isGradient(credit)
      ? []
      : advantages.names.map((name, k) => ({
          name,
          advantage: signed(advantages.objectives[sample][k]),
          coefficient: fixed(advantages.coefficients[sample][k]),
          ...(credit.by_objective && { weight: fixed(credit.by_objective[k][sample][column]) }),
        })),
    note: masked ? t("masked: a reward failed or Best of N left it out, so this sample trains nothing") : "",
  };
}

/**
 * The same of a row that stands for several samples: their means, as far as they are not masked.
 *
 * @param {Filled} state
 * @param {import("./heatmap_rows.js").Section} section
 * @param {import("./heatmap_rows.js").Row} row
 * @param {number} column
 * @returns {Facts}
 */
export function rowFacts(state, section, row, column) {
  const { credit, advantages } = state;
  const known = row.samples.filter((sample) => !isMasked(state, sample));
  const mean = (/** @type {(sample: number) => Value} */ valueOf) => columnMeans(known.map((sample) => [valueOf(sample)]), known.map((_, i) => i))[0];
  const numbers = known.length ? numbersOf({ credit, advantages }, column, mean) : [];
  return {
    prompt: section.prompt || t("prompts {first} to {last}", { first: section.number, last: section.last }),
    place: `${rowName(row)} · ${stepName(credit, column)}`,
    numbers,
    objectives: [],
    note: t("Means. Click, or press Enter, to see the samples."),
  };
}

/**
 * @param {Filled} state
 * @param {number} column
 * @param {(valueOf: (sample: number) => Value) => Value} value of one sample, or the mean of several
 * @returns {Fact[]}
 */
function numbersOf({ credit, advantages }, column, value) {
  const weight = fixed(value((sample) => credit.weights[sample][column]));
  const here = advantages && value((sample) => advantages.step_advantage[sample][column]);
  if (isGradient(credit)) {
    const share = { symbol: "w", meaning: t("its share of the sample's gradient"), value: weight };
    return here === null ? [share] : [{ symbol: "g", meaning: t("gradient that came from this step"), value: fixed(here) }, share];
  }
  const gained = significant(value((sample) => credit.delta[sample][column]));
  return [
    { symbol: "ΔS", meaning: t("similarity gained"), value: gained },
    { symbol: "w", meaning: t("step weight"), value: weight },
    ...(advantages
      ? [
          { symbol: "z", meaning: t("fused advantage"), value: signed(value((sample) => advantages.advantage[sample])) },
          { symbol: "Ã", meaning: t("effective advantage"), value: signed(here) },
        ]
      : []),
  ];
}

/** @param {import("./heatmap_rows.js").Row} row */
export function rowName({ samples, kind }) {
  if (samples.length === 1) return t("sample {number}", { number: samples[0] });
  if (kind === "reinforced") return t("{count} reinforced samples", { count: samples.length });
  if (kind === "discouraged") return t("{count} discouraged samples", { count: samples.length });
  return t("{count} samples", { count: samples.length });
}

/**
 * "step 3 · σ 0.87 → 0.72"
 *
 * @param {Pick<Credit, "trained" | "sigmas">} credit
 * @param {number} column
 */
export function stepName({ trained, sigmas }, column) {
  const step = trained[column];
  const name = t("step {step}", { step });
  return sigmas?.length ? `${name} · σ ${fixed(sigmas[step])} → ${fixed(sigmas[step + 1])}` : name;
}

/**
 * What a mean is of; `figure`, if any, is named with it.
 *
 * @param {string | null} prompts their numbers; null: all
 * @param {string} figure
 */
export function meanOf(prompts, figure = "") {
  const text =
    prompts === null
      ? t("mean {figure} of all", { figure })
      : prompts.includes("–")
        ? t("mean {figure} of prompts {numbers}", { figure, numbers: prompts })
        : t("mean {figure} of prompt {number}", { figure, number: prompts });
  return text.replace("  ", " ").trim();
}

/**
 * The facts as one sentence, for a screen reader.
 *
 * @param {Facts} facts
 */
export function spoken(facts) {
  const numbers = facts.numbers.map(({ meaning, value }) => `${meaning} ${value}`);
  const objectives = facts.objectives.map(
    ({ name, advantage, coefficient, weight }) =>
      t("{name}: advantage {advantage}, coefficient {coefficient}", { name, advantage, coefficient }) +
      (weight ? `, ${t("weight {weight}", { weight })}` : ""),
  );
  return [facts.prompt, facts.place, ...numbers, ...objectives, facts.note].filter(Boolean).join("; ");
}

/**
 * The whole picture in words.
 *
 * @param {State} state with or without a credit
 */
export function summary({ credit, advantages }) {
  if (!credit) return t("Credit heatmap, empty: run the graph first.");
  const state = { credit, advantages };
  const everyone = credit.groups.map((_, sample) => sample);
  const groups = groupedRows(state, "sampled").length;
  const weights = columnMeans(field(state, "weight").values, everyone);
  const parts = [
    t("{samples} of {prompts} × {steps}", {
      samples: count(everyone.length, t("{count} sample"), t("{count} samples")),
      prompts: count(groups, t("{count} prompt"), t("{count} prompts")),
      steps: count(credit.trained.length, t("{count} step"), t("{count} steps")),
    }),
    peak(weights, credit),
    ...(credit.objectives ?? []).map((name) => {
      const { values } = field(ofObjective(state, name), "weight");
      return t("for {name} {peak}", { name, peak: peak(columnMeans(values, everyone), credit) });
    }),
  ];
  const masked = everyone.filter((sample) => isMasked(state, sample)).length;
  if (masked) parts.push(count(masked, t("{count} sample masked"), t("{count} samples masked")));
  if (advantages) {
    const zero = everyone.filter((sample) => !isMasked(state, sample) && advantages.advantage[sample] === 0).length;
    const above = everyone.filter((sample) => (advantages.advantage[sample] ?? 0) > 0 && !isMasked(state, sample)).length;
    const below = everyone.length - masked - above - zero;
    if (!isGradient(credit)) parts.push(t("{above} reinforced, {below} discouraged, {zero} left alone", { above, below, zero }));
    const shares = advantages.names.map((name, k) => `${name} ${percent(advantages.shares[k])}`).join(", ");
    parts.push(t("shares: {shares}", { shares }));
  }
  const whole = { parts: parts.filter(Boolean).join("; ") };
  return isGradient(credit) ? t("Gradient heatmap: {parts}.", whole) : t("Credit heatmap: {parts}.", whole);
}

/**
 * @param {Value[]} means
 * @param {Credit} credit
 */
function peak(means, credit) {
  const known = means.filter((mean) => mean !== null);
  const most = Math.max(...known);
  const even = most - Math.min(...known) < 1e-6;
  if (!known.length || even) return !known.length ? "" : isGradient(credit) ? t("as much gradient from every step") : t("the same credit at every step");
  const column = means.indexOf(most);
  const sigma = credit.sigmas?.length ? `σ ${fixed(credit.sigmas[credit.trained[column]])}, ` : "";
  const place = { step: credit.trained[column], sigma, weight: fixed(most) };
  if (isGradient(credit)) return t("most gradient from step {step} ({sigma}mean weight {weight})", place);
  return t("most credit at step {step} ({sigma}mean weight {weight})", place);
}
