import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { bypassed, trainsNothing, withoutBypassed, withoutRecord } from "../../web/lib/bypass.js";

const contract = JSON.parse(readFileSync(new URL("../nodes/contract.json", import.meta.url), "utf8"));
const entry = (name, inputs) => ({ class_type: `OTCA_${name}`, inputs, _meta: { title: name } });

/** The method's graph, as ComfyUI exports it; 20 is a node of numbers. */
const graph = () => ({
  3: entry("SDESampler", { model: ["1", 0], steps: 16, window_start: ["20", 0], window_length: ["5", 1] }),
  5: entry("MixGRPOWindow", { iteration: ["20", 0], steps: 16 }),
  8: entry("RewardStack", { trajectories: ["3", 0] }),
  9: entry("TCDWeights", { trajectories: ["3", 0], w_min: 0.5, floor: "affine" }),
  10: entry("MOCAFuse", { scores: ["8", 0], credit: ["9", 0], exploration: "literal", std_scope: "batch" }),
  11: entry("GRPOStep", { model: ["1", 0], trajectories: ["3", 0], advantages: ["10", 0] }),
  12: entry("TrainingRun", { model: ["11", 0], report: ["11", 1] }),
  13: { class_type: "PreviewImage", inputs: { images: ["12", 0] } },
  14: entry("SaveLoRA", { model: ["11", 0] }),
});
const nothing = () => undefined;

test("without its credit node all steps count alike", () => {
  const prompt = withoutBypassed(graph(), ["9"], nothing);
  assert.deepEqual(prompt[9], {
    class_type: "OTCA_UniformWeights",
    inputs: { trajectories: ["3", 0], timestep_fraction: 1, seed: 0 },
    _meta: { title: "TCDWeights (bypassed)" },
  });
  const { 9: _, ...others } = graph();
  const { 9: __, ...kept } = prompt;
  assert.deepEqual(kept, others);
});

test("without its fusion node the advantages are added up, over the same spread", () => {
  assert.deepEqual(withoutBypassed(graph(), ["9", "10"], nothing)[10].inputs, {
    scores: ["8", 0],
    credit: ["9", 0],
    mode: "weighted_advantages",
    std_scope: "batch",
  });
});

test("what stands in a node's place has all that its class requires", () => {
  for (const [name, definition] of Object.entries(contract)) {
    const inputs = Object.fromEntries(Object.keys(definition.inputs.required).map((input) => [input, ["3", 0]]));
    const prompt = { 1: { class_type: name, inputs }, 2: { class_type: "Other", inputs: { any: ["1", 0] } } };
    if (!bypassed([{ node: { mode: 4 }, id: "1", name }]).length || name === "OTCA_MixGRPOWindow") continue;
    const place = withoutBypassed(prompt, ["1"], nothing)[1];
    const { required, optional = {} } = contract[place.class_type].inputs;
    assert.deepEqual(Object.keys(place.inputs).sort(), Object.keys(required).sort(), name);
    assert.deepEqual(contract[place.class_type].outputs.credit, definition.outputs.credit);
    assert.deepEqual(contract[place.class_type].outputs.advantages, definition.outputs.advantages);
    for (const [input, value] of Object.entries(place.inputs)) {
      const [type] = { ...required, ...optional }[input];
      if (Array.isArray(type) && !Array.isArray(value)) assert.ok(type.includes(value), `${name}.${input}`);
    }
  }
});

test("every node that gives credit or fuses has a meaning, of ComfyUI's own or ours", () => {
  const lacking = Object.entries(contract).filter(([name, { inputs, outputs }]) => {
    const [first] = Object.values(outputs);
    const through = Object.values({ ...inputs.required, ...inputs.optional }).some(([type]) => type === first);
    return ["OTCA_CREDIT", "OTCA_ADVANTAGES"].includes(first) && !through && !bypassed([{ node: { mode: 4 }, id: "1", name }]).length;
  });
  assert.deepEqual(
    lacking.map(([name]) => name),
    ["OTCA_StepwiseGain"],
    "it is credit and fusion in one, and has no credit to go through",
  );
});

test("without its window a sampler has its own numbers, whatever is linked to the window", () => {
  const own = (id, input) => ({ 3: { window_start: 2, window_length: 0 } })[id]?.[input];
  const prompt = withoutBypassed(graph(), ["5"], own);
  assert.deepEqual(prompt[3].inputs, { model: ["1", 0], steps: 16, window_start: ["20", 0], window_length: 0 });
  assert.ok(!(5 in prompt));
});

test("what stands for nodes that nobody needs is not run", () => {
  const { 9: tcd, 10: moca } = graph();
  assert.deepEqual(withoutBypassed({ 9: tcd, 10: moca }, ["9", "10"], nothing), {});
});

test("without the update nothing is recorded, and what needs the record does not run", () => {
  const prompt = graph();
  delete prompt[11];
  delete prompt[12].inputs.report;
  for (const id of [12, 14]) prompt[id].inputs.model = ["1", 0]; // ComfyUI lets the model through
  assert.deepEqual(Object.keys(withoutRecord(prompt)), ["3", "5", "8", "9", "10", "14"]);
  assert.deepEqual(withoutRecord(graph()), graph());
});

test("which updates and nodes are bypassed", () => {
  const node = (name, mode) => ({ node: { mode }, id: "1", name });
  assert.ok(trainsNothing([node("OTCA_GRPOStep", 4)]) && trainsNothing([node("OTCA_MatchingStep", 4)]));
  assert.ok(!trainsNothing([node("OTCA_GRPOStep", 0), node("OTCA_TCDWeights", 4)]));
  const nodes = [node("OTCA_TCDWeights", 4), node("OTCA_TCDWeights", 0), node("OTCA_BestOfN", 4), node(undefined, 4)];
  assert.deepEqual(bypassed(nodes), [nodes[0]]);
});
