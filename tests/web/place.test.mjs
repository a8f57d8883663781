import assert from "node:assert/strict";
import test from "node:test";

import { besides, jointOf } from "../../web/lib/place.js";

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
