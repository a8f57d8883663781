import assert from "node:assert/strict";
import test from "node:test";

import { chosenText, matching } from "../../web/widgets/combobox.js";

const runs = { values: ["old_otca", "otca", "moca", "my OTCA"], several: false };
const layers = { values: ["attn.to_q", "attn.to_k", "ff.net.2"], several: true };

test("all is offered until something is typed, whatever the box says", () => {
  assert.deepEqual(matching(runs, "otca", false), runs.values);
  assert.deepEqual(matching(runs, "", true), runs.values);
});

test("typing keeps what holds the text in any letters, beginnings first", () => {
  assert.deepEqual(matching(runs, "OT", true), ["otca", "old_otca", "my OTCA"]);
  assert.deepEqual(matching(runs, "x", true), []);
});

test("of a list with commas the last part is typed, and what is there is not offered again", () => {
  assert.deepEqual(matching(layers, "attn.to_q, attn", true), ["attn.to_k"]);
  assert.deepEqual(matching(layers, "attn.to_q, ", true), ["attn.to_k", "ff.net.2"]);
});

test("what is chosen replaces the text, or the part that was being typed", () => {
  assert.equal(chosenText(runs, "mo", "otca", true), "otca");
  assert.equal(chosenText(layers, "attn.to_q, ff", "ff.net.2", true), "attn.to_q, ff.net.2");
  assert.equal(chosenText(layers, "attn.to_q", "ff.net.2", false), "attn.to_q, ff.net.2");
  assert.equal(chosenText(layers, "", "ff.net.2", false), "ff.net.2");
});

test("a list is never longer than can be read", () => {
  const many = { values: Array.from({ length: 900 }, (_, number) => `run ${number}`), several: false };
  assert.equal(matching(many, "run", true).length, 200);
});
