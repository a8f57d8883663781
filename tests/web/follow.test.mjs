import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { tabTitle, titleOf } from "../../web/lib/tabtitle.js";
import { watcher } from "../../web/lib/watch.js";
import { settled } from "./page.mjs";

// ---- the tab's title ----

/** A page whose title ComfyUI writes by `theirs`, and others by setting it. */
function page(title) {
  const observers = new Set();
  const written = {
    observers,
    get title() {
      return title;
    },
    set title(text) {
      title = text;
      for (const observer of [...observers]) observer();
    },
  };
  return [written, (changed) => (observers.add(changed), () => observers.delete(changed))];
}

test("ours stands before each title of ComfyUI's, and is taken away from the last one", () => {
  const [tab, observe] = page("*one - ComfyUI");
  const ours = tabTitle(tab, observe);
  ours.show("[OTCA 4%]");
  assert.equal(tab.title, "[OTCA 4%] *one - ComfyUI");
  ours.show("[OTCA 5%]");
  assert.equal(tab.title, "[OTCA 5%] *one - ComfyUI");
  tab.title = "[12%][50%] KSampler";
  assert.equal(tab.title, "[OTCA 5%] [12%][50%] KSampler");
  ours.show(null);
  assert.equal(tab.title, "[12%][50%] KSampler");
  assert.equal(tab.observers.size, 0);
  tab.title = "two - ComfyUI";
  assert.equal(tab.title, "two - ComfyUI");
});

test("two that put a word before the title do not answer each other for ever", () => {
  const [tab, observe] = page("ComfyUI");
  const [ours, others] = [tabTitle(tab, observe), tabTitle(tab, observe)];
  ours.show("[A]");
  others.show("[B]");
  tab.title = "new";
  assert.deepEqual([...tab.title.split(" ")].sort(), ["[A]", "[B]", "new"]);
  ours.show(null);
  assert.equal(tab.title, "[B] new");
});

test("a run that trains says how far it is", () => {
  assert.equal(titleOf({ status: "running", iteration: 25, total: 300 }), "[OTCA 8%]");
  assert.equal(titleOf({ status: "running", iteration: 25, total: null }), "[OTCA 25]");
  assert.equal(titleOf({ status: "queued", iteration: 0, total: 3 }), "[OTCA …]");
  for (const status of ["finished", "idle", "failed"]) assert.equal(titleOf({ status, iteration: 3, total: 3 }), null);
  assert.equal(titleOf(undefined), null);
});

// ---- runs that are followed ----

let states;
let asked;
let ended;
let shown;
let wanted;
let watch;

const run = (id, status, iteration = 1) => ({ id, status, iteration, total: 9 });

beforeEach(() => {
  mock.timers.enable({ apis: ["setTimeout"] });
  [states, asked, ended, shown, wanted] = [{}, [], [], [], true];
  watch = watcher({
    async stateOf(id) {
      asked.push(id);
      if (!states[id]) throw Object.assign(new Error("gone"), { status: 404 });
      if (states[id] instanceof Error) throw states[id];
      return states[id];
    },
    wanted: () => wanted,
    ended: (which) => ended.push(`${which.id} ${which.status}`),
    followed: (which) => shown.push(which?.iteration),
    every: 10,
  });
});

afterEach(() => mock.timers.reset());

async function later() {
  mock.timers.tick(10);
  await settled();
}

test("only what trains is asked for, and its end is told once", async () => {
  states = { a: run("a", "running", 2) };
  watch.see([run("a", "running"), run("old", "finished")]);
  await later();
  states.a = run("a", "failed", 3);
  await later();
  await later();
  assert.deepEqual([asked, ended], [["a", "a"], ["a failed"]]);
});

test("between two prompts a run on the canvas has not ended; nor one that was deleted, or a server that is away", async () => {
  states = { b: new Error("away"), c: run("c", "idle") };
  watch.see([run("gone", "running"), run("b", "running"), run("c", "running")]);
  await later();
  assert.deepEqual(ended, []);
  asked.length = 0;
  states.b = run("b", "finished");
  await later();
  assert.deepEqual([asked, ended], [["b"], ["b finished"]]);
});

test("while somebody else reads, nothing is asked; and nothing at all where nobody wants to know", async () => {
  watch.see([run("a", "running")]);
  mock.timers.tick(9);
  watch.see([run("a", "running")]);
  mock.timers.tick(9);
  await settled();
  assert.deepEqual(asked, []);
  wanted = false;
  watch.see([run("a", "running")]);
  await later();
  assert.deepEqual(asked, []);
  wanted = true;
  states = { a: run("a", "running") };
  watch.again();
  await later();
  assert.deepEqual(asked, ["a"]);
});

test("the chosen run is told whenever it was read", () => {
  watch.follow("a");
  watch.see([run("a", "running", 4), run("b", "running", 7)]);
  watch.follow("b");
  watch.see([run("a", "running", 5), run("b", "finished", 9)]);
  assert.deepEqual(shown, [undefined, 4, 7, 9]);
});
