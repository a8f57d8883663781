import assert from "node:assert/strict";
import test from "node:test";

import { answerOf, clicked, columnsFor, markOf, moved, newBallot, roughly } from "../../web/lib/ballot.js";

const after = (mode, count, ...clicks) =>
  clicks.reduce((ballot, [picture, second = false]) => clicked(ballot, picture, second), newBallot(count, mode));

test("best and worst make three levels, and one of them two", () => {
  assert.deepEqual(answerOf(after("pick", 4, [2], [0, true])), { kind: "order", order: [[2], [1, 3], [0]] });
  assert.deepEqual(answerOf(after("pick", 4, [2])), { kind: "order", order: [[2], [0, 1, 3]] });
  assert.deepEqual(answerOf(after("pick", 2, [1], [0, true])), { kind: "order", order: [[1], [0]] });
  assert.equal(answerOf(newBallot(4, "pick")), null);
});

test("the same click takes back, and a picture cannot be both best and worst", () => {
  assert.equal(answerOf(after("pick", 4, [2], [2])), null);
  assert.deepEqual(answerOf(after("pick", 3, [2], [2, true])), { kind: "order", order: [[0, 1], [2]] });
  assert.deepEqual(markOf(after("pick", 3, [2]), 2), { tone: "good", text: "best" });
});

test("thumbs make up to three levels, and none where all are alike", () => {
  assert.deepEqual(answerOf(after("thumbs", 4, [1], [3], [0, true])), { kind: "order", order: [[1, 3], [2], [0]] });
  assert.equal(answerOf(after("thumbs", 2, [0], [1])), null);
  assert.deepEqual(answerOf(after("thumbs", 2, [0], [0, true])), { kind: "order", order: [[1], [0]] });
});

test("an order is that of the clicks, and the rest is below, alike", () => {
  const ballot = after("order", 4, [2], [0]);
  assert.deepEqual(answerOf(ballot), { kind: "order", order: [[2], [0], [1, 3]] });
  assert.deepEqual(ballot.order, [2, 0, 1, 3]);
  assert.deepEqual(answerOf(clicked(ballot, 2, false)), { kind: "order", order: [[0], [1, 2, 3]] });
  assert.equal(answerOf(newBallot(4, "order")), null);
});

test("a picture that is dragged gets that place, and all before it count", () => {
  const ballot = moved(newBallot(4, "order"), 3, 1);
  assert.deepEqual(answerOf(ballot), { kind: "order", order: [[0], [3], [1, 2]] });
  assert.deepEqual(answerOf(moved(ballot, 3, 0)), { kind: "order", order: [[3], [0], [1, 2]] });
});

test("pictures are as large as the room allows", () => {
  assert.equal(columnsFor(6, 1300, 200, 1), 6);
  assert.equal(columnsFor(6, 1200, 700, 1), 3);
  assert.equal(columnsFor(4, 400, 1000, 1), 1);
  assert.equal(columnsFor(2, 1000, 500, 0.5), 2);
  assert.equal(columnsFor(1, 0, 0, 1), 1);
});

test("a time is said roughly", () => {
  assert.deepEqual([0.2, 7.4, 44, 100, 7000].map(roughly), ["about 1 s", "about 7 s", "about 40 s", "about 2 min", "about 2 h"]);
});
