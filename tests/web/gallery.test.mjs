import assert from "node:assert/strict";
import test from "node:test";

import { layout, lineOf, linesBetween } from "../../web/lib/gallerylayout.js";
import { boxBetween, marksOf, nothingSaid, saidBy, shownTogether, unseenPairs, withOpinions } from "../../web/lib/opinions.js";
import { newId, outbox } from "../../web/lib/outbox.js";
import { comparePairs } from "../../web/gallery/pairs.js";
import { openPage } from "./page.mjs";

const GROUPS = [{ key: "a", label: "a cat", count: 5 }, { key: "b", label: "", count: 2 }];

test("tiles fill the width, and each group begins below its heading", () => {
  const laid = layout(GROUPS, 312, 100, true); // 3 tiles of 100 and two gaps of 6
  assert.deepEqual([laid.columns, laid.tile], [3, 100]);
  const told = laid.lines.map(({ top, first, count }) => [top, first, count]);
  assert.deepEqual(told, [[0, 0, 0], [34, 0, 3], [140, 3, 2], [246, 5, 0], [280, 5, 2]]);
  assert.equal(laid.height, 386);
  assert.deepEqual(layout(GROUPS.slice(0, 1), 312, 100, false).lines.map(({ top }) => top), [0, 106]);
  assert.equal(layout(GROUPS, 0, 100, true).columns, 1);
});

test("only lines in view are given, and each picture has its line", () => {
  const laid = layout(GROUPS, 312, 100, true);
  assert.deepEqual(linesBetween(laid, 140, 246).map(({ first }) => first), [3]);
  assert.deepEqual(linesBetween(laid, 139, 247).map(({ first, count }) => [first, count]), [[0, 3], [3, 2], [5, 0]]);
  assert.deepEqual(linesBetween(laid, 1000, 2000), []);
  assert.deepEqual([0, 2, 3, 4, 5, 6].map((place) => lineOf(laid, place).top), [34, 34, 140, 140, 280, 280]);
  const many = layout([{ key: "", label: "", count: 10_000 }], 312, 100, false);
  assert.equal(linesBetween(many, 150_000, 150_900).length, 9);
});

test("a key says what it says, and again takes it back", () => {
  const liked = { ...nothingSaid(), thumb: 1, stars: 4 };
  assert.deepEqual(saidBy("ArrowUp", nothingSaid()), { kind: "thumb", value: 1 });
  assert.deepEqual(saidBy("ArrowUp", liked), { kind: "thumb", value: null });
  assert.deepEqual(saidBy("ArrowDown", liked), { kind: "thumb", value: -1 });
  assert.deepEqual(saidBy("4", liked), { kind: "stars", value: null });
  assert.deepEqual([saidBy("0", liked), saidBy("6", liked), saidBy("j", liked)], [null, null, null]);
});

test("what is said shows before the server has answered", () => {
  const region = { like: true, box: [0, 0, 1, 1] };
  const say = (kind, value, other = "", picture = "x") => ({ id: newId(), kind, picture, other, value });
  const now = withOpinions(nothingSaid(), "x", [
    say("thumb", 1),
    say("stars", 3),
    say("stars", null),
    say("tag", true, "hands"),
    say("region", region, "r"),
    say("pair", true, "y"),
    say("pair", true, "x", "z"),
    say("thumb", -1, "", "another"),
  ]);
  assert.deepEqual(now, { thumb: 1, stars: 0, tags: ["hands"], regions: { r: region }, better: 1, worse: 1 });
  assert.deepEqual(withOpinions(now, "x", [say("region", null, "r"), say("tag", null, "hands")]).regions, {});
  assert.equal(marksOf(now).words, "liked, better in 1 pair, worse in 1 pair, 1 region, hands");
  assert.equal(marksOf(nothingSaid()).signs, "");
});

test("a box lies inside the picture, and a click is none", () => {
  assert.deepEqual(boxBetween([0.5, 1.2], [-0.1, 0.25]), [0, 0.25, 0.5, 1]);
  assert.equal(boxBetween([0.5, 0.5], [0.505, 0.9]), null);
});

/** As much of a tab's own store as is asked for. */
function store(kept = new Map()) {
  return { kept, getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) };
}

const settled = () => new Promise((done) => setTimeout(done, 5));

test("opinions are sent one by one, and survive a reload of the page until they are kept", async () => {
  const storage = store();
  const sent = [];
  let fails = true;
  const options = {
    storage,
    key: "k",
    send: async (item) => {
      sent.push(item.id);
      if (fails) throw new Error("ComfyUI is not there");
    },
    changed() {},
    refused: assert.fail,
  };
  const first = outbox(options);
  for (const id of ["1", "2", "3"]) first.push({ id });
  await settled();
  first.end(); // the page is closed
  assert.deepEqual(sent, ["1"]);
  fails = false;
  const second = outbox(options);
  assert.deepEqual(second.waiting().map(({ id }) => id), ["1", "2", "3"]);
  second.begin();
  await settled();
  assert.deepEqual(sent, ["1", "1", "2", "3"]);
  assert.equal(storage.kept.get("k"), "[]");
});

test("what the server refuses is told, and what comes after it is sent", async () => {
  const [sent, refused] = [[], []];
  const box = outbox({
    storage: store(new Map([["k", "not JSON"]])),
    key: "k",
    send: async ({ id }) => {
      sent.push(id);
      if (id === "1") throw Object.assign(new Error("gone"), { status: 404 });
    },
    changed() {},
    refused: ({ id }, { message }) => refused.push([id, message]),
  });
  for (const id of ["1", "2"]) box.push({ id });
  await settled();
  assert.deepEqual([sent, refused, box.waiting()], [["1", "2"], [["1", "gone"]], []]);
});

test("a full store of the browser holds nothing up", async () => {
  const sent = [];
  const full = { getItem: () => null, setItem() { throw new Error("quota"); } };
  const box = outbox({ storage: full, key: "k", send: async ({ id }) => sent.push(id), changed() {}, refused: assert.fail });
  box.push({ id: "1" });
  await settled();
  assert.deepEqual(sent, ["1"]);
});

test("a pair is not asked again while its answer is on its way, nor if it was passed over", async () => {
  const all = ["ab", "ba", "cd", "ef"].map((two) => ({ pair: [two[0], two[1]] }));
  const asked = [];
  const ask = async (skip) => (asked.push(skip), all.slice(skip, skip + 2));
  const seen = new Set([shownTogether(["b", "a"])]);
  assert.deepEqual(await unseenPairs(ask, 0, seen), [all[2], all[3]]);
  assert.deepEqual(asked, [0, 2]);
  for (const { pair } of all) seen.add(shownTogether(pair));
  assert.deepEqual(await unseenPairs(ask, 0, seen), []);
  assert.deepEqual(await unseenPairs(async () => [all[0]], 0, seen), [], "a server that always asks the same is asked so often only");
});

test("the next pairs are asked for when the server has the answer to the last one", async () => {
  openPage();
  const kept = [];
  let arrive;
  const send = (item) => new Promise((resolve) => (arrive = () => resolve(kept.push(item.id))));
  const box = outbox({ storage: { getItem: () => null, setItem() {} }, key: "k", send, changed() {}, refused() {} });
  let asked = 0;
  const server = {
    routeUrl: (route) => route,
    getJson: async () => ((asked += 1), { pairs: [[["a", "b"]], [["c", "d"]]][kept.length].map((pair) => ({ pair, prompt: pair.join() })) }),
  };
  comparePairs(server, { say: (id, _, other) => box.push({ id: `${id}>${other}` }), kept: box.sent });
  const press = (key) => document.body.all("otca-dialog")[0].dispatchEvent(Object.assign(new Event("keydown"), { key }));
  const choices = document.body.all("otca-gallery-choice").map(({ children: [image] }) => image);
  const prompt = () => document.body.all("otca-gallery-prompt")[0].textContent;
  await settled();
  assert.deepEqual([asked, prompt()], [1, "a,b"]);
  press("ArrowRight");
  await settled();
  assert.deepEqual([asked, prompt()], [1, "a,b"], "nobody has seen the pictures yet");
  for (const image of choices) image.naturalWidth = 64;
  press("ArrowRight");
  await settled();
  assert.deepEqual([asked, prompt()], [1, "Reading the opinions …"]);
  arrive();
  await settled();
  assert.deepEqual([asked, prompt(), kept], [2, "c,d", ["b>a"]]);
});
