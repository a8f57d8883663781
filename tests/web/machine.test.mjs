import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { memoryLine, queueEntries } from "../../web/lib/machine.js";
import { machinePart } from "../../web/sidebar/machine.js";
import { openPage, settled } from "./page.mjs";

const GB = 1024 ** 3;

test("memory is told in gigabytes, and ours only where it is known", () => {
  const line = memoryLine({ name: "cuda:0", used: 18 * GB, total: 24 * GB, ours: 6 * GB });
  assert.deepEqual(line, { label: "cuda:0", text: "18 of 24 GB · OTCA 6.0", used: 0.75, ours: 0.25 });
  assert.equal(memoryLine({ name: "", used: 1.5 * GB, total: 8 * GB, ours: null }).text, "1.5 of 8.0 GB");
  assert.equal(memoryLine({ name: "", used: 1, total: 2, ours: 9 }).ours, 0.5, "weights that have just left");
  assert.equal(memoryLine({ name: "", used: 0, total: 0, ours: null }).used, 0);
});

test("each that waits says for whom", () => {
  const waiting = [
    { id: "b", iterations: 300 },
    { id: "c", iterations: 20 },
  ];
  const texts = (queue) => queueEntries({ guest: false, waiting, ...queue }).map(({ text }) => text);
  assert.deepEqual(texts({ at_work: ["a"] }), ["300 iterations · begins when a ends", "20 iterations · begins after b"]);
  assert.match(texts({ at_work: ["a", "z"] })[0], /begins when one of these ends: a, z$/);
  assert.match(texts({ at_work: [], guest: true })[0], /pictures of a prompt/);
  assert.match(texts({ at_work: [] })[0], /in a moment/);
  assert.deepEqual(queueEntries({ at_work: [], guest: false, waiting }).map(({ first }) => first), [true, false]);
});

let asked;
let changes;
let machine;
let part;
const done = [];

beforeEach(() => {
  mock.timers.enable({ apis: ["setTimeout"] });
  openPage();
  [asked, changes] = [0, 0];
  done.length = 0;
  machine = { memory: [{ name: "", used: GB, total: 4 * GB, ours: null }], queue: { at_work: [], guest: false, waiting: [] } };
  const comfy = { getJson: async () => ((asked += 1), structuredClone(machine)) };
  const told = (action) => (id) => done.push([action, id]);
  part = machinePart(comfy, { choose: told("choose"), moveUp: told("up"), takeOut: told("out"), changed: () => (changes += 1) });
});

afterEach(() => {
  part.dispose();
  mock.timers.reset();
});

async function poll() {
  mock.timers.tick(2000);
  await settled();
}

test("a hidden page asks nothing, and one that is closed never again", async () => {
  await settled();
  assert.equal(asked, 1);
  document.visibilityState = "hidden";
  await poll();
  await poll();
  assert.equal(asked, 1);
  document.visibilityState = "visible";
  document.dispatchEvent(new Event("visibilitychange"));
  await settled();
  assert.equal(asked, 2);
  part.dispose();
  await poll();
  assert.equal(asked, 2);
});

test("the queue is there while somebody waits, and its buttons name their run", async () => {
  await settled();
  assert.equal(part.queue.hidden, true);
  machine.queue = { at_work: ["a"], guest: false, waiting: [{ id: "b", iterations: 3 }, { id: "c", iterations: 4 }] };
  await poll();
  assert.equal(part.queue.hidden, false);
  const buttons = part.queue.all("otca-icon-button");
  assert.deepEqual(
    buttons.map((each) => each.getAttribute("aria-label")),
    ["Move b up", "Take b out of the queue", "Move c up", "Take c out of the queue"],
  );
  assert.deepEqual(buttons.map((each) => Boolean(each.disabled)), [true, false, false, false]);
  buttons[2].click();
  buttons[1].click();
  part.queue.all("otca-queue-name")[1].click();
  assert.deepEqual(done, [["up", "c"], ["out", "b"], ["choose", "c"]]);
  machine.queue.waiting.reverse();
  await poll();
  assert.deepEqual(part.queue.all("otca-queue-name").map(({ textContent }) => textContent), ["c", "b"]);
  assert.equal(changes, 1, "that somebody waits; in which order is not the runs' list's business");
  machine.queue.waiting.pop();
  await poll();
  assert.equal(changes, 2);
});
