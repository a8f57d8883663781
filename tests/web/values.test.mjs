import assert from "node:assert/strict";
import test from "node:test";

import { leaveOutGone } from "../../web/lib/values.js";

const INPUT = { required: { seed: ["INT", { control_after_generate: true }] }, optional: { clip: ["STRING", {}], new: ["INT", {}] } };
const DEFINITIONS = { OTCA_A: { name: "OTCA_A", input: INPUT } };
const VALUES = [7, "fixed", 10, "0, 1"]; // a seed, its control, a rescale that is no more, and clip
const NAMED = { seed: 7, control_after_generate: "fixed", rescale: 10, clip: "0, 1" };

function slots(...names) {
  return [{ name: "model" }, ...names.map((name) => ({ name, widget: { name } }))];
}

function values(node) {
  leaveOutGone([node], DEFINITIONS);
  return node.widgets_values;
}

test("an input that is no more moves no other value", () => {
  const left = [7, "fixed", "0, 1"];
  assert.deepEqual(values({ type: "OTCA_A", inputs: slots("seed", "rescale", "clip"), widgets_values: [...VALUES] }), left);
  assert.deepEqual(values({ type: "OTCA_A", widgets_values: [...VALUES], widgets_values_named: NAMED }), left);
  assert.deepEqual(values({ type: "OTCA_A", inputs: slots("seed", "clip"), widgets_values: left }), left);
});

test("values stay where no name is told, or the node is not ours", () => {
  assert.deepEqual(values({ type: "OTCA_A", widgets_values: [...VALUES] }), VALUES);
  assert.deepEqual(values({ type: "Other", widgets_values: [...VALUES], widgets_values_named: NAMED }), VALUES);
  assert.deepEqual(values({ type: "OTCA_A", widgets_values: { seed: 7 } }), { seed: 7 });
});

test("what is taken out is told with its value", () => {
  const node = { type: "OTCA_A", widgets_values: [...VALUES], widgets_values_named: NAMED };
  assert.deepEqual(leaveOutGone([node], DEFINITIONS), ["OTCA_A: rescale = 10"]);
  assert.deepEqual(leaveOutGone([{ type: "OTCA_A", widgets_values: [7, "fixed", "0, 1"] }], DEFINITIONS), []);
});
