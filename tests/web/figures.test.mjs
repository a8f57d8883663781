import assert from "node:assert/strict";
import test from "node:test";

import { GrowingFigures } from "../../web/lib/figures.js";

/** Rows that say which of their figures were looked at. */
function watched(rows, looks) {
  return rows.map(
    (row) =>
      new Proxy(row, {
        get: (target, name) => (looks.push(`${target.iteration} ${String(name)}`), target[name]),
        ownKeys: (target) => (looks.push(`${target.iteration} all`), Reflect.ownKeys(target)),
      }),
  );
}

test("columns grow with the rows, and what was read is not read again", () => {
  const looks = [];
  const rows = watched([{ iteration: 1, loss: 3 }, { iteration: 2, loss: 2, clip: 0 }, { iteration: 3, loss: 0, clip: 0.5 }], looks);
  const figures = new GrowingFigures();
  figures.update(rows.slice(0, 2));
  assert.deepEqual(figures.column("loss"), [3, 2]);
  assert.deepEqual([...figures.names], ["iteration", "loss", "clip"]);
  assert.equal(figures.isEverNonzero("clip"), false);
  looks.length = 0;
  figures.update(rows);
  assert.deepEqual(figures.column("loss"), [3, 2, 0]);
  assert.deepEqual(figures.column("clip"), [null, 0, 0.5]);
  assert.equal(figures.isEverNonzero("clip"), true);
  assert.deepEqual(looks.filter((look) => /^[12] (all|loss)/.test(look)), []);
});

test("a run that was written anew is read anew", () => {
  const figures = new GrowingFigures();
  figures.update([{ iteration: 1, loss: 3 }, { iteration: 2, loss: 2 }]);
  figures.column("loss");
  figures.update([{ iteration: 1, gain: 1 }, { iteration: 2, gain: 5 }, { iteration: 3, gain: 6 }]);
  assert.deepEqual(figures.column("gain"), [1, 5, 6]);
  assert.deepEqual(figures.column("loss"), [null, null, null]);
  assert.deepEqual([...figures.names], ["iteration", "gain"]);
  figures.update([]);
  assert.deepEqual(figures.column("gain"), []);
});
