import assert from "node:assert/strict";
import test from "node:test";

import * as runs from "../../web/lib/runs.js";

const row = (iteration, more = {}) => ({ iteration, ...more });

test("every status of the routes has a word, an icon and a tone", () => {
  for (const status of ["running", "idle", "finished", "stopped", "failed", "interrupted"]) {
    const { word, icon, tone } = runs.STATUS[status];
    assert.ok(word && icon.startsWith("pi-") && tone, status);
  }
});

test("actions follow from what a run is and has", () => {
  const offered = (status, has_checkpoint, has_lora) => runs.offeredActions({ status, has_checkpoint, has_lora });
  assert.deepEqual(offered("running", true, true), { stop: true, proof: false, resume: false, canvas: false, lora: true, workflow: true });
  assert.deepEqual(offered("stopped", true, false), { stop: false, proof: false, resume: true, canvas: true, lora: false, workflow: true });
  assert.equal(offered("idle", true, true).resume, false);
  assert.deepEqual(offered("queued", false, false), {
    stop: true,
    proof: false,
    resume: false,
    canvas: false,
    lora: false,
    workflow: true,
  });
  assert.equal(runs.offeredActions({ status: "stopped", iteration: 0, has_checkpoint: false }).resume, true, "never begun");
  assert.deepEqual(offered("failed", false, false), { stop: false, proof: false, resume: false, canvas: false, lora: false, workflow: true });
});

test("progress stays within its bar", () => {
  assert.equal(runs.progress({ iteration: 35, total: 140 }), 0.25);
  assert.equal(runs.progress({ iteration: 150, total: 140 }), 1);
  assert.equal(runs.progress({ iteration: 0, total: null }), 0);
});

test("durations as a person says them", () => {
  assert.equal(runs.formatDuration(0.4), "less than a second");
  assert.equal(runs.formatDuration(89), "89 s");
  assert.equal(runs.formatDuration(90), "2 min");
  assert.equal(runs.formatDuration(3 * 3600), "3.0 h");
  assert.equal(runs.formatDuration(48 * 3600), "2.0 days");
});

test("what is left goes by the last ten iterations", () => {
  const rows = [
    row(1, { "seconds/iteration": 100 }),
    ...Array.from({ length: 10 }, (_, i) => row(i + 2, { "seconds/iteration": 2 })),
  ];
  assert.equal(runs.secondsLeft({ iteration: 11, total: 21 }, rows), 20);
  assert.equal(runs.secondsLeft({ iteration: 0, total: 21 }, []), null);
  assert.equal(runs.secondsLeft({ iteration: 21, total: 21 }, rows), null);
  assert.equal(runs.secondsLeft({ iteration: 21, total: null }, rows), null);
});

test("a taken name gets the next free number", () => {
  assert.equal(runs.uniqueName("mine", []), "mine");
  assert.equal(runs.uniqueName("mine", ["mine"]), "mine-2");
  assert.equal(runs.uniqueName("mine", ["mine", "mine-2"]), "mine-3");
  assert.equal(runs.uniqueName("mine-2", ["mine-2"]), "mine-3");
  assert.equal(runs.uniqueName("run-2026", ["run-2026", "run-2027"]), "run-2028");
});

test("rows that are read again replace those known", () => {
  assert.deepEqual(runs.mergeRows([row(1), row(2)], [row(3)]), [row(1), row(2), row(3)]);
  assert.deepEqual(runs.mergeRows([row(1), row(2, { loss: 1 })], [row(2, { loss: 9 }), row(3)]), [
    row(1),
    row(2, { loss: 9 }),
    row(3),
  ]);
  const known = [row(1)];
  assert.equal(runs.mergeRows(known, []), known);
});

test("the run that was trained last is shown until one that is there is chosen", () => {
  const [newest, older] = [{ id: "b", updated: 9 }, { id: "a", updated: 5 }];
  assert.equal(runs.shownRun([newest, older], null), newest);
  assert.equal(runs.shownRun([newest, older], "a"), older);
  assert.equal(runs.shownRun([newest, older], "deleted"), newest);
  assert.equal(runs.shownRun([], "a"), undefined);
  const goesOn = { id: "a", updated: 12 };
  assert.equal(runs.shownRun([newest, goesOn], null), goesOn, "an older run that goes on, between two prompts");
  const training = { id: "b", status: "running", updated: 8 };
  assert.equal(runs.shownRun([newest, training, older], null), training, "what is in training comes before what is newest");
  assert.equal(runs.shownRun([newest, training, older], "a"), older);
});

test("a run that was resumed, or is shorter than what is known, is read anew", () => {
  const now = { started: 10, rewrites: 1, iteration: 5 };
  assert.equal(runs.wentBack([row(5)], { started: 10, rewrites: 1 }, now), false);
  assert.equal(runs.wentBack([row(7)], { started: 10, rewrites: 1 }, now), true);
  assert.equal(runs.wentBack([row(3)], { started: 9, rewrites: 1 }, now), true);
  assert.equal(runs.wentBack([row(3)], { started: 10, rewrites: 0 }, now), true, "back, and on beyond where it was");
});

test("rewards come trained first, then held out, also before the first iteration", () => {
  const rows = [row(1, { "held_out/accuracy/mean": 1, "reward/clip_t/mean": 1, "reward/clip_t/std": 1 })];
  assert.deepEqual(runs.rewardPanels(rows, []), [
    { name: "clip_t", heldOut: false, key: "reward/clip_t/mean" },
    { name: "accuracy", heldOut: true, key: "held_out/accuracy/mean" },
  ]);
  const evaluations = [{ iteration: 0, rewards: { accuracy: { held_out: true }, clip_t: { held_out: false } } }];
  assert.deepEqual(runs.rewardPanels(rows, evaluations).length, 2);
  assert.deepEqual(
    runs.rewardPanels([], evaluations).map(({ name, heldOut }) => [name, heldOut]),
    [
      ["accuracy", true],
      ["clip_t", false],
    ],
  );
});

test("series, phases and credit steps of the metrics", () => {
  const rows = [
    row(1, { loss: 3, "seconds/update": 1, "seconds/rollout": 2, "credit/step/10": 1, "credit/step/2": 1 }),
    row(2, { "seconds/iteration": 3, "seconds/reward": 5, "seconds/reward/clip_t": 4, "seconds/reward/sharpness": 1 }),
  ];
  assert.deepEqual(runs.timedRewards(rows), ["clip_t", "sharpness"]);
  assert.deepEqual(runs.series(rows, "loss"), [3, null]);
  assert.deepEqual(runs.phases(rows), ["rollout", "reward", "update"]);
  assert.deepEqual(runs.creditSteps(rows), [2, 10]);
  const moving = [3, 4, 5].map((step) => row(step, { [`credit/step/${step}`]: 1 }));
  assert.deepEqual(runs.creditSteps(moving), [3, 4, 5]);
});

test("the iteration of a samples file", () => assert.equal(runs.sampleIteration("000120.png"), 120));

test("the dialog starts from what the graph says", () => {
  const graph = (inputs) => ({
    1: { class_type: "Other", inputs: {} },
    12: { class_type: "OTCA_TrainingRun", inputs },
  });
  assert.equal(runs.runNameOf(graph({ run_name: "quickstart" })), "quickstart");
  assert.equal(runs.runNameOf(graph({ run_name: ["3", 0] })), "otca");
  assert.equal(runs.iterationsOf(graph({ iterations: 140 })), 140);
  assert.equal(runs.iterationsOf({}), 300);
});
