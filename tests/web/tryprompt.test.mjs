import assert from "node:assert/strict";
import test, { afterEach, beforeEach, mock } from "node:test";

import { canTry, pairTitle, workText } from "../../web/lib/pairs.js";
import { showFailure } from "../../web/sidebar/failure.js";
import { tryPromptSection } from "../../web/sidebar/tryprompt.js";
import { openPage, settled } from "./page.mjs";

const RUN = { id: "a b", has_lora: true, has_checkpoint: true };
const PAIR = { name: "0001", prompt: "a circle", seed: 3, iteration: 6 };

test("what is being made, and of what", () => {
  assert.equal(workText({ state: "makes", done: 0, calls: 56 }), "Step 1 of 56");
  assert.equal(workText({ state: "makes", done: 56, calls: 56 }), "Step 56 of 56");
  assert.match(workText({ state: "waits", done: 0, calls: 0 }), /until a training ends/);
  assert.equal(pairTitle(PAIR), "a circle · seed 3 · iteration 6");
  assert.equal(pairTitle({ ...PAIR, iteration: null }), "a circle · seed 3");
  assert.equal(canTry({ has_lora: false, has_checkpoint: false }), false);
});

let made;
let word;
let asked;
let section;

beforeEach(() => {
  mock.timers.enable({ apis: ["setTimeout"] });
  openPage();
  asked = [];
  word = { given: true, command: "", variable: "" };
  made = { pairs: [], work: null, from_comfyui: false };
  section = tryPromptSection({
    routeUrl: (route) => route,
    trainingsWord: async () => structuredClone(word),
    getJson: async (route) => (asked.push(route), structuredClone(made)),
    async postJson(route, content) {
      asked.push([route, content]);
      if (content.prompt === "bad") throw new Error("prompt is bad");
      made.work = { state: "loads", done: 0, calls: 0, prompt: "", seed: 0, error: null };
    },
  });
});

afterEach(() => {
  section.dispose();
  mock.timers.reset();
});

const named = (name) => section.element.all(name)[0];

async function submit(prompt, seed) {
  const form = named("otca-form");
  [form.all("otca-try-prompt")[0].value, form.all("otca-input")[1].value] = [prompt, seed];
  form.dispatchEvent(Object.assign(new Event("submit"), { preventDefault() {} }));
  await settled();
}

test("a run that has saved nothing offers nothing, and nothing is asked", async () => {
  section.update({ ...RUN, has_lora: false, has_checkpoint: false });
  await settled();
  assert.deepEqual([section.element.hidden, asked], [true, []]);
  section.update(RUN);
  await settled();
  assert.deepEqual([section.element.hidden, asked], [false, ["/otca/runs/a%20b/before_after"]]);
});

test("without the user's word there is no form, but what is there is shown, and how to allow it", async () => {
  word = { given: false, command: "python otca allow trainings", variable: "OTCA_ALLOW_TRAININGS=1" };
  made.pairs = [PAIR];
  section.update(RUN);
  await settled();
  assert.deepEqual([named("otca-form").hidden, named("otca-try-locked").hidden], [true, false]);
  assert.ok(!section.element.all("otca-input")[2].hidden, "pictures that were made stay");
  named("otca-try-locked").all("otca-button")[0].click();
  const dialog = document.body.all("otca-dialog")[0];
  for (const said of [word.command, word.variable]) assert.ok(dialog.textContent.includes(said), said);
});

test("pictures are asked for, followed, and shown when they are there", async () => {
  section.update(RUN);
  await settled();
  await submit("a circle", "3");
  assert.deepEqual(asked[1], ["/otca/runs/a%20b/before_after", { prompt: "a circle", seed: 3 }]);
  assert.equal(named("otca-try-work").hidden, false);
  made.work = { ...made.work, state: "makes", done: 1, calls: 4 };
  mock.timers.tick(1000);
  await settled();
  assert.equal(named("otca-progress").getAttribute("aria-valuenow"), "25");
  made = { ...made, pairs: [PAIR], work: null };
  mock.timers.tick(1000);
  await settled();
  assert.equal(named("otca-try-work").hidden, true);
  const [after, before] = section.element.all("otca-pair-picture").map((image) => image.getAttribute("src"));
  assert.equal(before, "/otca/runs/a%20b/before_after/0001/before");
  assert.equal(after, "/otca/runs/a%20b/before_after/0001/after");
  const count = asked.length;
  mock.timers.tick(9000);
  await settled();
  assert.equal(asked.length, count, "nothing is made any more, so nothing is asked");
});

test("a refusal and a failure are shown; of a model of ComfyUI's nodes also what to do instead", async () => {
  section.update(RUN);
  await settled();
  await submit("bad", "0");
  assert.equal(named("otca-error").textContent, "prompt is bad");
  await submit("good", "0");
  made.work = { ...made.work, state: "failed", error: "out of memory" };
  mock.timers.tick(1000);
  await settled();
  assert.equal(named("otca-error").textContent, "out of memory");
  made.from_comfyui = true;
  await submit("good", "0");
  made.work = { ...made.work, state: "failed", error: "no such node" };
  mock.timers.tick(1000);
  await settled();
  assert.match(named("otca-error").textContent, /^no such node\n\n.*Resume on canvas.*Tuned Model to a KSampler/);
});

// ---- from a failed run to its node ----

function comfyWith(open, workflow) {
  const done = [];
  const comfy = {
    done,
    getJson: async () => ({ workflow: { id: "w" }, prompt: { 3: { class_type: "OTCA_SDESampler" } } }),
    isOfOpenWorkflow: ({ workflow_id: id }) => id === workflow,
    findNode: () => open,
    openWorkflow: async (saved, name) => done.push(`open ${name}`),
    drawn: async () => done.push("drawn"),
    showNode: (node) => done.push(`show ${node}`),
    toast: (...toast) => done.push(toast.join(" ")),
  };
  return comfy;
}

const FAILED = { id: "mine", error: "no luck", failed_at: { node: "3", title: "SDE Sampler" } };

test("the open workflow is used only if it is the run's", async () => {
  const own = comfyWith({ type: "OTCA_SDESampler" }, "w");
  await showFailure(own, FAILED);
  assert.deepEqual(own.done, ["show 3", "error SDE Sampler no luck"]);
  for (const other of [comfyWith({ type: "OTCA_SDESampler" }, "x"), comfyWith({ type: "KSampler" }, "w"), comfyWith(null, "w")]) {
    await showFailure(other, FAILED);
    assert.deepEqual(other.done, ["open mine", "drawn", "show 3", "error SDE Sampler no luck"]);
  }
});
