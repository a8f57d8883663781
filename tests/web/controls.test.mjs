import assert from "node:assert/strict";
import test from "node:test";

import { areHeld, heldValue, releasedValue } from "../../web/lib/controls.js";

test("samples are held when no control moves on", () => {
  assert.equal(areHeld(["fixed", "fixed"]), true);
  assert.equal(areHeld(["fixed", "increment"]), false);
  assert.equal(areHeld([]), false);
});

test("what moved on after it was queued is stepped back", () => {
  assert.equal(heldValue("increment", 4, 5), 4);
  assert.equal(heldValue("decrement", 4, 3), 4);
  assert.equal(heldValue("randomize", 4, 9137), 4);
});

test("nothing is stepped back that did not move, or that the user typed", () => {
  assert.equal(heldValue("increment", undefined, 0), 0);
  assert.equal(heldValue("randomize", undefined, 7), 7);
  assert.equal(heldValue("increment", 4, 4), 4);
  assert.equal(heldValue("increment", 4, 100), 100);
  assert.equal(heldValue("increment", 19, 20, 2), 2, "those after it were cancelled");
  assert.equal(heldValue("fixed", 4, 5), 5);
});

test("released values go on after the last one that was queued", () => {
  assert.equal(releasedValue(4, 4), 5);
  assert.equal(releasedValue(4, 100), 100);
  assert.equal(releasedValue(undefined, 0), 0);
});
