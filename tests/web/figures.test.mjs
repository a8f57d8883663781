import assert from "node:assert/strict";
import test from "node:test";

import { GrowingFigures } from "../../web/lib/figures.js";

const column = (figures, name) => [...figures.column(name)];

test("columns grow with the rows; what a row lacks, or has as null, is not a number", () => {
  const figures = new GrowingFigures();
  figures.append([{ iteration: 1, loss: 3 }, { iteration: 2, loss: null, clip: 0 }]);
  assert.deepEqual(column(figures, "loss"), [3, NaN]);
  assert.deepEqual(figures.names, ["iteration", "loss", "clip"]);
  assert.equal(figures.isEverNonzero("clip"), false);
  figures.append([{ iteration: 4, clip: 0.5, late: 7 }]);
  assert.deepEqual(column(figures, "iteration"), [1, 2, 4]);
  assert.deepEqual(column(figures, "loss"), [3, NaN, NaN]);
  assert.deepEqual(column(figures, "clip"), [NaN, 0, 0.5]);
  assert.deepEqual(column(figures, "late"), [NaN, NaN, 7]);
  assert.deepEqual(column(figures, "unknown"), [NaN, NaN, NaN]);
  assert.equal(figures.isEverNonzero("clip"), true);
});

test("rows that were read again are not counted twice", () => {
  const figures = new GrowingFigures();
  figures.append([{ iteration: 1, loss: 3 }, { iteration: 2, loss: 2 }]);
  figures.append([{ iteration: 2, loss: 9 }, { iteration: 3, loss: 1 }]);
  assert.deepEqual(column(figures, "loss"), [3, 2, 1]);
});

test("more rows than there was room for", () => {
  const figures = new GrowingFigures();
  const rows = Array.from({ length: 1000 }, (_, index) => ({ iteration: index + 1, ...(index % 3 && { loss: index }) }));
  figures.append(rows.slice(0, 64));
  figures.append(rows.slice(64));
  assert.equal(figures.length, 1000);
  assert.deepEqual(column(figures, "iteration"), rows.map(({ iteration }) => iteration));
  assert.deepEqual(column(figures, "loss"), rows.map(({ loss }) => loss ?? NaN));
});
