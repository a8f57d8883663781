import assert from "node:assert/strict";
import test from "node:test";

import { curveOf, differingSettings, sharedIterations, sharedMetrics, sharedPictures } from "../../web/lib/compare.js";

const evaluation = (iteration, means) => ({
  iteration,
  rewards: Object.fromEntries(Object.entries(means).map(([name, mean]) => [name, { mean, standard_error: 0.1 }])),
});

test("metrics that all runs have, evaluations first", () => {
  const runs = [
    { names: ["loss", "reward/clip/mean", "reward/clip/std", "held_out/acc/mean"], evaluations: [evaluation(0, { clip: 1, acc: 1 })] },
    { names: ["reward/clip/mean", "held_out/acc/mean", "loss", "kl/approx"], evaluations: [evaluation(0, { clip: 2 })] },
  ];
  assert.deepEqual(
    sharedMetrics(runs).map(({ key, label, kind }) => [kind, label, key]),
    [
      ["evaluation", "clip", "evaluation/clip"],
      ["reward", "clip", "reward/clip/mean"],
      ["held_out", "acc", "held_out/acc/mean"],
      ["other", "loss", "loss"],
    ],
  );
  assert.deepEqual(sharedMetrics([...runs, { names: [], evaluations: [] }]), []);
});

const FIGURES = {
  iterations: [1, 2, 4],
  columns: { "seconds/iteration": [2, null, 3], loss: [0.5, null, 0.25] },
  evaluations: [evaluation(0, { clip: 1 }), evaluation(3, { clip: 2, acc: 7 }), evaluation(4, { clip: 3 })],
};

test("a curve by iteration, and by the seconds that the iterations took", () => {
  assert.deepEqual(curveOf(FIGURES, "loss", false), { xs: [1, 2, 4], ys: [0.5, null, 0.25] });
  assert.deepEqual(curveOf(FIGURES, "loss", true), { xs: [2, 2, 5], ys: [0.5, null, 0.25] });
});

test("an evaluation stands where the iterations before it ended", () => {
  assert.deepEqual(curveOf(FIGURES, "evaluation/clip", false), { xs: [0, 3, 4], ys: [1, 2, 3], errors: [0.1, 0.1, 0.1] });
  assert.deepEqual(curveOf(FIGURES, "evaluation/clip", true), { xs: [0, 2, 5], ys: [1, 2, 3], errors: [0.1, 0.1, 0.1] });
  assert.deepEqual(curveOf(FIGURES, "evaluation/acc", true), { xs: [2], ys: [7], errors: [0.1] });
});

test("pictures of the same prompt and seed", () => {
  const picture = (prompt, seed, left) => ({ prompt, seed, box: [left, 0, 8, 8] });
  const one = { pictures: [picture("a", 0, 0), picture("b", 0, 8), picture("a", 1, 16)] };
  const two = { pictures: [picture("a", 1, 0), picture("c", 0, 8), picture("a", 0, 16)] };
  assert.deepEqual(
    sharedPictures([one, two]).map(({ prompt, seed, boxes }) => [prompt, seed, boxes.map(([left]) => left)]),
    [
      ["a", 0, [0, 16]],
      ["a", 1, [16, 0]],
    ],
  );
  assert.deepEqual(sharedIterations([[{ iteration: 100 }, { iteration: 20 }], [{ iteration: 20 }, { iteration: 100 }, { iteration: 0 }]]), [20, 100]);
});

const node = (class_type, inputs, title) => ({ class_type, inputs, ...(title && { _meta: { title } }) });

test("settings that differ, by node and input; what is equal is left out", () => {
  const first = { 1: node("Load", { model: "a", rank: 16.0 }, "Loader"), 2: node("OTCA_TrainingRun", { run_name: "x", iterations: 9 }) };
  const second = { 7: node("Load", { model: "b", rank: 16 }, "Loader"), 8: node("OTCA_TrainingRun", { run_name: "y", iterations: 9 }) };
  assert.deepEqual(differingSettings([first, second]), [{ node: "Loader", input: "model", values: ["a", "b"] }]);
});

test("an input that a graph leaves out has its class's default", () => {
  const [whole, short] = [{ 1: node("Load", { model: "a", device: "auto" }) }, { 1: node("Load", { model: "a" }) }];
  assert.deepEqual(differingSettings([whole, short], () => ({ device: "auto" })), []);
  assert.deepEqual(differingSettings([whole, short], () => ({ device: "cpu" }))[0].values, ["auto", "cpu"]);
});

test("a node that a run lacks, two of one title, and links by what they lead to", () => {
  const first = { 1: node("R", { w: 1 }, "Reward"), 2: node("R", { w: 2 }, "Reward"), 3: node("S", { from: ["1", 0] }, "Stack") };
  const second = { 5: node("R", { w: 1 }, "Reward"), 9: node("S", { from: ["10", 1] }, "Stack"), 10: node("M", { k: true }, "Mix") };
  assert.deepEqual(differingSettings([first, second]), [
    { node: "Reward (2)", input: "w", values: ["2", null] },
    { node: "Stack", input: "from", values: ["← Reward", "← Mix, 2"] },
    { node: "Mix", input: "k", values: [null, "true"] },
  ]);
});
