import assert from "node:assert/strict";
import test, { beforeEach, mock } from "node:test";

import { keeping } from "../../web/sidebar/keeping.js";
import { runList } from "../../web/sidebar/runlist.js";
import { openPage, settled } from "./page.mjs";

let asked;
let list;

const run = (id, more = {}) => ({
  ...{ id, status: "finished", place: "headless", iteration: 3, total: 3, score: null, notes: "" },
  ...more,
});

beforeEach(() => {
  openPage();
  asked = [];
  list = runList({
    choose: (id) => asked.push(["choose", id]),
    compare: (runs) => asked.push(["compare", ...runs.map(({ id }) => id)]),
  });
});

const part = (name, index = 0) => list.element.all(name)[index];
const ids = () => list.element.all("otca-run-title").map(({ textContent }) => textContent);
const ask = (index, type, value) => {
  const field = list.element.all("otca-input")[index];
  field.value = value;
  field.dispatchEvent(new Event(type));
};
const click = (element, more = {}) => element.dispatchEvent(Object.assign(new Event("click"), more));
const key = (element, key, more = {}) => element.dispatchEvent(Object.assign(new Event("keydown", { cancelable: true }), { key, ...more }));
const bar = () => part("otca-compare-bar");

test("one run needs no filter, and two are compared by box, Ctrl-click or Ctrl+Space", () => {
  list.update([run("a")], undefined);
  assert.equal(part("otca-list-tools").hidden, true);
  list.update([run("c"), run("b"), run("a")], undefined);
  assert.equal(part("otca-list-tools").hidden, false);
  assert.equal(bar().hidden, true);
  click(part("otca-run-entry", 0), { ctrlKey: true });
  assert.match(bar().textContent, /another run/);
  assert.equal(part("otca-choose", 0).checked, true);
  key(part("otca-run-entry", 2), " ", { ctrlKey: true });
  part("otca-choose", 1).dispatchEvent(new Event("change"));
  const [go] = bar().all("otca-primary");
  assert.match(go.textContent, /Compare 3 runs/);
  go.click();
  click(part("otca-run-entry", 1));
  assert.deepEqual(asked, [
    ["compare", "c", "b", "a"],
    ["choose", "b"],
  ]);
  list.update([run("b"), run("a")], undefined);
  assert.match(bar().all("otca-primary")[0].textContent, /Compare 2 runs/, "a run that is gone is not compared");
});

test("more runs than there are colours are not compared", () => {
  const many = Array.from({ length: 9 }, (_, index) => run(`r${index}`));
  list.update(many, undefined);
  for (let index = 0; index < 9; index++) click(part("otca-run-entry", index), { metaKey: true });
  assert.match(bar().textContent, /At most 8/);
  assert.equal(bar().all("otca-primary")[0].hidden, true);
});

test("the list is narrowed and sorted, says so, and is shown whole again", () => {
  list.update([run("c", { score: 1 }), run("b", { notes: "good" }), run("a", { score: 2 })], undefined);
  ask(2, "change", "score");
  assert.deepEqual(ids(), ["a", "c", "b"]);
  assert.match(part("otca-run-entry", 0).textContent, /score 2/);
  ask(0, "input", "good");
  assert.deepEqual(ids(), ["b"]);
  assert.match(part("otca-found").textContent, /1 of 3 runs/);
  part("otca-found").all("otca-button")[0].click();
  assert.deepEqual(ids(), ["c", "b", "a"]);
});

test("arrow keys go from run to run, and Tab enters the list at one run alone", () => {
  const runs = [run("c"), run("b"), run("a")];
  list.update(runs, runs[1]);
  const stops = () => list.element.all("otca-run-entry").map((entry) => entry.getAttribute("tabindex"));
  assert.deepEqual(stops(), ["-1", "0", "-1"]);
  key(part("otca-run-entry", 1), "ArrowDown");
  assert.equal(document.activeElement.dataset.run, "a");
  key(document.activeElement, "Home");
  assert.equal(document.activeElement.dataset.run, "c");
  key(document.activeElement, "ArrowUp");
  assert.equal(document.activeElement.dataset.run, "c");
});

test("an entry that shows the same is left alone", () => {
  list.update([run("b"), run("a")], undefined);
  const written = [];
  for (const entry of list.element.all("otca-run-entry")) {
    const set = entry.setAttribute.bind(entry);
    entry.setAttribute = (...attribute) => (written.push(entry.dataset.run), set(...attribute));
  }
  list.update([run("b"), run("a", { iteration: 4 })], undefined);
  assert.deepEqual([...new Set(written)], ["a"]);
});

test("notes are saved a moment after the last key, and when the run is left", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const posts = [];
  let failure = null;
  const comfy = {
    async postJson(route, body) {
      posts.push([route, body.notes]);
      if (failure) throw new Error(failure);
    },
  };
  const failed = [];
  let refreshes = 0;
  const kept = keeping(comfy, { failed: (error) => failed.push(error.message), noted: () => (refreshes += 1) });
  kept.update(run("a b", { notes: "old" }));
  const type = (text) => {
    kept.notes.value = text;
    kept.notes.dispatchEvent(new Event("input"));
  };
  type("n");
  mock.timers.tick(500);
  type("ne");
  mock.timers.tick(500);
  assert.deepEqual(posts, []);
  kept.update(run("a b", { notes: "old" }));
  assert.equal(kept.notes.value, "ne", "a poll leaves what is typed alone");
  mock.timers.tick(500);
  assert.deepEqual(posts, [["/otca/runs/a%20b/note", "ne"]]);
  await settled();
  assert.equal(refreshes, 1, "the list, which is filtered by notes, hears of them");
  failure = "the disk is full";
  type("new");
  kept.dispose();
  await settled();
  assert.deepEqual(posts[1], ["/otca/runs/a%20b/note", "new"]);
  assert.deepEqual(failed, ["the disk is full"]);
  failure = null;
  kept.dispose();
  assert.equal(posts.length, 3, "what was not saved is tried again");
  mock.timers.reset();
});
