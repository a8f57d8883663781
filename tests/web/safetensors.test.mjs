import assert from "node:assert/strict";
import test from "node:test";

import { SafetensorsError, headerLength, readWorkflow, workflowIn } from "../../web/lib/safetensors.js";

/** A file as the format has it: length of the header (little endian, 64 bits), header, tensors. */
function file(header, tensors = 16) {
  const text = new TextEncoder().encode(header);
  const length = new DataView(new ArrayBuffer(8));
  length.setBigUint64(0, BigInt(text.length), true);
  return new Blob([length.buffer, text, new Uint8Array(tensors)]);
}

const withMetadata = (metadata) =>
  file(JSON.stringify({ __metadata__: metadata, lora: { dtype: "F32", shape: [4], data_offsets: [0, 16] } }));
const refused = (pattern) => (error) => error instanceof SafetensorsError && pattern.test(error.message);

test("the canvas's own workflow comes before the API format", async () => {
  const both = { workflow: '{"nodes": [1]}', prompt: '{"1": {"class_type": "A"}}' };
  assert.deepEqual(await readWorkflow(withMetadata(both)), { workflow: { nodes: [1] } });
  assert.deepEqual(await readWorkflow(withMetadata({ prompt: both.prompt })), { prompt: { 1: { class_type: "A" } } });
});

test("an empty workflow gives way to the API format", () => {
  assert.deepEqual(workflowIn('{"__metadata__": {"workflow": "null", "prompt": "{\\"1\\": {}}"}}'), {
    prompt: { 1: {} },
  });
});

test("the length is little endian", () => {
  assert.equal(headerLength(new Uint8Array([0x10, 0x01, 0, 0, 0, 0, 0, 0]).buffer, 1000), 272);
});

test("what is no safetensors file is refused with the reason", async () => {
  await assert.rejects(readWorkflow(new Blob(["abc"])), refused(/too short/));
  await assert.rejects(readWorkflow(new Blob(["<!doctype html><html></html>"])), refused(/not a .safetensors file/));
  await assert.rejects(readWorkflow(file("no json", 0)), refused(/not JSON/));
  assert.throws(() => headerLength(new Uint8Array([0x10, 0, 0, 0, 0, 0, 0, 0]).buffer, 20), refused(/cut off/));
});

test("a file without a workflow says who writes one", async () => {
  await assert.rejects(readWorkflow(withMetadata({ format: "pt" })), refused(/carries no workflow/));
  await assert.rejects(readWorkflow(file("{}")), refused(/carries no workflow/));
  await assert.rejects(readWorkflow(withMetadata({ workflow: "{" })), refused(/workflow is broken/));
});
