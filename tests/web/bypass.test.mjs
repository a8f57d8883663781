import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { bypassed, trainsNothing, withoutBypassed, withoutRecord } from "../../web/lib/bypass.js";

const contract = JSON.parse(readFileSync(new URL("../nodes/contract.json", import.meta.url), "utf8"));

/** {name: [type, settings]} of a class's inputs of a kind, which the contract has as "required seed" and so on. */
const inputsOf = (kind, name) =>
  Object.fromEntries(Object.entries(contract[name]).flatMap(([key, value]) => key.startsWith(`${kind} `) ? [[key.slice(kind.length + 1), value]] : []));
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

test("without Stepwise Gain, which is credit and fusion in one, uniform credit is fused as it would have fused its gains", () => {
  const gain = entry("StepwiseGain", { model: ["1", 0], trajectories: ["3", 0], scores: ["8", 0], tweedie_steps: 5, fusion: "weighted_sum" });
  const prompt = withoutBypassed({ 3: graph()[3], 8: graph()[8], 10: gain, 11: graph()[11] }, ["10"], nothing);
  const inputs = { trajectories: ["3", 0], timestep_fraction: 1, seed: 0 };
  assert.deepEqual([prompt["10_credit"].class_type, prompt["10_credit"].inputs], ["OTCA_UniformWeights", inputs]);
  assert.equal(prompt[10].class_type, "OTCA_WeightedFuse");
  assert.deepEqual(prompt[10].inputs, { scores: ["8", 0], credit: ["10_credit", 0], mode: "weighted_sum", std_scope: "group" });
  const alone = withoutBypassed({ 10: gain }, ["10"], nothing);
  assert.deepEqual(alone, {}, "neither of the two runs for nobody");
});

test("without Tuned Model stock nodes get what Make Trainable got", () => {
  const prompt = {
    1: { class_type: "UNETLoader", inputs: {} },
    2: entry("MakeTrainable", { model: ["1", 0], clip: ["4", 0], vae: ["5", 0] }),
    11: entry("GRPOStep", { model: ["2", 0] }),
    20: entry("TunedModel", { model: ["11", 0] }),
    21: { class_type: "KSampler", inputs: { model: ["20", 0], seed: 1 } },
    22: { class_type: "VAEDecode", inputs: { samples: ["21", 0], vae: ["20", 2] } },
    23: { class_type: "KSampler", inputs: { model: ["20", 3] } },
  };
  const made = withoutBypassed(prompt, ["20"], nothing);
  assert.deepEqual([made[21].inputs, made[22].inputs.vae], [{ model: ["1", 0], seed: 1 }, ["5", 0]]);
  assert.ok(!(23 in made) && !(20 in made), "there is no second model");
});

test("what shows a bypassed node's picture does not run, and the rest does", () => {
  const prompt = { ...graph(), 15: entry("BestOfN", { advantages: ["10", 0] }), 16: { class_type: "PreviewImage", inputs: { images: ["15", 1] } } };
  prompt[11].inputs.advantages = ["15", 0];
  const made = withoutBypassed(prompt, ["15"], nothing);
  assert.deepEqual(made[11].inputs.advantages, ["10", 0]);
  assert.ok(!(15 in made) && !(16 in made));
  assert.deepEqual(Object.keys(withoutBypassed(graph(), ["12"], nothing)), ["3", "5", "8", "9", "10", "11", "14"]);
});

test("one bypassed node behind another", () => {
  const prompt = {
    6: entry("CombineCredit", { trajectories: ["3", 0], credit_1: ["9", 0], credit_2: ["4", 0] }),
    7: entry("SpatialCredit", { trajectories: ["3", 0], credit: ["6", 0] }),
    10: entry("MOCAFuse", { scores: ["8", 0], credit: ["7", 0], std_scope: "group" }),
    11: entry("GRPOStep", { advantages: ["10", 0] }),
  };
  assert.deepEqual(withoutBypassed(prompt, ["6", "7", "10"], nothing)[10].inputs.credit, ["9", 0]);
});

test("what stands in a node's place has all that its class requires", () => {
  for (const [name, definition] of Object.entries(contract)) {
    const inputs = Object.fromEntries(
      Object.entries(inputsOf("required", name)).map(([input, [type]]) => [input, Array.isArray(type) ? type[0] : ["3", 0]]),
    );
    const user = Object.fromEntries(Object.keys(definition.outputs).map((output, slot) => [output, ["1", slot]]));
    const prompt = { 1: { class_type: name, inputs }, 2: { class_type: "Other", inputs: user } };
    if (!bypassed([{ node: { mode: 4 }, id: "1", name }]).length || !(definition.outputs.credit || definition.outputs.advantages)) continue;
    const made = withoutBypassed(prompt, ["1"], nothing);
    for (const [id, place] of Object.entries(made)) {
      if (id === "2") continue;
      const required = inputsOf("required", place.class_type), optional = inputsOf("optional", place.class_type);
      assert.deepEqual(Object.keys(place.inputs).sort(), Object.keys(required).sort(), name);
      for (const [input, value] of Object.entries(place.inputs)) {
        const [type] = { ...required, ...optional }[input];
        if (Array.isArray(type) && !Array.isArray(value)) assert.ok(type.includes(value), `${name}.${input}`);
      }
    }
    if (!made[1]) continue;
    assert.deepEqual(Object.values(contract[made[1].class_type].outputs), Object.values(definition.outputs), name);
  }
});

test("every node that gives credit or fuses has a meaning, of ComfyUI's own or ours", () => {
  const lacking = Object.entries(contract).filter(([name, { outputs }]) => {
    const [first] = Object.values(outputs);
    const through = Object.values({ ...inputsOf("required", name), ...inputsOf("optional", name) }).some(([type]) => type === first);
    return ["OTCA_CREDIT", "OTCA_ADVANTAGES"].includes(first) && !through && !bypassed([{ node: { mode: 4 }, id: "1", name }]).length;
  });
  assert.deepEqual(lacking, []);
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
  const nodes = [node("OTCA_TCDWeights", 4), node("OTCA_TCDWeights", 0), node("OTCA_RewardStack", 4), node(undefined, 4)];
  assert.deepEqual(bypassed(nodes), [nodes[0]]);
});
