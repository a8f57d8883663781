import assert from "node:assert/strict";
import test, { beforeEach, mock } from "node:test";

import { poll } from "../../web/lib/poll.js";
import { settled } from "./page.mjs";

const EVERY = 2000;

/** A poll whose reads end when the test says so: reads.at(-1).resolve(goesOn) or .reject(error). */
function polled(options = {}) {
  const reads = [];
  const errors = [];
  const page = { seen: true };
  const read = () => new Promise((resolve, reject) => reads.push({ resolve, reject }));
  const failed = (error) => errors.push(error.message);
  return { reads, errors, page, ...poll(read, { every: EVERY, isSeen: () => page.seen, failed, ...options }) };
}

async function end(read, goesOn) {
  read.resolve(goesOn);
  await settled();
}

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout"] });
});

test("it reads on while something goes on, and then no more", async () => {
  const { reads, refresh } = polled();
  refresh();
  await end(reads[0], true);
  mock.timers.tick(EVERY - 1);
  assert.equal(reads.length, 1);
  mock.timers.tick(1);
  assert.equal(reads.length, 2);
  await end(reads[1], false);
  mock.timers.tick(100 * EVERY);
  assert.equal(reads.length, 2);
});

test("where something may begin by itself, it looks now and then while nothing goes on", async () => {
  const { reads, refresh } = polled({ quiet: 5 * EVERY });
  refresh();
  await end(reads[0], false);
  mock.timers.tick(5 * EVERY - 1);
  assert.equal(reads.length, 1);
  mock.timers.tick(1);
  await end(reads[1], true);
  mock.timers.tick(EVERY);
  assert.equal(reads.length, 3);
});

test("what is asked for during a read is one more read, for all who ask", async () => {
  const { reads, refresh } = polled();
  const done = [];
  refresh().then(() => done.push("first"));
  for (const who of ["second", "third", "fourth"]) refresh().then(() => done.push(who));
  assert.equal(reads.length, 1);
  await end(reads[0], false);
  assert.deepEqual(done, ["first"]);
  assert.equal(reads.length, 2);
  await end(reads[1], false);
  assert.deepEqual(done, ["first", "second", "third", "fourth"]);
  assert.equal(reads.length, 2);
});

test("asking sooner than the timer puts the timer off", async () => {
  const { reads, refresh } = polled();
  refresh();
  await end(reads[0], true);
  mock.timers.tick(EVERY / 2);
  refresh();
  await end(reads[1], true);
  mock.timers.tick(EVERY / 2);
  assert.equal(reads.length, 2);
  mock.timers.tick(EVERY / 2);
  assert.equal(reads.length, 3);
});

test("a read that fails is tried again, later each time, and a success starts anew", async () => {
  const { reads, errors, refresh } = polled();
  refresh();
  for (const wait of [2000, 4000, 8000, 16_000, 30_000, 30_000]) {
    reads.at(-1).reject(new Error(`before ${wait}`));
    await settled();
    const before = reads.length;
    mock.timers.tick(wait - 1);
    assert.equal(reads.length, before);
    mock.timers.tick(1);
    assert.equal(reads.length, before + 1);
  }
  assert.equal(errors.length, 6);
  assert.equal(errors[0], "before 2000");
  await end(reads.at(-1), true);
  mock.timers.tick(EVERY);
  reads.at(-1).reject(new Error("again"));
  await settled();
  const before = reads.length;
  mock.timers.tick(EVERY);
  assert.equal(reads.length, before + 1);
});

test("a hidden page reads nothing until it is seen and asks", async () => {
  const { reads, page, refresh } = polled();
  refresh();
  await end(reads[0], true);
  page.seen = false;
  mock.timers.tick(EVERY);
  await refresh();
  assert.equal(reads.length, 1);
  page.seen = true;
  refresh();
  assert.equal(reads.length, 2);
});

test("after its end it reads nothing, whatever was under way", async () => {
  const { reads, errors, refresh, end: stop } = polled();
  refresh();
  refresh();
  stop();
  reads[0].reject(new Error("too late"));
  await settled();
  mock.timers.tick(100 * EVERY);
  assert.equal(reads.length, 1);
  assert.deepEqual(errors, []);
});
