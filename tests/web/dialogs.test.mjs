import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";

import { train } from "../../web/sidebar/actions.js";
import { exportDialog, wordDialog } from "../../web/sidebar/dialogs.js";
import { openPage, settled } from "./page.mjs";

const answer = { filename: "mine.json", problems: [], commands: [] };
const made = {
  name: "my run's.zip",
  path: "/output/otca_bundles/my run's.zip",
  bytes: 9_000_000,
  models: [{ path: "a.safetensors", where: "vae", bytes: 2e9 }],
  model_bytes: 2e9,
  estimate: ["time: unknown"],
  notes: ["<b>a note</b>"],
};
const comfy = {
  routeUrl: (route) => `/api${route}`,
  showNode() {},
  toast() {},
  getJson: async (route) => route === "/otca/bundle" && { read: 5e8, total: 2e9 },
};

/** All elements below one, itself included, whose tag or class is that. */
function all(element, name) {
  const found = element.tag === name || element.classList.contains(name) ? [element] : [];
  return [...found, ...element.children.flatMap((child) => all(child, name))];
}

beforeEach(openPage);

function open(bundle) {
  exportDialog(comfy, { answer, failed: false, download() {}, bundle });
  const dialog = all(document.body, "otca-dialog").at(-1);
  return { dialog, start: all(dialog, "button").find((one) => one.textContent.includes("Bundle")) };
}

test("a bundle is made once it is asked for, and offered with what it says", async () => {
  const asked = [];
  const { dialog, start } = open(async (hashes) => {
    asked.push(hashes);
    return made;
  });
  assert.deepEqual(asked, []);
  start.click();
  await settled();
  assert.equal(asked.length, 1);
  const link = all(dialog, "a")[0];
  assert.equal(link.getAttribute("href"), "/api/otca/bundles/my%20run's.zip");
  assert.match(link.textContent, /my run's\.zip \(9\.00 MB\)/);
  for (const said of [made.path, "2.00 GB", "time: unknown", "<b>a note</b>"]) assert.ok(dialog.textContent.includes(said), said);
});

test("while models are read, the button says how much of them has been", async () => {
  let resolve;
  const { start } = open(() => new Promise((done) => (resolve = done)));
  start.click();
  await settled();
  assert.match(start.textContent, /Reading the models: 25 %/);
  resolve(made);
  await settled();
  assert.match(start.textContent, /Bundle/);
});

test("pictures that would be in it are named, and only a click lets them", async () => {
  const asked = [];
  const { dialog, start } = open(async (hashes, pictures) => {
    asked.push(pictures);
    if (!pictures) throw Object.assign(new Error("no"), { pictures: ["inputs/<b>mine.png"] });
    return made;
  });
  start.click();
  await settled();
  assert.ok(dialog.textContent.includes("inputs/<b>mine.png"));
  assert.deepEqual(asked, [false]);
  all(dialog, "button").find((one) => one.textContent.includes("Put these pictures")).click();
  await settled();
  assert.deepEqual(asked, [false, true]);
  assert.ok(dialog.textContent.includes(made.path));
});

test("a refusal is shown with its problems, and the button works again", async () => {
  const refusal = Object.assign(new Error("no"), {
    problems: [{ node_id: "3", title: "SDE Sampler", input: "steps", message: "is wrong", fix: "give 4", severity: "error" }],
  });
  const { dialog, start } = open(async () => {
    throw refusal;
  });
  start.click();
  await settled();
  assert.ok(dialog.textContent.includes("is wrong"));
  assert.ok(!start.disabled && start.textContent.includes("Bundle"));
});

const WORD = { given: false, command: "python otca allow trainings", variable: "OTCA_ALLOW_TRAININGS=1" };

test("without the user's word a training is a line for a terminal, and the dialog says how to allow it", async () => {
  const asked = [];
  const server = {
    ...comfy,
    exportedGraph: async () => ({ output: { 12: { class_type: "OTCA_TrainingRun", inputs: { run_name: "mine" } } } }),
    trainingsWord: async () => WORD,
    getJson: async () => ({ runs: [{ id: "mine" }] }),
    comingRuns: async () => ({}),
    postJson: async (route, content) => (asked.push([route, content.name]), { ...answer, here: "python otca train mine.json" }),
  };
  await train(server, () => assert.fail("nothing is started"));
  assert.deepEqual(asked, [["/otca/export", "mine-2"]]);
  const dialog = all(document.body, "otca-dialog").at(-1);
  const codes = all(dialog, "otca-code").map((code) => code.textContent);
  assert.deepEqual(codes, ["python otca train mine.json", WORD.command]);
  assert.ok(dialog.textContent.includes(WORD.variable) && dialog.textContent.includes("Download mine.json"));
});

test("a graph that cannot be trained says so, in place of a line that would fail", () => {
  const problems = [{ node_id: "3", title: "SDE Sampler", input: "steps", message: "is wrong", fix: "give 4", severity: "error" }];
  wordDialog(comfy, { title: "Train", word: WORD, instead: { title: "", command: "otca train", note: "" }, problems });
  const dialog = all(document.body, "otca-dialog").at(-1);
  assert.ok(dialog.textContent.includes("is wrong") && !dialog.textContent.includes("otca train"));
  assert.ok(dialog.textContent.includes(WORD.command));
});
