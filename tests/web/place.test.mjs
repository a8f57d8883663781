import assert from "node:assert/strict";
import test from "node:test";

import { besides, inColumns, jointOf } from "../../web/lib/place.js";

const node = (id, outputs, inputs = [], ours = false) => ({
  ...{ id, ours, outputs },
  inputs: inputs.map(([type, from]) => ({ type, origin: from ? { node: from[0], slot: from[1] } : null })),
});

const CHECKPOINT = node(1, ["MODEL", "CLIP", "VAE"]);
const SAMPLER = node(2, ["LATENT"], [["MODEL", [1, 0]], ["CONDITIONING", null]]);
const TEXT = node(3, ["CONDITIONING"], [["CLIP", [1, 1]]]);

test("a new node stands to the right of all others", () => {
  assert.deepEqual(besides([]), [0, 0]);
  assert.deepEqual(besides([[0, 50, 200, 900], [300, -40, 100, 10]]), [480, -40]);
});

test("a loader is put between the model and its sampler", () => {
  const graph = [CHECKPOINT, SAMPLER, TEXT];
  assert.deepEqual(jointOf(graph, "MODEL"), { from: { node: 1, slot: 0 }, moved: [{ node: 2, slot: 0 }] });
  assert.deepEqual(jointOf(graph, "CLIP"), { from: { node: 1, slot: 1 }, moved: [{ node: 3, slot: 0 }] });
});

test("and behind loaders that are there already", () => {
  const lora = node(4, ["MODEL", "CLIP"], [["MODEL", [1, 0]], ["CLIP", [1, 1]]]);
  const sampler = node(2, ["LATENT"], [["MODEL", [4, 0]]]);
  assert.deepEqual(jointOf([CHECKPOINT, lora, sampler], "MODEL"), { from: { node: 4, slot: 0 }, moved: [{ node: 2, slot: 0 }] });
});

test("what is trained, and the pictures of before, stay as they are", () => {
  const trainable = node(5, ["OTCA_MODEL"], [["MODEL", [1, 0]]], true);
  assert.deepEqual(jointOf([CHECKPOINT, SAMPLER, trainable], "MODEL"), { from: { node: 1, slot: 0 }, moved: [] });
});

test("without a model, or with two, nobody can say what is meant", () => {
  const tuned = node(6, ["MODEL"], [], true);
  assert.equal(jointOf([tuned, node(2, ["LATENT"], [["MODEL", [6, 0]]])], "MODEL"), null, "ours has the adapter already");
  assert.equal(jointOf([CHECKPOINT, node(7, ["MODEL"])], "MODEL"), null);
  assert.equal(jointOf([], "MODEL"), null);
});

test("columns: each node behind what it uses, short neighbours in one, what grows at its column's end, a preview where there is room", () => {
  const node = (id, uses, height, more = {}) => ({ id, uses, size: [id === "run" ? 480 : 200, height], ...more });
  const places = inColumns([
    node("run", ["update"], 500, { grows: true }),
    node("lora", ["update"], 80),
    node("update", ["pictures", "model"], 240),
    node("preview", ["pictures"], 300, { anywhere: true }),
    node("pictures", ["model", "reward"], 400),
    node("reward", [], 100),
    node("model", ["loader"], 330),
    node("loader", [], 500),
  ]);
  const x = (id) => places.get(id)[0];
  assert.ok(x("loader") < x("model") && x("model") === x("reward") && x("model") < x("pictures") && x("update") < x("run"));
  assert.equal(x("pictures"), x("update"), "490 and 330 units fit into one column");
  assert.deepEqual(places.get("update"), [x("pictures"), 490]);
  assert.deepEqual([places.get("lora"), places.get("run")], [[x("run"), 0], [x("run"), 170]], "below Save LoRA, where it may grow");
  assert.deepEqual([places.get("loader"), places.get("preview")], [[0, 0], [0, 590]], "of two that are alike the first");
});

test("columns end for a graph that uses itself", () => {
  assert.equal(inColumns([{ id: 1, size: [9, 9], uses: [2] }, { id: 2, size: [9, 9], uses: [1] }]).size, 2);
});
