import assert from "node:assert/strict";
import { test } from "node:test";
import { lightLine, makeFit } from "../../web/lib/light.js";

const LIGHT = { needs: 19.62, phase: "the update", has: 25.77, device: "cuda:0", ram: 24.4, ram_has: 128, missing: [], text: "", streamed: 0, fix: [], after: 0, settings: [] };

test("a light says its figures, and what else there is to know", () => {
  const line = lightLine({ ...LIGHT, state: "fits" });
  assert.deepEqual([line.tone, line.text, line.button], ["good", "Fits: 19.6 of 25.8 GB on cuda:0, RAM 24.4 of 128 GB.", ""]);
  assert.match(line.more, /the update/);
  assert.equal(lightLine({ ...LIGHT, state: "tight", device: "" }).text, "Tight: 19.6 of 25.8 GB of RAM (no GPU).");
  assert.match(lightLine({ ...LIGHT, state: "tight", streamed: 5.07 }).text, /Slower: 5\.1 GB of the weights stay in RAM\.$/);
  assert.match(lightLine({ ...LIGHT, state: "fits", text: "512 x 512 is far" }).text, /Unusual size\.$/);
});

test("what makes it fit is a button, and without it that is said", () => {
  const state = "does not fit";
  assert.equal(lightLine({ ...LIGHT, state, fix: ["a", "b"], after: 9.96 }).button, "Make it fit: a, b (10.0 GB)");
  const streams = { ...LIGHT, state: "tight", streamed: 5, fix: ["a"], after: 9.96 };
  assert.equal(lightLine(streams).button, "Keep all on the GPU: a (10.0 GB)");
  assert.match(lightLine({ ...LIGHT, state }).text, /No setting makes it fit\.$/);
});

test("files that are missing, and a graph that is not whole, are no guess", () => {
  const files = { ...LIGHT, state: "missing", missing: ["a.safetensors"] };
  const missing = lightLine({ ...files, needs: 0 });
  assert.deepEqual([missing.tone, missing.more, missing.text], ["none", "a.safetensors", "Files are missing: see ComfyUI's list."]);
  assert.match(lightLine(files).text, /With them it needs about 20 GB; cuda:0 has 26 GB\.$/);
  assert.match(lightLine({ ...files, device: "" }).text, /about 20 GB of GPU memory; this machine has no GPU\.$/);
  assert.equal(lightLine({ ...LIGHT, state: "unknown", text: "two of it" }).more, "two of it");
});

test("a click sets what is not set yet, all at once, and says what was changed", () => {
  const node = { title: "Update", widgets: [{ name: "batch_size", value: 0 }, { name: "tile", value: 512 }] };
  let together = 0;
  const comfy = {
    changeTogether: (action) => action(together++),
    findNode: (id) => (id === "17" ? node : null),
    setWidget: (of, name, value) => (of.widgets.find((widget) => widget.name === name).value = value),
  };
  const settings = [
    { node: "17", input: "batch_size", value: 1 },
    { node: "17", input: "tile", value: 512 },
    { node: "99", input: "tile", value: 512 },
  ];
  assert.deepEqual(makeFit(comfy, { ...LIGHT, settings }), ["Update, batch_size: 0 → 1"]);
  assert.deepEqual([node.widgets[0].value, together], [1, 1]);
});
