import assert from "node:assert/strict";
import test from "node:test";

import { count, fileSize, fixed, percent, signed, significant, wrapped } from "../../web/lib/format.js";

test("fixed and signed", () => {
  assert.equal(fixed(1.005), "1.00");
  assert.equal(fixed(-0.314), "−0.31");
  assert.equal(fixed(-0.001), "0.00");
  assert.equal(fixed(null), "–");
  assert.equal(signed(0.5), "+0.50");
  assert.equal(signed(-0.5, 1), "−0.5");
  assert.equal(signed(0.001), "0.00");
  assert.equal(signed(0), "0.00");
  assert.equal(signed(null), "–");
});

test("significant digits", () => {
  assert.equal(significant(0.012345), "0.0123");
  assert.equal(significant(-0.5), "−0.5");
  assert.equal(significant(0), "0");
  assert.equal(significant(-0.0000123), "−1.2e−5");
  assert.equal(significant(null), "–");
});

test("percent and count", () => {
  assert.equal(percent(0.525), "53 %");
  assert.equal(percent(0.004), "<1 %");
  assert.equal(percent(0), "0 %");
  assert.equal(count(1, "{count} step", "{count} steps"), "1 step");
  assert.equal(count(7, "{count} step", "{count} steps"), "7 steps");
});

test("wrapped: as many words a line as fit, the last line says that there is more", () => {
  const measure = (text) => text.length;
  assert.deepEqual(wrapped("a red circle on blue", 8, 5, measure), ["a red", "circle", "on blue"]);
  assert.deepEqual(wrapped("a red circle on blue", 8, 2, measure), ["a red", "circle…"]);
  assert.deepEqual(wrapped("incomprehensible", 8, 2, measure), ["incompr…"]);
  assert.deepEqual(wrapped("", 8, 2, measure), []);
});

test("the size of a file", () => {
  assert.equal(fileSize(512), "512 bytes");
  assert.equal(fileSize(24_843_525), "24.8 MB");
  assert.equal(fileSize(999_600), "1.00 MB");
  assert.equal(fileSize(23.8e9), "23.8 GB");
});
