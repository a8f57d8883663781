import assert from "node:assert/strict";
import test from "node:test";

import { diverging, isDark, mixed, sequential } from "../../web/lib/color.js";

test("mixed: evenly spaced stops, ends hold", () => {
  const stops = [[0, 0, 0], [10, 20, 30], [20, 20, 20]];
  assert.deepEqual(mixed(stops, 0.25), [5, 10, 15]);
  assert.deepEqual(mixed(stops, 0.75), [15, 20, 25]);
  assert.deepEqual(mixed(stops, 1), [20, 20, 20]);
  assert.deepEqual(mixed(stops, -3), [0, 0, 0]);
  assert.deepEqual(mixed(stops, 7), [20, 20, 20]);
});

test("sequential is viridis from 0 to the limit", () => {
  assert.equal(sequential(0, 2), "rgb(68, 1, 84)");
  assert.equal(sequential(2, 2), "rgb(253, 231, 37)");
});

test("diverging: purple below, the theme's paper at zero, orange above", () => {
  assert.equal(diverging(-0.5, 0.5, false), "rgb(45, 0, 75)");
  assert.equal(diverging(0, 0.5, false), "rgb(247, 247, 247)");
  assert.equal(diverging(0.5, 0.5, false), "rgb(127, 59, 8)");
  assert.equal(diverging(0, 0.5, true), "rgb(43, 43, 47)");
  assert.equal(diverging(0.5, 0.5, true), "rgb(255, 210, 138)");
});

test("isDark", () => {
  assert.equal(isDark([34, 34, 34]), true);
  assert.equal(isDark([201, 201, 201]), false);
  assert.equal(isDark([255, 255, 255]), false);
  assert.equal(isDark([0, 43, 54]), true); // solarized
});
