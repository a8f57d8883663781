import assert from "node:assert/strict";
import test from "node:test";

import * as heatmap from "../../web/lib/heatmap.js";

/** Two prompts with two samples each, sampled in turn; steps 0, 1 and 3 of four are trained. */
function credit(changes = {}) {
  return {
    ...{ node: "9", method: "tcd", steps: 4, sigmas: [1, 0.9, 0.75, 0.5, 0], trained: [0, 1, 3], previews: true },
    ...{ groups: [0, 1, 0, 1], prompts: ["a cat", "a dog"] },
    weights: [
      [0.5, 1.5, 1],
      [0.5, 2, 0.5],
      [1, 1, 1],
      [0.6, 1.2, 1.2],
    ],
    delta: [
      [0.01, 0.03, 0.02],
      [-0.01, 0.04, 0],
      [0.02, 0.02, 0.02],
      [0.00001, 0.02, 0.02],
    ],
    ...changes,
  };
}

function advantages(changes = {}) {
  return {
    ...{ node: "10", credit_node: "9", method: "moca", names: ["clip", "sharp"], shares: [0.75, 0.25] },
    objectives: [[-1, 0.5], [2, 1], [1, 1], [null, null]],
    coefficients: [[0.5, 0.5], [1, 0], [1, 0], [null, null]],
    advantage: [-0.5, 1, 0.25, null],
    step_advantage: [
      [-0.25, -0.75, -0.5],
      [0.5, 2, 0.5],
      [0.25, 0.25, 0.25],
      [null, null, null],
    ],
    valid: [true, true, true, false],
    ...changes,
  };
}

const both = () => ({ credit: credit(), advantages: advantages() });
const alone = () => ({ credit: credit(), advantages: null });

test("advantages join the credit they were made of", () => {
  const first = heatmap.received(heatmap.EMPTY, "credit", credit());
  assert.deepEqual(heatmap.received(first, "advantages", advantages()), both());
  const state = both();
  assert.equal(heatmap.received(state, "advantages", advantages()), state, "sent again");
});

test("advantages without a credit, or of another shape, are dropped", () => {
  assert.equal(heatmap.received(heatmap.EMPTY, "advantages", advantages()), heatmap.EMPTY);
  const state = alone();
  assert.equal(heatmap.received(state, "advantages", advantages({ step_advantage: [[1, 1, 1]] })), state);
  assert.equal(heatmap.received(state, "advantages", advantages({ step_advantage: Array(4).fill([1]) })), state);
});

test("another credit outdates the advantages; the same one sent again does not", () => {
  const state = both();
  assert.equal(heatmap.received(state, "credit", credit()), state);
  const rerun = credit({ weights: Array(4).fill([1, 1, 1]) });
  assert.deepEqual(heatmap.received(state, "credit", rerun), { credit: rerun, advantages: null });
});

test("weights are shown until there are advantages", () => {
  assert.equal(heatmap.shownView(alone(), "advantage"), "weight");
  assert.equal(heatmap.shownView(both(), "advantage"), "advantage");
  assert.equal(heatmap.shownView(both(), "weight"), "weight");
});

test("rows: by prompt, the best advantage on top, masked ones last", () => {
  const samples = (state, order) => heatmap.groupedRows(state, order).map((group) => group.samples);
  assert.deepEqual(samples(both(), "advantage"), [[2, 0], [1, 3]]);
  assert.deepEqual(samples(both(), "sampled"), [[0, 2], [1, 3]]);
  assert.deepEqual(samples(alone(), "advantage"), [[0, 2], [1, 3]]);
  const masked = advantages({ valid: [true, false, true, true], advantage: [0, null, 1, -3] });
  assert.deepEqual(samples({ credit: credit(), advantages: masked }, "advantage"), [[2, 0], [3, 1]]);
  assert.deepEqual(heatmap.groupedRows(both(), "sampled")[1], { prompt: "a dog", number: 2, samples: [1, 3] });
});

test("rows of equal advantage keep the order in which they were sampled", () => {
  const state = { credit: credit({ groups: [0, 0, 0, 0] }), advantages: advantages({ advantage: [0, 1, 0, null] }) };
  assert.deepEqual(heatmap.groupedRows(state, "advantage")[0].samples, [1, 0, 2, 3]);
});

test("in the field of advantages masked samples are empty", () => {
  const { values, neutral } = heatmap.field(both(), "advantage");
  assert.deepEqual(values[3], [null, null, null]);
  assert.equal(neutral, 0);
});

test("the neutral weight is the mean", () => {
  const even = heatmap.field({ credit: credit({ weights: Array(4).fill([1, 1, 1]) }), advantages: null }, "weight");
  assert.equal(even.neutral, 1);
  const sum = heatmap.field({ credit: credit({ weights: Array(4).fill([0.25, 0.25, 0.25]) }), advantages: null }, "weight");
  assert.equal(sum.neutral, 0.25);
  const none = advantages({ valid: Array(4).fill(false) });
  assert.equal(heatmap.field({ credit: credit(), advantages: none }, "weight").neutral, 1, "of no value at all");
});

test("column means leave out what is masked", () => {
  const { values } = heatmap.field(both(), "advantage");
  assert.deepEqual(heatmap.columnMeans(values, [1, 3]), [0.5, 2, 0.5]);
  assert.deepEqual(heatmap.columnMeans(values, [0, 2]), [0, -0.25, -0.125]);
  assert.deepEqual(heatmap.columnMeans(values, [3]), [null, null, null]);
});

// Width 304: gutter 44, shares 12 + 2 × 5. Cells are 304 − 44 − 22 = 238 wide; 203 − 103 = 100 high with 4 between two groups.
const box = () => ({ width: 304, height: 203, rowsOfGroups: [2, 4], columns: 7, shares: [0.75, 0.25] });

test("layout: cells fill what the frame leaves", () => {
  assert.equal(heatmap.FRAME_HEIGHT, 103);
  const place = heatmap.layout(box());
  assert.deepEqual(place.cells, { x: 44, y: 28, width: 238, height: 100 });
  assert.equal(place.columnWidth, 34);
  assert.equal(place.rowHeight, 16);
  assert.deepEqual(place.tops, [28, 44, 64, 80, 96, 112]);
  assert.deepEqual(place.groups[1], { y: 64, height: 64, first: 2, rows: 4 });
  assert.equal(place.strip.y, 133);
  assert.deepEqual(place.shares.map(({ y, height }) => [y, height]), [[28, 75], [103, 25]]);
  assert.equal(place.wide, false);
});

test("layout: prompts get their own column where there is room; without advantages there is no bar of shares", () => {
  const place = heatmap.layout({ ...box(), width: 500, shares: null });
  assert.equal(place.wide, true);
  assert.deepEqual([place.cells.x, place.cells.width, place.shares], [104, 396, null]);
});

test("hit: cells, the gap between groups, labels, means, shares", () => {
  const place = heatmap.layout(box());
  const at = (x, y) => heatmap.hit(place, x, y);
  assert.deepEqual(at(44, 28), { kind: "cell", row: 0, column: 0 });
  assert.deepEqual(at(281.9, 127.9), { kind: "cell", row: 5, column: 6 });
  assert.deepEqual(at(79, 64), { kind: "cell", row: 2, column: 1 });
  assert.equal(at(79, 62), null);
  assert.deepEqual(at(10, 72), { kind: "group", group: 1 });
  assert.deepEqual(at(114, 142), { kind: "mean", column: 2 });
  assert.deepEqual(at(294, 112), { kind: "share", objective: 1 });
  assert.equal(at(287, 52), null);
  assert.equal(at(100, 10), null);
});

test("cellBox is what hit finds", () => {
  const place = heatmap.layout(box());
  const { x, y, width, height } = heatmap.cellBox(place, { row: 3, column: 2 });
  assert.deepEqual([x, y, width, height], [112, 80, 34, 16]);
  assert.deepEqual(heatmap.hit(place, x + width / 2, y + height / 2), { kind: "cell", row: 3, column: 2 });
});

test("labels thin out before they touch", () => {
  assert.deepEqual(heatmap.labelled(7, 34, 29), [0, 1, 2, 3, 4, 5, 6]);
  assert.deepEqual(heatmap.labelled(7, 15, 29), [0, 2, 4, 6]);
  assert.deepEqual(heatmap.labelled(7, 10, 29), [0, 3, 6]);
  assert.deepEqual(heatmap.labelled(3, 2, 29), [0]);
});

test("keys move the selected cell and stop at the edges", () => {
  const move = (row, column, key) => heatmap.moved({ row, column }, key, [2, 4, 1], 3);
  assert.deepEqual(move(0, 0, "ArrowUp"), { row: 0, column: 0 });
  assert.deepEqual(move(1, 0, "ArrowDown"), { row: 2, column: 0 });
  assert.deepEqual(move(6, 1, "ArrowDown"), { row: 6, column: 1 });
  assert.deepEqual(move(2, 2, "ArrowRight"), { row: 2, column: 2 });
  assert.deepEqual(move(2, 2, "ArrowLeft"), { row: 2, column: 1 });
  assert.deepEqual(move(2, 1, "Home"), { row: 2, column: 0 });
  assert.deepEqual(move(2, 1, "End"), { row: 2, column: 2 });
  assert.deepEqual(move(1, 1, "PageDown"), { row: 2, column: 1 });
  assert.deepEqual(move(5, 1, "PageUp"), { row: 0, column: 1 });
  assert.deepEqual(move(6, 1, "PageDown"), { row: 6, column: 1 });
  assert.equal(move(0, 0, "a"), null);
});

test("facts of a cell: steps are named by their own numbers, not by the column's", () => {
  const facts = heatmap.cellFacts(both(), 0, 2);
  assert.equal(facts.prompt, "a cat");
  assert.equal(facts.place, "sample 0 · step 3 · σ 0.50 → 0.00");
  assert.deepEqual(
    facts.numbers.map(({ symbol, value }) => `${symbol} ${value}`),
    ["ΔS 0.02", "w 1.00", "z −0.50", "Ã −0.50"],
  );
  assert.deepEqual(facts.objectives, [
    { name: "clip", advantage: "−1.00", coefficient: "0.50" },
    { name: "sharp", advantage: "+0.50", coefficient: "0.50" },
  ]);
  assert.equal(facts.note, "");
});

test("facts of a masked sample and of one without advantages", () => {
  const masked = heatmap.cellFacts(both(), 3, 0);
  assert.deepEqual(masked.numbers.map(({ symbol, value }) => `${symbol} ${value}`), ["ΔS 1.0e−5", "w 0.60"]);
  assert.match(masked.note, /masked/);
  assert.equal(masked.objectives[0].advantage, "–");
  assert.deepEqual(heatmap.cellFacts(alone(), 0, 0).objectives, []);
});

test("facts of a row of several samples are means, without those that are masked", () => {
  const section = { prompt: "a dog", number: 2, last: 2, samples: [1, 3], rows: [] };
  const facts = heatmap.rowFacts(both(), section, { samples: [1, 3], kind: "all" }, 1);
  assert.deepEqual([facts.prompt, facts.place], ["a dog", "2 samples · step 1 · σ 0.90 → 0.75"]);
  assert.deepEqual(facts.numbers.map(({ symbol, value }) => `${symbol} ${value}`), ["ΔS 0.04", "w 2.00", "z +1.00", "Ã +2.00"]);
  const two = heatmap.rowFacts(both(), { ...section, prompt: "", number: 1 }, { samples: [0, 2], kind: "reinforced" }, 0);
  assert.deepEqual([two.prompt, two.place], ["prompts 1 to 2", "2 reinforced samples · step 0 · σ 1.00 → 0.90"]);
  assert.deepEqual(two.numbers.map(({ value }) => value), ["0.015", "0.75", "\u22120.13", "0.00"]);
  assert.deepEqual(heatmap.rowFacts(both(), section, { samples: [3], kind: "all" }, 0).numbers, [], "all of them masked");
});

test("a place stays a place as long as samples and steps are the same", () => {
  assert.ok(heatmap.haveSameCells(credit(), credit({ weights: [] })));
  assert.ok(!heatmap.haveSameCells(credit(), credit({ trained: [0, 1] })));
  assert.ok(!heatmap.haveSameCells(credit(), null));
});

test("facts are spoken in full words", () => {
  assert.equal(
    heatmap.spoken(heatmap.cellFacts(both(), 1, 1)),
    "a dog; sample 1 · step 1 · σ 0.90 → 0.75; similarity gained 0.04; step weight 2.00; fused advantage +1.00; " +
      "effective advantage +2.00; clip: advantage +2.00, coefficient 1.00; sharp: advantage +1.00, coefficient 0.00",
  );
});

test("the summary says what the picture shows", () => {
  assert.equal(heatmap.summary(heatmap.EMPTY), "Credit heatmap, empty: run the graph first.");
  // Mean weight of step 1: (1.5 + 2 + 1 + 1.2) / 4 = 1.425.
  assert.match(
    heatmap.summary(alone()),
    /^Credit heatmap: 4 samples of 2 prompts × 3 steps; most credit at step 1 \(σ 0.90, mean weight 1\.43\)\.$/,
  );
  // Without the masked sample: (1.5 + 2 + 1) / 3 = 1.5.
  assert.equal(
    heatmap.summary(both()),
    "Credit heatmap: 4 samples of 2 prompts × 3 steps; most credit at step 1 (σ 0.90, mean weight 1.50); 1 sample masked; " +
      "2 reinforced, 1 discouraged, 0 left alone; shares: clip 75 %, sharp 25 %.",
  );
  const even = { credit: credit({ weights: Array(4).fill([1, 1, 1]) }), advantages: null };
  assert.match(heatmap.summary(even), /the same credit at every step/);
});

/** Of two objectives, the first decided early and the second late. */
function byObjective() {
  const weights = [Array(4).fill([2, 1, 0]), Array(4).fill([0, 1, 2])];
  const parts = [
    [[-1, -0.5, 0], [4, 2, 0], [0.5, 0.25, 0], [null, null, null]],
    [[0, 0.25, 0.5], [0, 0, 0], [0, 0, 0], [null, null, null]],
  ];
  const own = credit({ weights: Array(4).fill([1, 1, 1]), objectives: ["clip", "sharp"], by_objective: weights });
  return { credit: own, advantages: advantages({ by_objective: parts }) };
}

test("one objective alone: its weights and its part in the advantage", () => {
  const state = byObjective();
  assert.deepEqual(heatmap.ofObjective(state, ""), state, "all of them");
  assert.deepEqual(heatmap.ofObjective(state, "gone"), state);
  assert.deepEqual(heatmap.ofObjective(both(), "clip"), both(), "a credit that does not tell them apart");
  const sharp = heatmap.ofObjective(state, "sharp");
  assert.deepEqual(heatmap.field(sharp, "weight").values[1], [0, 1, 2]);
  assert.deepEqual(heatmap.field(sharp, "advantage"), { values: state.advantages.by_objective[1], neutral: 0 });
  assert.equal(heatmap.isMasked(sharp, 3), true);
  assert.deepEqual(state, byObjective(), "what was received stays");
  const early = heatmap.ofObjective({ ...state, advantages: null }, "clip");
  assert.deepEqual(early.credit.weights[0], [2, 1, 0]);
  assert.equal(early.advantages, null);
});

test("a cell's facts name each objective's weight where it has its own", () => {
  const state = byObjective();
  const facts = heatmap.cellFacts(heatmap.ofObjective(state, "sharp"), 1, 2);
  assert.deepEqual(facts.objectives.map(({ name, weight }) => [name, weight]), [["clip", "0.00"], ["sharp", "2.00"]]);
  assert.equal(facts.numbers.find(({ symbol }) => symbol === "w").value, "2.00");
  assert.match(heatmap.spoken(facts), /clip: advantage \+2\.00, coefficient 1\.00, weight 0\.00; sharp: .*weight 2\.00/);
  assert.deepEqual(Object.keys(heatmap.cellFacts(both(), 1, 2).objectives[0]), ["name", "advantage", "coefficient"]);
  assert.doesNotMatch(heatmap.spoken(heatmap.cellFacts(both(), 1, 2)), /, weight/);
});

test("the summary says which step each objective has its credit at", () => {
  const words = heatmap.summary(byObjective());
  assert.match(words, /the same credit at every step; for clip most credit at step 0 \(.*2\.00\); for sharp most credit at step 3/);
});

test("a gradient says what came from where, and nothing of advantages", () => {
  const state = { credit: credit({ method: "reward_gradient, one_call" }), advantages: advantages() };
  const { numbers, objectives } = heatmap.cellFacts(state, 1, 1);
  assert.deepEqual(numbers.map(({ symbol, value }) => `${symbol} ${value}`), ["g 2.00", "w 2.00"]);
  assert.deepEqual(objectives, []);
  const row = { samples: [0, 2], kind: "several" };
  const of = heatmap.rowFacts(state, { number: 1, last: 1, prompt: "a cat" }, row, 2);
  assert.deepEqual(of.numbers.map(({ symbol, value }) => `${symbol} ${value}`), ["g −0.13", "w 1.00"]);
  const words = heatmap.summary(state);
  assert.match(words, /^Gradient heatmap: .*most gradient from step 1 .*shares: clip 75 %, sharp 25 %/);
  assert.doesNotMatch(words, /reinforced|credit/);
  assert.equal(heatmap.isGradient(credit()), false);
});
