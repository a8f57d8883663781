import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { setupSidebar } from "../../web/sidebar/sidebar.js";
import { openPage, settled } from "./page.mjs";

const POLL = 2000;

let comfy;
let tab;
let panel;

/** ComfyUI with a server whose runs the test sets; it answers at once, or says why not. */
function fakeComfy() {
  return {
    runs: [],
    machine: { memory: [], queue: { at_work: [], guest: false, waiting: [] } },
    settings: {},
    settingOf: (id) => comfy.settings[id],
    failure: null,
    asked: [],
    toasts: [],
    trainingsWord: async () => ({ given: true }),
    registerSidebar: (registered) => (tab = registered),
    onNodeResult: (callback) => (comfy.nodeResult = callback),
    onReconnected: (callback) => (comfy.reconnected = callback),
    toast: (...toast) => comfy.toasts.push(toast),
    routeUrl: (route) => route,
    async getJson(route) {
      comfy.asked.push(route);
      if (comfy.failure) throw new Error(comfy.failure);
      if (route === "/otca/machine") return structuredClone(comfy.machine);
      if (route === "/otca/runs") return { runs: structuredClone(comfy.runs) };
      const run = comfy.runs.find(({ id }) => route === `/otca/runs/${id}`);
      return { ...run, samples: [], pictures: [], warning: null };
    },
    async postJson(route) {
      comfy.asked.push(route);
      throw new Error("the run cannot be stopped");
    },
    getMetrics: async (id, after) => {
      comfy.asked.push(`metrics of ${id} after ${after}`);
      const { iteration } = comfy.runs.find((run) => run.id === id);
      const rows = Array.from({ length: iteration }, (_, index) => ({ iteration: index + 1 }));
      return { rows: rows.slice(after), evaluations: [] };
    },
  };
}

function run(id, more = {}) {
  const figures = { iteration: 1, total: 9, started: 1, updated: 1, rewrites: 0, has_lora: false, has_checkpoint: false };
  return { id, status: "running", place: "headless", error: null, ...figures, ...more };
}

beforeEach(async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  openPage();
  comfy = fakeComfy();
  setupSidebar(comfy);
});

afterEach(() => {
  tab.destroy();
  mock.timers.reset();
});

/** Opens the tab. What the user chose in an earlier test is none of these runs, so the newest is shown. */
async function open(...runs) {
  comfy.runs = runs;
  panel = document.createElement("div");
  document.body.append(panel);
  tab.render(panel);
  await settled();
}

async function poll(wait = POLL) {
  mock.timers.tick(wait);
  await settled();
}

const entries = () => panel.all("otca-run-entry");
const names = () => panel.all("otca-run-title").map(({ textContent }) => textContent);
const entryOf = (id) => entries().find(({ dataset }) => dataset.run === id);
const current = () => entries().flatMap((e) => (e.getAttribute("aria-current") === "true" ? [e.dataset.run] : []));
const head = () => panel.all("otca-run-name")[0].textContent;
const alerts = () => panel.all("otca-error").map(({ textContent }) => textContent).filter(Boolean);
const timesAsked = (route) => comfy.asked.filter((asked) => asked === route).length;
const pressRefresh = () => panel.all("otca-icon-button")[0].click();
const pressStop = () => panel.all("otca-button").find(({ textContent }) => textContent === "Stop").click();

test("a poll updates the entries that are there, and leaves focus and scrolling alone", async () => {
  await open(run("m1-b"), run("m1-a", { status: "stopped" }));
  const before = entries();
  const words = before[0].all("otca-status")[0];
  before[1].focus();
  comfy.runs = [run("m1-b", { iteration: 2, updated: 2 }), run("m1-a", { status: "running" })];
  await poll();
  assert.deepEqual(entries(), before);
  assert.equal(before[0].all("otca-status")[0], words);
  assert.match(before[0].textContent, /headless · 2 \/ 9/);
  assert.equal(before[0].all("otca-progress")[0].getAttribute("aria-valuenow"), "2");
  assert.equal(before[1].all("otca-status")[0].textContent, "running");
  assert.equal(document.activeElement, before[1]);
  assert.equal(before[1].focusedWith.length, 1, "the focus was never given anew");
});

test("entries come, go and change places; the focus follows without scrolling", async () => {
  await open(run("m1-b"), run("m1-a"));
  const [b, a] = entries();
  a.focus();
  comfy.runs = [run("m1-a"), run("m1-new"), run("m1-b")];
  await poll();
  assert.deepEqual(names(), ["m1-a", "m1-new", "m1-b"]);
  assert.equal(entryOf("m1-a"), a);
  assert.equal(entryOf("m1-b"), b);
  assert.equal(document.activeElement, a);
  assert.deepEqual(a.focusedWith.at(-1), { preventScroll: true });
  comfy.runs = [run("m1-b")];
  await poll();
  assert.deepEqual(names(), ["m1-b"]);
  assert.equal(document.activeElement, document.body);
});

test("a poll that fails keeps the list, says so, and is tried again", async () => {
  await open(run("m2-a"));
  comfy.failure = "the server is away";
  await poll();
  assert.deepEqual(names(), ["m2-a"]);
  assert.deepEqual(alerts(), ["the server is away"]);
  comfy.failure = null;
  comfy.runs = [run("m2-a", { iteration: 5, updated: 2 })];
  await poll();
  assert.deepEqual(alerts(), []);
  assert.match(entries()[0].textContent, /5 \/ 9/);
});

test("list and run change at once, since the page is laid out anew for each; a run that is read first does not hold the list", async () => {
  const { getMetrics } = comfy;
  let answer;
  comfy.getMetrics = (...asked) => new Promise((done) => (answer = () => done(getMetrics(...asked))));
  await open(run("m4-b"), run("m4-a"));
  assert.deepEqual(names(), ["m4-b", "m4-a"]);
  answer();
  await settled();
  comfy.runs = [run("m4-b", { iteration: 2, updated: 2 }), run("m4-a")];
  await poll();
  assert.match(entryOf("m4-b").textContent, /1 \/ 9/);
  answer();
  await settled();
  assert.match(entryOf("m4-b").textContent, /2 \/ 9/);
  assert.match(panel.all("otca-run-head")[0].textContent, /iteration 2 of 9/);
});

test("the list does not wait for the log", async () => {
  const { getJson } = comfy;
  await open(run("m4-b"), run("m4-a"));
  panel.all("otca-log")[0].parentNode.open = true;
  comfy.getJson = (route) => (route.includes("/log?") ? new Promise(() => {}) : getJson(route));
  comfy.runs = [run("m4-b", { iteration: 2, updated: 2 }), run("m4-a")];
  await poll();
  assert.match(entryOf("m4-b").textContent, /2 \/ 9/);
});

test("a run whose figures cannot be read leaves the list up to date", async () => {
  await open(run("m4-b"), run("m4-a"));
  comfy.getMetrics = async () => {
    throw new Error("metrics.jsonl is gone");
  };
  comfy.runs = [run("m4-b", { iteration: 2, updated: 2 }), run("m4-a")];
  await poll();
  assert.match(entryOf("m4-b").textContent, /2 \/ 9/);
  assert.deepEqual(alerts(), ["metrics.jsonl is gone"]);
});

test("a run that lives elsewhere is looked for until it is finished, since nobody here sees it begin again", async () => {
  const elsewhere = (status) => run("m3-a", { status, place: "remote" });
  await open(elsewhere("interrupted"), run("m3-b", { status: "stopped" }));
  comfy.runs = [elsewhere("running"), run("m3-b", { status: "stopped" })];
  await poll();
  assert.equal(entryOf("m3-a").all("otca-status")[0].textContent, "running");
  comfy.runs[0] = elsewhere("finished");
  await poll();
  comfy.asked = [];
  await poll();
  assert.equal(timesAsked("/otca/runs"), 0);
});

test("a first read that fails is tried again", async () => {
  comfy.failure = "the server is away";
  await open(run("m2-b"));
  assert.deepEqual(names(), []);
  comfy.failure = null;
  await poll();
  assert.deepEqual(names(), ["m2-b"]);
});

test("many iterations at once, and a connection that is back, are one read each", async () => {
  await open(run("m12-a", { status: "idle", place: "canvas" }));
  comfy.asked = [];
  for (let iteration = 0; iteration < 20; iteration++) comfy.nodeResult("run");
  await settled();
  assert.equal(timesAsked("/otca/runs"), 2, "the one under way, and one for all that came meanwhile");
  comfy.reconnected();
  await settled();
  assert.equal(timesAsked("/otca/runs"), 3);
});

test("a hidden page asks nothing until it is seen", async () => {
  await open(run("m12-b"));
  comfy.asked = [];
  document.visibilityState = "hidden";
  document.dispatchEvent(new Event("visibilitychange"));
  comfy.nodeResult("run");
  await poll();
  assert.deepEqual(comfy.asked, []);
  document.visibilityState = "visible";
  document.dispatchEvent(new Event("visibilitychange"));
  await settled();
  assert.equal(timesAsked("/otca/runs"), 1);
});

test("the newest run is shown until the user chooses one, and that one from then on", async () => {
  await open(run("l9-a"));
  assert.equal(head(), "l9-a");
  comfy.runs = [run("l9-b"), run("l9-a")];
  await poll();
  assert.equal(head(), "l9-b");
  assert.deepEqual(current(), ["l9-b"]);
  entryOf("l9-a").click();
  assert.deepEqual(current(), ["l9-a"], "at once, before anything is read");
  await settled();
  assert.equal(head(), "l9-a");
  comfy.runs = [run("l9-c"), run("l9-b"), run("l9-a")];
  await poll();
  assert.equal(head(), "l9-a");
  assert.deepEqual(current(), ["l9-a"]);
});

test("what an action refused stays until the next action, whatever is read meanwhile", async () => {
  await open(run("l9-d"));
  pressStop();
  await settled();
  assert.deepEqual(alerts(), ["the run cannot be stopped"]);
  await poll();
  comfy.failure = "the server is away";
  await poll();
  assert.deepEqual(alerts(), ["the run cannot be stopped", "the server is away"]);
  comfy.failure = null;
  await poll();
  assert.deepEqual(alerts(), ["the run cannot be stopped"]);
  entries()[0].click();
  await settled();
  assert.deepEqual(alerts(), []);
  pressStop();
  await settled();
  assert.deepEqual(alerts(), ["the run cannot be stopped"]);
  pressRefresh();
  assert.deepEqual(alerts(), []);
});

test("of a run whose metrics were written anew, all rows are read again", async () => {
  await open(run("l4-a", { iteration: 60 }));
  comfy.asked = [];
  comfy.runs = [run("l4-a", { iteration: 62, updated: 2 })];
  await poll();
  assert.equal(timesAsked("metrics of l4-a after 60"), 1);
  comfy.runs = [run("l4-a", { iteration: 64, updated: 3, rewrites: 1 })];
  await poll();
  assert.equal(timesAsked("metrics of l4-a after 0"), 1);
});

test("a run that is chosen takes the place of the one before at once: no button acts on that", async () => {
  await open(run("m9-b"), run("m9-a"));
  assert.equal(head(), "m9-b");
  const ask = comfy.getJson;
  const asked = [];
  comfy.getJson = (route) => new Promise((resolve) => asked.push(() => resolve(ask(route))));
  entryOf("m9-a").click();
  await settled();
  assert.deepEqual([head(), current()], ["", ["m9-a"]]);
  assert.ok(panel.all("otca-button").find(({ textContent }) => textContent === "Stop").hidden);
  comfy.getJson = ask;
  for (const answer of asked) answer();
  await settled();
  assert.equal(head(), "m9-a");
});
