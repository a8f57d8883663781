import assert from "node:assert/strict";
import test from "node:test";

import { leaveOutGone, renew } from "../../web/lib/values.js";

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

test("a node of before is the one of today, with its values by their names and its links at their places", () => {
  const before = { OTCA_Old: { values: { method: "pcpo" }, inputs: ["decay", "scores", "model", "seed"] } };
  const input = {
    required: { model: ["OTCA_MODEL", {}], method: [["uniform", "pcpo"], { otca_before: before }] },
    optional: {
      seed: ["INT", { default: 0, control_after_generate: true }],
      decay: ["FLOAT", { default: 0.9 }],
      more: [["a", "b"], {}],
      extra: ["OTCA_EXTRA", {}],
      scores: ["OTCA_SCORES", {}],
    },
  };
  const definitions = { OTCA_New: { name: "OTCA_New", input }, OTCA_Other: { name: "OTCA_Other", input: {} } };
  const inputs = [{ name: "scores", link: 4 }, { name: "model", link: 5 }, { name: "decay", link: null, widget: { name: "decay" } }];
  const links = [[4, 1, 0, 9, 0, "OTCA_SCORES"], [5, 2, 0, 9, 1, "OTCA_MODEL"], { id: 6, target_slot: 7 }];
  const renewed = (node) => (renew({ nodes: [node], links }, definitions), node);
  const named = { decay: 0.5, seed: 5, control_after_generate: "fixed" };
  const node = renewed({ type: "OTCA_Old", inputs, widgets_values: [0.5, 5, "fixed"], widgets_values_named: named });
  assert.deepEqual([node.type, node.widgets_values], ["OTCA_New", ["pcpo", 5, "fixed", 0.5, "a"]]);
  assert.deepEqual(node.inputs.map(({ name }) => name), ["model", "extra", "scores"]);
  assert.deepEqual([links[0][4], links[1][4], links[2].target_slot], [2, 0, 7]);
  const inside = { id: 6, target_slot: 7 }; // of a subgraph
  renew({ nodes: [{ type: "OTCA_Old", inputs: [{ name: "scores", link: 6 }] }], links: [inside] }, definitions);
  assert.equal(inside.target_slot, 2);
  assert.deepEqual(renewed({ type: "OTCA_Old", widgets_values: [0.5, 5] }).widgets_values, ["pcpo", 5, "increment", 0.5, "a"]);
  const placed = { OTCA_Old: { values: {}, inputs: ["seed", "decay"] } }; // a number's control has a place of its own
  input.required.method[1].otca_before = placed;
  assert.deepEqual(renewed({ type: "OTCA_Old", widgets_values: [5, "fixed", 0.5] }).widgets_values, ["uniform", 5, "fixed", 0.5, "a"]);
  input.required.method[1].otca_before = before;
  assert.deepEqual(renewed({ type: "OTCA_Old" }).widgets_values, ["pcpo", 0, "increment", 0.9, "a"]);
  assert.deepEqual(renewed({ type: "Other", widgets_values: [1] }), { type: "Other", widgets_values: [1] });
});
