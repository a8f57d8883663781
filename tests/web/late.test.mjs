/** Pages whose server answers late, in another order, or fails once: what is not known yet is not taken for something else. */
import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { openForGallery } from "../../web/gallery/canvas.js";
import { comparePairs } from "../../web/gallery/pairs.js";
import { tasteBar } from "../../web/gallery/taste.js";
import { trainDialog } from "../../web/gallery/train.js";
import { galleryView } from "../../web/gallery/view.js";
import { nothingSaid } from "../../web/lib/opinions.js";
import { compareRuns } from "../../web/sidebar/compare.js";
import { askDialog, exportDialog } from "../../web/sidebar/dialogs.js";
import { once } from "../../web/sidebar/dom.js";
import { keeping } from "../../web/sidebar/keeping.js";
import { tryPromptSection } from "../../web/sidebar/tryprompt.js";
import { votePanel } from "../../web/vote/panel.js";
import { Combobox } from "../../web/widgets/combobox.js";
import { newRunWidget } from "../../web/widgets/newrun.js";
import { openPage, settled } from "./page.mjs";

let server;
let ended;

/** A server that answers when the test says so: the earliest of what was asked and has that in its route. */
function lateServer() {
  const asked = [];
  const ask = (route, body) => new Promise((resolve, reject) => asked.push({ route, body, resolve, reject }));
  const taken = (part) => {
    const at = asked.findIndex(({ route }) => route.includes(part));
    assert.ok(at >= 0, `${part} is not asked, but ${asked.map(({ route }) => route)}`);
    return asked.splice(at, 1)[0];
  };
  const toasts = [];
  return {
    asked,
    toasts,
    getJson: ask,
    postJson: ask,
    routeUrl: (route) => route,
    toast: (...toast) => toasts.push(toast),
    trainingsWord: async () => ({ given: true }),
    count: (part) => asked.filter(({ route }) => route.includes(part)).length,
    async answer(part, value) {
      taken(part).resolve(value);
      await settled();
    },
    async refuse(part, message, status = 503) {
      taken(part).reject(Object.assign(new Error(message), { status }));
      await settled();
    },
  };
}

const store = (kept = new Map()) => ({ getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) });

beforeEach(() => {
  mock.timers.enable({ apis: ["setTimeout"] });
  openPage();
  globalThis.sessionStorage = store();
  globalThis.window = Object.assign(new EventTarget(), { innerHeight: 900, innerWidth: 900 });
  globalThis.requestAnimationFrame = () => 1;
  globalThis.cancelAnimationFrame = () => {};
  server = lateServer();
  ended = [];
});

afterEach(() => {
  for (const end of ended) end();
  mock.timers.reset();
});

async function wait(time) {
  mock.timers.tick(time);
  await settled();
}

function press(element, key) {
  const event = Object.assign(new Event("keydown", { cancelable: true }), { key });
  element.dispatchEvent(Object.defineProperty(event, "target", { value: element }));
}
const dialogs = () => document.body.all("otca-dialog");
const alerts = (element) => element.all("otca-error").map(({ textContent }) => textContent).filter(Boolean);
const buttonOf = (element, text) => element.all("otca-button").find(({ textContent }) => textContent.includes(text));

// ---- the gallery ----

let view;
let version = 0; // of what is said, as the server counts

const pictureOf = (said = {}) => ({ name: "a.png", folder: "f", prompt: "a cat", note: "", loras: [], changed: 1, taste: null, said: { ...nothingSaid(), ...said } });
const list = () => view.element.all("otca-gallery-list")[0];
const signs = () => view.element.all("otca-gallery-signs").map(({ textContent }) => textContent);
const state = () => ({ version: 1, opinions: String(version), pictures: 2, read: 2, small: 2, slow: [], problem: "" });

/** The gallery with two pictures, of which nothing is known yet. */
async function openGallery() {
  view = galleryView(server, { own: true, openWorkflow: async () => "" });
  ended.push(view.dispose);
  document.body.append(view.element);
  await server.answer("/list", { version: 1, ids: ["x", "y"], total: 2, models: [], groups: [["", "a cat", 2]], complete: true });
  await server.answer("/state", state());
  await wait(50);
}

test("details that were asked for before something was said do not hide it", async () => {
  await openGallery();
  press(list(), "ArrowUp");
  await settled();
  await server.answer("/say", {});
  await server.answer("/details", { pictures: { x: pictureOf(), y: pictureOf() } });
  assert.deepEqual(signs(), ["👍", ""]);
  await wait(50);
  await server.answer("/details", { pictures: { x: pictureOf({ thumb: 1 }) } });
  press(list(), "ArrowUp");
  assert.equal(server.asked.find(({ route }) => route.includes("/say")).body.value, null, "the same key takes it back");
});

test("details that were on their way when another page said something are asked for again", async () => {
  await openGallery();
  version += 1;
  await wait(2000);
  await server.answer("/state", state());
  await server.answer("/details", { pictures: { x: pictureOf(), y: pictureOf() } });
  await wait(50);
  await server.answer("/details", { pictures: { x: pictureOf({ stars: 4 }), y: pictureOf() } });
  assert.deepEqual(signs(), ["★★★★", ""]);
});

test("details that could not be read once are read with the next look, and the error goes", async () => {
  await openGallery();
  await server.refuse("/details", "busy");
  assert.deepEqual(alerts(view.element), ["busy"]);
  await wait(2000);
  await server.answer("/state", state());
  await wait(50);
  await server.answer("/details", { pictures: { x: pictureOf({ thumb: -1 }), y: pictureOf() } });
  await wait(2000);
  await server.answer("/state", state());
  assert.deepEqual([signs(), alerts(view.element)], [["👎", ""], []]);
});

test("a look that failed leaves no error once the next one succeeds, and a filter that fails is said", async () => {
  await openGallery();
  await server.answer("/details", { pictures: { x: pictureOf(), y: pictureOf() } });
  await wait(2000);
  await server.refuse("/state", "away");
  assert.deepEqual(alerts(view.element), ["away"]);
  view.element.all("otca-input")[1].dispatchEvent(new Event("change"));
  await settled();
  await server.refuse("/list", "still away");
  assert.deepEqual(alerts(view.element), ["still away"]);
  await wait(2000);
  await server.answer("/state", state());
  assert.deepEqual(alerts(view.element), []);
});

test("what the server refuses to keep is said until Escape, is not shown, and is not there to be undone", async () => {
  await openGallery();
  await server.answer("/details", { pictures: { x: pictureOf(), y: pictureOf() } });
  for (const key of ["p", "j", "p"]) press(list(), key);
  await settled();
  assert.deepEqual(signs(), ["⚖1", "⚖1"]);
  await server.refuse("/say", "not of one prompt", 400);
  await wait(50);
  await server.answer("/details", { pictures: { x: pictureOf(), y: pictureOf() } });
  assert.deepEqual([signs(), alerts(view.element)], [["", ""], ["not of one prompt"]]);
  press(list(), "z");
  await settled();
  assert.equal(server.count("/say"), 0);
  press(list(), "Escape");
  assert.deepEqual(alerts(view.element), []);
});

test("pictures that did not come are asked for again once the server answers", async () => {
  await openGallery();
  await server.answer("/details", { pictures: { x: pictureOf(), y: pictureOf() } });
  const asked = [];
  for (const { children: [image] } of view.element.all("otca-gallery-tile")) {
    const source = image.src;
    Object.defineProperty(image, "src", { get: () => source, set: (next) => asked.push(next) });
  }
  const [first, second] = view.element.all("otca-gallery-tile").map(({ children: [image] }) => image);
  for (const image of [first, second]) image.dispatchEvent(new Event("error"));
  second.dispatchEvent(new Event("load"));
  await wait(2000);
  await server.refuse("/state", "away");
  await wait(2000);
  await server.answer("/state", state());
  assert.deepEqual(asked, ["/otca/gallery/small/x"]);
});

test("a dialog that was closed before the server answered opens again", async () => {
  await openGallery();
  press(list(), "ArrowUp");
  for (const name of ["Compare…", "Train on these…"]) {
    for (const _ of "ab") {
      buttonOf(view.element, name).click();
      await settled();
      assert.equal(dialogs().length, 1, name);
      dialogs()[0].close();
    }
  }
});

test("a tag is of the picture that it was typed for, if the list goes on meanwhile", async () => {
  await openGallery();
  await server.answer("/details", { pictures: { x: pictureOf(), y: pictureOf() } });
  const tag = view.element.all("otca-input").find((input) => input.getAttribute("aria-label") === "Add a tag");
  tag.value = "hands";
  tag.dispatchEvent(new Event("input"));
  await wait(2000);
  await server.answer("/state", { ...state(), version: 2 });
  await server.answer("/list", { version: 2, ids: ["y"], total: 1, models: [], groups: [["", "a cat", 1]], complete: true });
  press(tag, "Enter");
  await settled();
  const { body } = server.asked.find(({ route }) => route.includes("/say"));
  assert.deepEqual([body.kind, body.picture, body.other], ["tag", "x", "hands"]);
});

test("a pair is said before the page knows more of its pictures", async () => {
  await openGallery();
  for (const key of ["p", "j", "p"]) press(list(), key);
  await settled();
  const [{ body }] = server.asked.filter(({ route }) => route.includes("/say"));
  assert.deepEqual([body.kind, body.picture, body.other], ["pair", "x", "y"]);
});

test("no pair is answered before its pictures are seen, and a server that is away is asked again", async () => {
  const said = [];
  comparePairs(server, { say: (...what) => said.push(what), kept: async () => {} });
  await settled();
  const [dialog] = dialogs();
  await server.refuse("/pairs", "busy");
  assert.ok(!dialog.textContent.includes("No two pictures"), "that is not known");
  await wait(2000);
  await server.answer("/pairs", { pairs: [{ pair: ["a", "b"], prompt: "one" }, { pair: ["c", "d"], prompt: "two" }] });
  assert.deepEqual([dialog.all("otca-gallery-prompt")[0].textContent, alerts(dialog)], ["one", []]);
  assert.ok(dialog.contains(document.activeElement), "keys go there, also if a button that is hidden meanwhile had them");
  const images = dialog.all("otca-gallery-choice").map(({ children: [image] }) => image);
  press(dialog, "ArrowLeft");
  assert.deepEqual(said, []);
  for (const image of images) [image.naturalWidth, image.removeAttribute] = [64, () => (image.naturalWidth = 0)];
  for (const _ of "ab") press(dialog, "ArrowLeft");
  assert.deepEqual(said, [["a", "pair", "b", true]], "the second press comes before the next two are there");
  dialog.close();
});

test("the workflow that opens is of what is chosen, whichever answer comes last", async () => {
  const opened = [];
  trainDialog(server, { ids: ["x"], openWorkflow: async (graph, name) => opened.push(name) });
  await settled();
  const made = (name) => ({ name, models: [["m", "M"]], items: 1, held_out: 1, forwards: 1, memory: null, said: [], learn_from: "pairs" });
  const [dialog] = dialogs();
  const [from, model] = dialog.all("otca-input");
  model.selectedOptions = [{ text: "M" }];
  await server.answer("/workflow", made("all"));
  from.value = "listed";
  from.dispatchEvent(new Event("change"));
  from.value = "all";
  from.dispatchEvent(new Event("change"));
  const [listed] = server.asked.splice(0, 1);
  await server.answer("/workflow", made("all again"));
  listed.resolve(made("listed"));
  await settled();
  for (const _ of "ab") buttonOf(dialog, "Open on the canvas").click();
  await settled();
  assert.deepEqual(opened, ["all again"], "once, too");
});

test("a taste that was being learned when the page was hidden is followed when it is seen again", async () => {
  const bar = tasteBar(server, { changed() {} });
  ended.push(bar.dispose);
  bar.element.isConnected = true;
  const told = { encoders: ["clip"], encoder: "clip", agreement: null, works: true, problem: "", pairs: 1, least: 9, scored: 0 };
  buttonOf(bar.element, "Learn My Taste").click();
  await server.answer("/taste", told);
  document.visibilityState = "hidden";
  await wait(2000);
  assert.equal(server.asked.length, 0);
  document.visibilityState = "visible";
  document.dispatchEvent(new Event("visibilitychange"));
  await server.refuse("/taste", "busy");
  assert.ok(bar.element.textContent.includes("busy"));
  await wait(2000);
  await server.answer("/taste", { ...told, works: false });
  assert.match(bar.element.textContent, /My Taste has 1 of the 9 pairs/);
});

test("a graph that is handed over is taken with a word at once, however long it takes to open", async () => {
  const heard = [];
  const channel = { postMessage: ({ opened }) => heard.push(opened) };
  const made = globalThis.BroadcastChannel;
  globalThis.BroadcastChannel = function () {
    return channel;
  };
  openForGallery({ openWorkflow: () => new Promise(() => heard.push("opens")) });
  globalThis.BroadcastChannel = made;
  channel.onmessage({ data: { graph: {}, name: "mine" } });
  assert.deepEqual(heard, ["mine", "opens"]);
});

// ---- the sidebar ----

test("notes are typed once they are known, and are saved one after the other until the last is kept", async () => {
  const failed = [];
  const kept = keeping(server, { remove() {}, noted() {}, failed: ({ message }) => failed.push(message) });
  assert.ok(kept.notes.getAttribute("disabled") !== null && kept.notes.disabled !== false);
  kept.update({ id: "a", notes: "old" });
  assert.equal(kept.notes.disabled, false);
  const type = (text) => {
    kept.notes.value = text;
    kept.notes.dispatchEvent(new Event("change"));
  };
  type("one");
  type("two");
  assert.equal(server.count("/note"), 1, "two on their way could change places");
  await server.answer("/note", {});
  assert.equal(server.asked[0].body.notes, "two");
  await server.answer("/note", {});
  type("");
  await server.refuse("/note", "busy");
  assert.deepEqual(failed, ["busy"]);
  type("");
  assert.equal(server.asked[0].body.notes, "", "what could not be taken away is tried again");
  kept.dispose(); // another run is chosen
  await server.refuse("/note", "still busy");
  await wait(3000);
  await server.refuse("/note", "the run is gone", 404);
  await wait(3000);
  assert.deepEqual([server.count("/note"), failed], [0, ["busy", "still busy", "the run is gone"]]);
});

test("an action that goes on is not begun again, and may be when it has ended or failed", async () => {
  let begun = 0;
  let end;
  const act = once(() => ((begun += 1), new Promise((resolve, reject) => (end = { resolve, reject }))));
  act();
  act();
  assert.equal(begun, 1);
  end.resolve();
  await settled();
  const failing = act();
  end.reject(new Error("no"));
  await assert.rejects(failing, /no/);
  act();
  assert.equal(begun, 3);
});

test("what the server refuses after its dialog was closed is told all the same", async () => {
  askDialog(server, { title: "Train", fields: [], startLabel: "Start", start: () => server.postJson("/otca/train", {}) });
  dialogs()[0].all("otca-form")[0].dispatchEvent(new Event("submit", { cancelable: true }));
  dialogs()[0].close();
  await server.refuse("/train", "the name is taken", 400);
  assert.deepEqual(server.toasts, [["error", "Train", "the name is taken"]]);
});

test("pictures that were shown are not seen under the name of others that have not come", async () => {
  const section = tryPromptSection(server);
  ended.push(section.dispose);
  section.update({ id: "a", has_lora: true });
  const pairs = ["2", "1"].map((name) => ({ name, prompt: name, seed: 0, iteration: 1 }));
  await server.answer("/before_after", { pairs, work: null });
  const images = section.element.all("otca-pair-picture");
  const seen = () => images.map(({ classList }) => classList.contains("otca-late"));
  assert.deepEqual(seen(), [true, true]);
  for (const image of images) image.dispatchEvent(new Event("load"));
  assert.deepEqual(seen(), [false, false]);
  const kept = section.element.all("otca-input")[2];
  kept.value = "1";
  images[1].complete = true; // the browser has that one
  kept.dispatchEvent(new Event("change"));
  assert.deepEqual(seen(), [true, false]);
});

test("both pictures are asked for once by a double click", async () => {
  const section = tryPromptSection(server);
  ended.push(section.dispose);
  section.update({ id: "a", has_lora: true });
  await server.answer("/before_after", { pairs: [], work: null });
  for (const _ of "ab") section.element.all("otca-form")[0].dispatchEvent(new Event("submit", { cancelable: true }));
  assert.equal(server.count("/before_after"), 1);
});

test("a curve that is not what is chosen now is not seen, and its error neither", async () => {
  const run = (id) => ({ id });
  compareRuns({ ...server, defaultsOf: () => ({}) }, [run("a"), run("b")]);
  for (const id of ["a", "b"]) {
    await server.answer(`/${id}/columns`, { names: ["loss", "kl/approx"], evaluations: [] });
    await server.answer(`/${id}/samples`, { grids: [] });
    await server.answer(`/${id}/workflow`, { prompt: {} });
  }
  const [dialog] = dialogs();
  const [metric] = dialog.all("otca-input");
  const [drawn] = dialog.all("otca-chart");
  const choose = (key) => {
    metric.value = key;
    metric.dispatchEvent(new Event("change"));
  };
  server.asked.splice(0); // of what a real <select> has chosen at first
  choose("loss");
  const loss = server.asked.splice(0);
  choose("kl/approx");
  assert.ok(drawn.classList.contains("otca-late"));
  const figures = { iterations: [1], columns: { "kl/approx": [0.5], "seconds/iteration": [1] }, evaluations: [] };
  for (const id of ["a", "b"]) await server.answer(`/${id}/columns`, figures);
  assert.ok(!drawn.classList.contains("otca-late"));
  for (const { reject } of loss) reject(new Error("busy"));
  await settled();
  assert.deepEqual(alerts(dialog), []);
});

test("a bundle that is written after its dialog was closed is told, and that it could not be", async () => {
  const bundle = () => server.postJson("/make", {});
  exportDialog(server, { answer: { filename: "mine.json", problems: [], commands: [] }, failed: false, download() {}, bundle });
  const [dialog] = dialogs();
  buttonOf(dialog, "Bundle").click();
  dialog.close();
  await server.answer("/make", { name: "mine.zip", path: "/out/mine.zip", bytes: 1, models: [], estimate: [], notes: [] });
  buttonOf(dialog, "Bundle").click();
  await server.refuse("/make", "the disk is full", 507);
  assert.deepEqual(server.toasts.map(([tone, , text]) => [tone, text]), [["success", "Written: /out/mine.zip"], ["error", "the disk is full"]]);
});

test("a workflow that the server could not give is not called unreadable", async () => {
  const compared = compareRuns({ ...server, defaultsOf: () => ({}) }, [{ id: "a" }]);
  await server.refuse("/a/workflow", "busy");
  await assert.rejects(compared, /busy/);
});

// ---- votes ----

const QUESTION = { id: "q", prompt: "a cat", pictures: [{}, {}], answered: false };

test("a vote that is refused says why until the next one, and an answer from before a vote does not bring it back", async () => {
  const panel = votePanel(server, { always: true });
  panel.refresh();
  await server.answer("/otca/votes", { questions: [QUESTION, { ...QUESTION, id: "r", prompt: "a dog" }], seconds_each: null });
  const [dialog] = dialogs();
  const prompt = () => dialog.all("otca-vote-prompt")[0].textContent;
  buttonOf(dialog, "Skip").click();
  await server.refuse("/votes/q", "the disk is full", 507);
  await server.answer("/otca/votes", { questions: [QUESTION], seconds_each: null });
  assert.deepEqual([prompt(), alerts(dialog)], ["a cat", ["the disk is full"]]);
  await wait(1000);
  const [late] = server.asked.splice(0, 1);
  buttonOf(dialog, "Skip").click();
  await server.answer("/votes/q", {});
  late.resolve({ questions: [QUESTION], seconds_each: null });
  await settled();
  assert.match(prompt(), /^Nothing to vote on/);
  assert.deepEqual(alerts(dialog), []);
});

// ---- the canvas ----

test("a list that cannot be read after its box was left does not appear", async () => {
  const input = document.createElement("input");
  input.value = "";
  const box = new Combobox(input, { label: "run", load: () => server.getJson("/otca/suggestions") });
  input.focus();
  box.open();
  document.activeElement = document.body;
  input.dispatchEvent(new Event("blur"));
  await server.refuse("/suggestions", "busy");
  assert.deepEqual(document.body.children, []);
});

test("the button of many Runs does what it says: a double click queues once, and a late look at the queue changes nothing", async () => {
  const node = { addWidget: (type, name, value, callback) => (node[name] = { label: name, callback }), setDirtyCanvas() {} };
  const queued = [];
  const comfy = { ...server, queueRuns: (count) => new Promise((resolve) => queued.push({ count, resolve })), waitingHere: () => server.getJson("/queue") };
  const widget = newRunWidget.create(node, comfy);
  const train = node["Train 20"];
  for (const _ of "ab") train.callback();
  assert.deepEqual([queued.length, server.count("/queue")], [1, 0]);
  widget.show("queue", { waiting: 20 });
  await wait(200);
  widget.show("queue", { waiting: 0 });
  await server.answer("/queue", Array(19).fill("id"));
  assert.equal(train.label, "Train 20");
  widget.show("queue", { waiting: 20 });
  await wait(200);
  await server.answer("/queue", Array(19).fill("id"));
  widget.show("queue", { waiting: 19 });
  await wait(200);
  await server.refuse("/queue", "busy");
  assert.match(train.label, /19 left/, "a queue that cannot be read is not empty");
});
