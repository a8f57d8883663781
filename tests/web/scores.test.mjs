import assert from "node:assert/strict";
import test from "node:test";

import * as scores from "../../web/lib/scores.js";
import { socketsToShow } from "../../web/lib/sockets.js";
import { stageColor } from "../../web/lib/stages.js";

const PAYLOAD = {
  names: ["clip_t", "colorfulness"],
  held_out_names: ["accuracy"],
  groups: [0, 0, 0, 1],
  prompts: ["a red circle", "a blue square"],
  values: [
    [0.9, 30],
    [0.7, null],
    [0.8, 50],
    [0.6, 10],
  ],
  held_out: [[1], [0], [1], [0]],
  advantages: [
    [1.2, -1, 0.7],
    [-1.2, null, -1.4],
    [0, 1, 0.7],
    [0, 0, 0],
  ],
};

const order = (sort) => scores.scoreGroups(PAYLOAD, sort).map(({ samples }) => samples.map(({ sample }) => sample));

test("trained rewards stand before those held out", () => {
  assert.deepEqual(scores.scoreColumns(PAYLOAD), [
    { name: "clip_t", heldOut: false, meaning: "" },
    { name: "colorfulness", heldOut: false, meaning: "" },
    { name: "accuracy", heldOut: true, meaning: "" },
  ]);
});

test("the column of a judge says what its numbers are", () => {
  const said = scores.scoreColumns({ ...PAYLOAD, meanings: ["grade", "", "yes_no"] }).map(({ meaning }) => meaning);
  assert.deepEqual(said, ["grade 1–5, as 0–1", "", "P(yes)"]);
});

test("samples are grouped by prompt, as sampled", () => {
  const [first, second] = scores.scoreGroups(PAYLOAD, null);
  assert.equal(first.prompt, "a red circle");
  assert.equal(second.prompt, "a blue square");
  assert.deepEqual(first.samples[2], { sample: 2, values: [0.8, 50, 1], advantages: [0, 1, 0.7] });
  assert.deepEqual(order(null), [[0, 1, 2], [3]]);
});

test("sorting stays within a prompt and puts what is not scored last", () => {
  assert.deepEqual(order({ column: 0, descending: true }), [[0, 2, 1], [3]]);
  assert.deepEqual(order({ column: 0, descending: false }), [[1, 2, 0], [3]]);
  assert.deepEqual(order({ column: 1, descending: true }), [[2, 0, 1], [3]]);
  assert.deepEqual(order({ column: 1, descending: false }), [[0, 2, 1], [3]]);
});

test("a ranking stands in its own order until a header is clicked", () => {
  const ranked = { ...PAYLOAD, groups: [0, 0, 0, 0], places: [3, 4, 1, 2] };
  const samples = (sort) => scores.scoreGroups(ranked, sort)[0].samples.map(({ sample }) => sample);
  assert.deepEqual(samples(null), [2, 3, 0, 1]);
  assert.deepEqual(samples({ column: 0, descending: true }), [0, 2, 1, 3]);
});

test("numbers of a column line up", () => {
  assert.deepEqual(scores.columnDigits(PAYLOAD), [3, 1, 2]); // largest: 0.9, 50, 1
  const blank = {
    names: ["a", "b"],
    held_out_names: [],
    values: [
      [0, 1234.5],
      [null, 2],
    ],
    held_out: [[], []],
  };
  assert.deepEqual(scores.columnDigits(blank), [2, 0]);
});

test("a header's clicks: best first, worst first, as sampled", () => {
  const once = scores.nextSort(null, 1);
  assert.deepEqual(once, { column: 1, descending: true });
  const twice = scores.nextSort(once, 1);
  assert.deepEqual(twice, { column: 1, descending: false });
  assert.equal(scores.nextSort(twice, 1), null);
  assert.deepEqual(scores.nextSort(twice, 0), { column: 0, descending: true });
});

test("correlations in words, the worst conflict first", () => {
  const columns = ["clip_t", "colorfulness", "sharpness"].map((name) => ({ name }));
  const matrix = [
    [1, -0.31, 0.85],
    [-0.31, 1, -0.62],
    [0.85, -0.62, 1],
  ];
  assert.deepEqual(scores.correlationSentences(columns, matrix), [
    { conflict: true, text: "colorfulness and sharpness conflict (\u22120.62)." },
    { conflict: true, text: "clip_t and colorfulness conflict (\u22120.31)." },
    { conflict: false, text: "clip_t and sharpness ask for nearly the same (+0.85)." },
  ]);
});

test("weak or unknown correlations are not worth a sentence", () => {
  const columns = [{ name: "a" }, { name: "b" }];
  assert.deepEqual(
    scores.correlationSentences(columns, [
      [1, -0.29],
      [-0.29, 1],
    ]),
    [],
  );
  assert.deepEqual(
    scores.correlationSentences(columns, [
      [1, null],
      [null, 1],
    ]),
    [],
  );
});

test("thumbnails lie row by row on their sheet", () => {
  assert.deepEqual(scores.thumbnailOffset(0, 64, 8), { x: 0, y: 0 });
  assert.deepEqual(scores.thumbnailOffset(10, 64, 8), { x: 128, y: 64 });
});

test("the sockets in use and one that is free, without moving any", () => {
  assert.equal(socketsToShow([], 8), 1);
  assert.equal(socketsToShow([1], 8), 2);
  assert.equal(socketsToShow([1, 2, 3, 4], 8), 5);
  assert.equal(socketsToShow([1, 3], 8), 3); // reward_2 is the free one
  assert.equal(socketsToShow([3], 8), 3);
  assert.equal(socketsToShow([1, 2, 3, 4, 5, 6, 7, 8], 8), 8);
});

test("every stage has its colour, others keep ComfyUI's", () => {
  const stages = ["model", "data", "sampling", "rewards", "credit", "fusion", "training"];
  assert.equal(new Set(stages.map((stage) => stageColor(`OTCA/${stage}`))).size, 7);
  assert.equal(stageColor("loaders"), undefined);
});
