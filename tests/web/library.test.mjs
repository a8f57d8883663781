import assert from "node:assert/strict";
import test from "node:test";

import { EVERYTHING, fileSize, isNarrow, listed } from "../../web/lib/library.js";

const RUNS = [
  { id: "run-10", status: "running", score: null, notes: "w_min 0.5" },
  { id: "Run-9", status: "finished", score: 0.25, notes: "" },
  { id: "alpha", status: "finished", score: 1.5, notes: "the GOOD one" },
  { id: "beta", status: "failed", score: null, notes: "" },
];
const ids = (query) => listed(RUNS, { ...EVERYTHING, ...query }).map(({ id }) => id);

test("all runs, as the server lists them", () => {
  assert.deepEqual(ids({}), ["run-10", "Run-9", "alpha", "beta"]);
  assert.equal(isNarrow(EVERYTHING), false);
});

test("every word is looked for in names and notes, in either case", () => {
  assert.deepEqual(ids({ text: " RUN " }), ["run-10", "Run-9"]);
  assert.deepEqual(ids({ text: "good ALPHA" }), ["alpha"]);
  assert.deepEqual(ids({ text: "0.5" }), ["run-10"]);
  assert.deepEqual(ids({ text: "good beta" }), []);
});

test("status and words narrow the list together", () => {
  assert.deepEqual(ids({ status: "finished" }), ["Run-9", "alpha"]);
  assert.deepEqual(ids({ status: "finished", text: "good" }), ["alpha"]);
});

test("names are sorted as people count, scores with the best first and none last", () => {
  assert.deepEqual(ids({ sort: "name" }), ["alpha", "beta", "Run-9", "run-10"]);
  assert.deepEqual(ids({ sort: "score" }), ["alpha", "Run-9", "run-10", "beta"]);
  assert.deepEqual(RUNS.map(({ id }) => id), ["run-10", "Run-9", "alpha", "beta"], "what is sorted is a copy");
});

test("sizes as file managers say them", () => {
  const sizes = [0, 999, 1000, 1250, 9999, 123456, 5.2e9, 7e15];
  assert.deepEqual(sizes.map(fileSize), ["0 B", "999 B", "1 kB", "1.3 kB", "10 kB", "123 kB", "5.2 GB", "7000 TB"]);
});
