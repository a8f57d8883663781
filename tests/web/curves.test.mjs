import assert from "node:assert/strict";
import test from "node:test";

import * as curves from "../../web/lib/curves.js";

test("extent passes over what is not known", () => {
  assert.deepEqual(curves.extent([3, null, -1, NaN, 2]), [-1, 3]);
  assert.equal(curves.extent([null, undefined]), null);
});

test("a point that stands alone is a dot where it is, not a line", () => {
  const same = (value) => value;
  assert.equal(curves.dotPath([[3, 4], [5, 6.25]], same, same), "M3.0,4.0h0M5.0,6.3h0");
  assert.equal(curves.dotPath([], same, same), "");
});

test("padding gives a single value room, and stops at zero", () => {
  assert.deepEqual(curves.padded([-10, 10]), [-11, 11]);
  assert.deepEqual(curves.padded([0, 10]), [0, 10.5]);
  assert.deepEqual(curves.padded([5, 5]), [4.5, 5.5]);
  assert.deepEqual(curves.padded([0, 0]), [0, 1]);
});

test("scale is linear, and a domain of one point goes to the start", () => {
  assert.equal(curves.scale([0, 10], [100, 200])(2.5), 125);
  assert.equal(curves.scale([0, 10], [200, 100])(2.5), 175);
  assert.equal(curves.scale([4, 4], [7, 9])(4), 7);
});

test("ticks are multiples of 1, 2 or 5", () => {
  assert.deepEqual(curves.niceTicks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(curves.niceTicks(0.912, 0.947, 4), [0.92, 0.93, 0.94]);
  assert.deepEqual(curves.niceTicks(-0.3, 0.3, 3), [-0.2, 0, 0.2]);
  assert.deepEqual(curves.niceTicks(5, 5, 4), [5]);
});

test("ticks of iterations are whole", () => {
  assert.deepEqual(curves.wholeTicks(1, 4, 8), [1, 2, 3, 4]);
  assert.deepEqual(curves.wholeTicks(0, 10000, 3), [0, 5000, 10000]);
  assert.deepEqual(curves.wholeTicks(1, 1, 4), [1]);
});

test("the running mean spans a tenth of what was known, as in rewards.png", () => {
  const twenty = Array.from({ length: 20 }, (_, index) => index);
  const means = curves.runningMean(twenty); // window 2
  assert.deepEqual(means.slice(0, 4), [0, 0.5, 1.5, 2.5]);
  assert.equal(means[19], 18.5);
});

test("the running mean leaves out what is not known, and gaps stay gaps", () => {
  assert.deepEqual(curves.runningMean([1, null, 3]), [1, null, 3]); // window 1
  const values = [2, null, null, ...new Array(17).fill(4)]; // window 2
  assert.deepEqual(curves.runningMean(values).slice(0, 5), [2, 2, null, 4, 4]);
});

test("decimation keeps first, lowest, highest and last of each column", () => {
  const xs = Array.from({ length: 12 }, (_, index) => index);
  const ys = [5, 9, 1, 6, 4, 5, 7, 7, 7, 7, 7, 2];
  // Two columns over [0, 12]: 0…5 and 6…11.
  assert.deepEqual(curves.decimate(xs, ys, [0, 12], 2), [
    [0, 5],
    [1, 9],
    [2, 1],
    [5, 5],
    [6, 7],
    [11, 2],
  ]);
});

test("decimation leaves short series alone and turns unknown stretches into gaps", () => {
  assert.deepEqual(curves.decimate([1, 2, 3], [1, null, 3], [1, 3], 300), [[1, 1], null, [3, 3]]);
  const xs = Array.from({ length: 9 }, (_, index) => index);
  const ys = [1, 1, 1, null, null, null, 2, 2, 2];
  assert.deepEqual(curves.decimate(xs, ys, [0, 9], 3), [[0, 1], [2, 1], null, [6, 2], [8, 2]]);
});

test("decimating 10,000 iterations keeps the one spike", () => {
  const xs = Array.from({ length: 10000 }, (_, index) => index + 1);
  const ys = xs.map((x) => (x === 4321 ? 99 : 1));
  const kept = curves.decimate(xs, ys, [1, 10000], 300);
  assert.ok(kept.length <= 4 * 301, `${kept.length} points`);
  assert.ok(kept.some(([x, y]) => x === 4321 && y === 99));
});

test("a path lifts the pen at a gap", () => {
  const same = (value) => value;
  assert.equal(curves.linePath([[0, 1], [2, 3], null, [4, 5]], same, same), "M0.0,1.0L2.0,3.0M4.0,5.0");
  assert.deepEqual(curves.lonePoints([[0, 1], [2, 3], null, [4, 5]]), [[4, 5]]);
});

test("bins average equal stretches, and each iteration is a bin where there is room", () => {
  assert.deepEqual(curves.binMeans([1, 2, 3, 4], [1, 3, 5, null], 2), { edges: [0.5, 2.5, 4.5], means: [2, 5] });
  assert.deepEqual(curves.binMeans([1, 2], [7, null], 100), { edges: [0.5, 1.5, 2.5], means: [7, null] });
});

test("the nearest of ascending values", () => {
  assert.equal(curves.nearestIndex([1, 5, 9], 2.9), 0);
  assert.equal(curves.nearestIndex([1, 5, 9], 3.1), 1);
  assert.equal(curves.nearestIndex([1, 5, 9], -7), 0);
  assert.equal(curves.nearestIndex([1, 5, 9], 70), 2);
});

test("error bars reach one standard error up and down", () => {
  const evaluations = [
    { iteration: 0, rewards: { a: { mean: 10, standard_error: 2 } } },
    { iteration: 5, rewards: { a: { mean: null, standard_error: null } } },
    { iteration: 9, rewards: { a: { mean: 12, standard_error: null }, b: { mean: 1, standard_error: 1 } } },
  ];
  assert.deepEqual(curves.errorBars(evaluations, "a"), [
    { iteration: 0, mean: 10, error: 2, low: 8, high: 12 },
    { iteration: 9, mean: 12, error: 0, low: 12, high: 12 },
  ]);
});

test("tick labels keep all digits", () => {
  assert.equal(curves.tickLabel(10002), "10002");
  assert.equal(curves.tickLabel(-0.2), "\u22120.2");
  assert.equal(curves.tickLabel(0.0005), "5e\u22124");
  assert.equal(curves.tickLabel(2e6), "2e6");
  assert.equal(curves.tickLabel(0), "0");
});

test("what is measured now and then is one line, and what is always measured keeps its gaps", () => {
  const [a, b] = [
    [5, NaN, NaN, null, 7],
    [null, NaN, NaN, NaN, 9],
  ];
  assert.deepEqual(curves.joined([1, 2, 3, 4, 5], [a, b]), [[1, 5], [5, 7], [null, 9]]);
  const often = [1, NaN, 3, 4];
  assert.deepEqual(curves.joined([1, 2, 3, 4], [often]), [[1, 2, 3, 4], often]);
});
