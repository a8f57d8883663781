import assert from "node:assert/strict";
import { register } from "node:module";
import test, { beforeEach } from "node:test";

import { api, app, comfyuiMakes, send } from "./comfyui.mjs";
import { openPage, settled } from "./page.mjs";

// ComfyUI serves its scripts beside the extension; here is one file in their place.
const redirect = `export const resolve = (name, context, next) =>
  next(/\\/scripts\\/(app|api)\\.js$/.test(name) ? ${JSON.stringify(import.meta.resolve("./comfyui.mjs"))} : name, context);`;
register(`data:text/javascript,${encodeURIComponent(redirect)}`);
openPage();
await import("../../web/otca.js");
const { onRefusedInputs } = await import("../../web/comfy.js");
app.extension.setup();

const intervals = new Set();
const observers = new Set();

/** Counts what goes on until it is ended. */
class Observer {
  observe() {
    observers.add(this);
  }
  disconnect() {
    observers.delete(this);
  }
}
globalThis.setInterval = () => {
  const timer = Symbol();
  intervals.add(timer);
  return timer;
};
globalThis.clearInterval = (timer) => intervals.delete(timer);
globalThis.ResizeObserver = globalThis.MutationObserver = Observer;

const CREDIT = { name: "OTCA_TCDWeights", output: ["OTCA_CREDIT"] };
const STACK = { name: "OTCA_RewardStack", output: ["OTCA_REWARDS"] };
const LOADER = { name: "OTCA_LoadFlowModel", output: ["OTCA_MODEL"] };
const RUN = { name: "OTCA_TrainingRun", output: [] };

/** A node as ComfyUI makes it, with the extension's widgets on it: `roots` are their elements. */
function made(id, definition) {
  class Node {
    static nodeData = definition;
    id = id;
    size = [400, 400];
    properties = {};
    inputs = [];
    roots = [];
    addDOMWidget(name, type, root) {
      this.roots.push(root);
      return {};
    }
    widgets = [];
    addWidget(type, name, value, callback) {
      this.widgets.push({ type, name, value, callback });
      return this.widgets.at(-1);
    }
    computeSize() {
      return this.size;
    }
    setSize() {}
    setDirtyCanvas() {}
  }
  const node = new Node();
  app.extension.nodeCreated(node);
  return node;
}

function subgraph(id, ...nodes) {
  return { id, isSubgraphNode: () => true, subgraph: { nodes } };
}

/** Opens a workflow as ComfyUI does: of the one before, only the root graph's nodes are told. */
async function load(workflow, ...nodes) {
  for (const node of app.rootGraph.nodes) node.onRemoved?.();
  app.rootGraph = { ...app.rootGraph, id: workflow, nodes };
  app.extension.afterConfigureGraph();
  await settled();
}

const textOf = (node, name) => node.roots[0].all(name)[0].textContent;

beforeEach(async () => {
  api.answers.clear();
  await load("none");
});

test("the widgets of a workflow end when another is loaded, inside subgraphs too", async () => {
  assert.deepEqual([intervals.size, observers.size], [0, 0]);
  await load("a", subgraph(3, made(9, CREDIT), subgraph(4, made(9, CREDIT))), made(9, CREDIT));
  const each = [intervals.size / 3, observers.size / 3];
  assert.deepEqual(each, [1, 2], "of a heatmap: the zoom; its size and the theme");
  await load("b", subgraph(3, made(9, CREDIT)));
  assert.deepEqual([intervals.size, observers.size], [1, 2]);
  await load("c");
  assert.deepEqual([intervals.size, observers.size], [0, 0]);
});

test("Save LoRA says on itself which file it wrote", async () => {
  const node = made(13, { name: "OTCA_SaveLoRA", output: [] });
  await load("a", node);
  assert.equal(node.roots.length, 0, "an element without a word would take the clicks of what moves below it");
  node.onExecuted({ text: ["/models/loras/mine-2.safetensors", "C:\\loras\\low.safetensors"] });
  node.onExecuted({ text: ["/models/loras/mine-2.safetensors", "C:\\loras\\low.safetensors"] });
  node.onExecuted(null);
  assert.equal(node.roots.length, 1);
  const [line] = node.roots[0].all("otca-owner");
  assert.equal(line.textContent, "Saved: loras/mine-2.safetensors, loras/low.safetensors");
  assert.match(line.title, /^.models.loras.mine-2/);
});

test("the widgets of a node that is removed end with it", async () => {
  const node = made(8, STACK);
  let told = false;
  const leave = node.onRemoved;
  node.onRemoved = () => (told = true) && leave();
  await load("a", node);
  assert.equal(observers.size, 1);
  app.rootGraph.nodes = [];
  node.onRemoved();
  assert.ok(told);
  assert.equal(observers.size, 0);
});

test("what was missed while the connection was lost is fetched when it is back", async () => {
  const node = made(12, RUN);
  await load("a", node);
  assert.match(textOf(node, "otca-curves-heading"), /^No iteration yet/);
  api.answers.set("/otca/results", { 12: { run: { run: "mine", iteration: 2, workflow_id: "a" } } });
  const rows = [{ iteration: 1 }, { iteration: 2 }];
  api.answers.set("/otca/runs/mine/metrics?after=0", { rows, evaluations: [], changes: [], more: false });
  send("reconnected");
  await settled();
  assert.equal(textOf(node, "otca-curves-heading"), "mine · 2 iterations");
});

test("evaluations are dots with a rise and two rows of pictures, and the queue's end is foreseen", async (context) => {
  const node = made(12, RUN);
  await load("a", node);
  const rows = (...iterations) => iterations.map((iteration) => ({ iteration, "reward/judge/mean": 0.3 }));
  const figures = (mean, more) => ({ mean, std: 0.4, standard_error: 0.05, held_out: false, ...more });
  const evaluations = [
    { iteration: 0, rewards: { judge: figures(0.3) } },
    { iteration: 2, since: 0, rewards: { judge: figures(0.42, { rise: [0.12, 0.04] }) } },
  ];
  const pictures = [{ prompt: "a red circle", seed: 0, box: [8, 8, 40, 40] }];
  const grids = [0, 2].map((iteration) => ({ iteration, file: `00000${iteration}.png`, size: [56, 80], pictures }));
  api.answers.set("/otca/runs/mine/metrics?after=0", { rows: rows(1), evaluations: evaluations.slice(0, 1), changes: [] });
  api.answers.set("/otca/runs/mine/metrics?after=1", { rows: rows(2), evaluations, changes: [] });
  api.answers.set("/otca/runs/mine/samples", { grids: grids.slice(0, 1) });
  let now = 1000;
  context.mock.method(performance, "now", () => now);
  const ends = async (iteration, seconds) => {
    send("execution_start", {});
    now += 1000 * seconds;
    send("otca.result", { kind: "run", node: "12", data: { run: "mine", iteration, workflow_id: "a" } });
    await settled();
  };
  send("status", { exec_info: { queue_remaining: 21 } });
  await ends(1, 100);
  assert.equal(textOf(node, "otca-curves-heading"), "mine · 1 iteration");
  assert.deepEqual([node.roots[0].all("otca-curves-rise").length, node.roots[0].all("otca-strip")[0].hidden], [0, true]);
  api.answers.set("/otca/runs/mine/samples", { grids });
  await ends(2, 4);
  send("status", { exec_info: { queue_remaining: 20 } });
  assert.equal(textOf(node, "otca-curves-heading"), "mine · 2 iterations · about 80 s left");
  assert.equal(textOf(node, "otca-curves-value"), "0.3 → 0.42");
  assert.equal(textOf(node, "otca-curves-rise"), "+12 points since the start ± 4");
  const [dots] = node.roots[0].all("otca-evaluation");
  assert.equal(dots.getAttribute("d").match(/M/g).length, 2);
  assert.deepEqual(node.roots[0].all("otca-curves-axis")[0].children.map((tick) => tick.textContent), ["0.3", "0.4"]);
  assert.equal(node.roots[0].all("otca-strip")[0].hidden, false);
  const names = node.roots[0].all("otca-strip-name").map((name) => name.textContent);
  assert.deepEqual(names, ["before training", "iteration 2"]);
  const [before, after] = node.roots[0].all("otca-strip-picture").map((picture) => picture.style.backgroundImage);
  assert.match(before, /samples-000000\.png/);
  assert.match(after, /samples-000002\.png/);
});

test("a result is shown in the workflow that made it; of a script's the server knows whether this is its graph", async () => {
  const node = made(1, LOADER);
  await load("a", node);
  const owner = (text, workflow_id) => ({ kind: "owner", node: "1", data: { node: "1", text, workflow_id } });
  send("otca.result", owner("one, iteration 4", "b"));
  assert.equal(textOf(node, "otca-owner"), "Adapter: not used yet");
  send("otca.result", owner("two, iteration 1", "a"));
  assert.equal(textOf(node, "otca-owner"), "Adapter: two, iteration 1");
  send("otca.result", owner("script, iteration 9", null));
  assert.equal(textOf(node, "otca-owner"), "Adapter: two, iteration 1");
  api.answers.set("/otca/results", { 1: { owner: { text: "script, iteration 9", workflow_id: null } } });
  await new Promise((done) => setTimeout(done, 150));
  assert.equal(textOf(node, "otca-owner"), "Adapter: script, iteration 9");
});

test("one click queues twenty Runs of the graph that is open", async () => {
  const { app } = await import("./comfyui.mjs");
  const run = made(12, RUN);
  const asked = [];
  app.queuePrompt = (...given) => asked.push(given);
  run.widgets.find(({ name }) => name === "Train 20").callback();
  assert.deepEqual(asked, [[0, 20]]);
  delete app.queuePrompt;
});

test("the red X also ends the Run that ComfyUI has begun by then, and no other workflow's", async () => {
  const { app } = await import("./comfyui.mjs");
  const run = made(12, RUN);
  await load("a", run);
  const entry = (id, workflow) => [1, id, {}, { extra_pnginfo: { workflow: { id: workflow } } }];
  const queue = { queue_running: [entry("begun", "a"), entry("other", "b")], queue_pending: [entry("waits", "a")] };
  api.answers.set("/queue", queue);
  const ended = [];
  api.interrupt = async (id) => ended.push(id);
  app.queuePrompt = async () => {};
  run.widgets.find(({ name }) => name === "Train 20").callback();
  await settled();
  api.answers.set("/history/stopped", { stopped: { prompt: entry("stopped", "a") } });
  send("execution_interrupted", { prompt_id: "stopped" });
  await settled();
  assert.deepEqual(ended, ["begun"]);
  delete app.queuePrompt;
});

test("a new run has the next free name and begins with a fresh adapter", async () => {
  const run = made(12, RUN);
  const loader = made(1, LOADER);
  run.widgets.push({ name: "run_name", value: "mine" });
  loader.widgets.push({ name: "resume_run", value: "older" });
  await load("a", run, loader);
  api.answers.set("/otca/runs", { runs: [{ id: "mine" }, { id: "mine-2" }] });
  run.widgets.find(({ name }) => name === "New run").callback();
  await settled();
  assert.equal(run.widgets.find(({ name }) => name === "run_name").value, "mine-3");
  assert.equal(loader.widgets.find(({ name }) => name === "resume_run").value, "");
});

test("a run goes on where the headless trainer would: its names, its seeds, and not where it began", async () => {
  const { resumeOnCanvas } = await import("../../web/lib/newrun.js");
  const comfy = await import("../../web/comfy.js");
  const run = made(12, RUN);
  const loader = made(1, LOADER);
  const sampler = made(3, { name: "OTCA_SDESampler", output: [] });
  run.widgets.push({ name: "run_name", value: "quickstart" });
  loader.widgets.push({ name: "resume_run", value: "" }, { name: "start_from", value: "mine.safetensors" });
  sampler.widgets.push({ name: "seed", value: 41, linkedWidgets: [{ name: "control_after_generate", value: "increment" }] });
  await load("a", run, loader, sampler);
  await resumeOnCanvas(comfy, { id: "quickstart-2", iteration: 42 }, { 3: { inputs: { seed: 7 } }, 12: { inputs: {} } });
  const value = (node, name) => node.widgets.find((widget) => widget.name === name).value;
  assert.equal(value(run, "run_name"), "quickstart-2");
  assert.deepEqual([value(loader, "resume_run"), value(loader, "start_from")], ["quickstart-2", ""]);
  assert.equal(value(sampler, "seed"), 7 + 42);
});

test("a run that goes on lets samples move on that were held", async () => {
  const { resumeOnCanvas } = await import("../../web/lib/newrun.js");
  const comfy = await import("../../web/comfy.js");
  const [run, loader, sampler] = [made(12, RUN), made(1, LOADER), made(3, { name: "OTCA_SDESampler", output: [] })];
  const control = { name: "control_after_generate", value: "fixed" };
  run.widgets.push({ name: "run_name", value: "quickstart" });
  sampler.widgets.push({ name: "seed", value: 9, linkedWidgets: [control] });
  await load("a", run, loader, sampler);
  await resumeOnCanvas(comfy, { id: "quickstart", iteration: 3 }, { 3: { inputs: { seed: 7 } } });
  assert.deepEqual([control.value, sampler.widgets[0].value], ["increment", 10]);
});

test("which run goes on is said, and another one can be chosen", async () => {
  const [run, loader] = [made(12, RUN), made(1, LOADER)];
  run.widgets.push({ name: "run_name", value: "quickstart" });
  loader.widgets.push({ name: "resume_run", value: "" }, { name: "start_from", value: "" });
  comfyuiMakes.prompt = () => ({ output: { 12: { class_type: "OTCA_TrainingRun", inputs: {} } }, workflow: {} });
  api.answers.set("/otca/results", {});
  api.answers.set("/otca/permissions/wants", { wants: [] });
  const foreseen = async (coming) => {
    api.answers.set("/otca/coming", { 12: coming });
    send("graphChanged");
    await new Promise((done) => setTimeout(done, 150));
    await settled();
  };
  await load("a", run, loader);
  await foreseen({ run: "quickstart-3", iteration: 0, other: ["quickstart-2", 22], at: [] });
  const said = () => run.roots[0].all("otca-curves-coming")[0].children.filter((part) => !part.hidden && !part.getAttribute("hidden"));
  assert.equal(said()[0].textContent, "quickstart-2 was trained by another method. The next Run begins a new run: quickstart-3.");
  const [button, from] = run.roots[0].all("otca-button");
  assert.deepEqual([button.textContent, from.textContent], ["Continue quickstart-2 (22)", "Begin quickstart-3 from it"]);
  api.answers.set("/otca/runs/quickstart-2/workflow", { prompt: {} });
  button.click();
  await settled();
  const value = (node, name) => node.widgets.find((widget) => widget.name === name).value;
  const names = () => [value(run, "run_name"), value(loader, "resume_run"), value(loader, "start_from")];
  assert.deepEqual(names(), ["quickstart-2", "quickstart-2", ""]);
  from.click();
  await settled();
  assert.deepEqual(names(), ["quickstart-3", "", "quickstart-2"]);

  const rows = [{ iteration: 22, "reward/judge/mean": 0.5 }];
  api.answers.set("/otca/runs/quickstart-2/metrics?after=0", { rows, evaluations: [], changes: [] });
  await foreseen({ run: "quickstart-2", iteration: 22, other: null, at: [] });
  assert.equal(said()[0].textContent, "The next Run continues quickstart-2 (22).");
  assert.equal(said().length, 1, "and nothing is asked");
  assert.equal(textOf(run, "otca-curves-heading"), "quickstart-2 · 22 iterations", "and its curves are there");
  await foreseen({ run: "quickstart-3", iteration: 0, other: null, at: [] });
  assert.match(textOf(run, "otca-curves-heading"), /^No iteration yet/, "those of another run would be taken for its own");
  assert.equal(run.roots[0].all("otca-curves-name").length, 0);

  run.mode = 2;
  api.answers.set("/otca/coming", {});
  send("graphChanged");
  await new Promise((done) => setTimeout(done, 150));
  await settled();
  assert.equal(said()[0].textContent, "Muted or bypassed: no Run is recorded.", "it still promised to continue");
  comfyuiMakes.prompt = null;
});

test("what goes on goes on where its run stopped, a new run begins as in the file, and what the user sets stays", async () => {
  const value = (node, name) => node.widgets.find((widget) => widget.name === name).value;
  const opened = async (workflow, seed, { mode = "increment", index = 0 } = {}) => {
    const [run, sampler, data] = [made(12, RUN), made(3, { name: "OTCA_SDESampler", output: [] }), made(2, { name: "OTCA_PromptDataset", output: [] })];
    const control = { name: "control_after_generate", value: mode };
    sampler.widgets.push({ name: "seed", value: seed, linkedWidgets: [control] });
    data.widgets.push({ name: "index", value: index, linkedWidgets: [{ ...control, value: "increment" }] });
    await load(workflow, run, sampler, data);
    return { run, sampler, data, control, now: () => [value(sampler, "seed"), value(data, "index")] };
  };
  comfyuiMakes.prompt = () => ({ output: { 12: { class_type: "OTCA_TrainingRun", inputs: {} } }, workflow: {} });
  for (const route of ["/otca/results", "/otca/fits"]) api.answers.set(route, {});
  api.answers.set("/otca/permissions/wants", { wants: [] });
  api.answers.set("/otca/runs/quickstart/metrics?after=0", { rows: [{ iteration: 21 }], evaluations: [], changes: [] });
  const changed = async () => {
    send("graphChanged");
    await new Promise((done) => setTimeout(done, 150));
    await settled();
  };
  const foreseen = async (iteration, index = iteration) => {
    const at = iteration ? [["3", "seed", 7 + iteration], ["2", "index", index]] : [];
    api.answers.set("/otca/coming", { 12: { run: iteration ? "quickstart" : "quickstart-2", iteration, other: null, at } });
    await changed();
  };
  const said = (node) => node.roots[0].all("otca-curves-coming")[0].children[0].textContent;

  let { run, sampler, control, now } = await opened("opened", 7);
  await foreseen(21);
  assert.deepEqual(now(), [28, 21]);
  await changed(); // that we changed it is a change, too
  assert.equal(said(run), "The next Run continues quickstart (21), at seed 28.");
  await foreseen(0);
  assert.deepEqual(now(), [7, 0], "a new run was chosen");
  assert.equal(said(run), "The next Run begins a new run: quickstart-2.");
  await foreseen(21);
  assert.deepEqual(now(), [28, 21], "and the old one again");
  sampler.widgets.find(({ name }) => name === "seed").value = 7;
  await changed();
  assert.deepEqual(now(), [7, 21], "the user wants the beginning again");
  assert.equal(said(run), "The next Run continues quickstart (21), at index 21.");
  ({ run, sampler, now } = await opened("opened", 7, { index: 21 })); // as undo opens a graph
  await foreseen(22);
  assert.deepEqual(now(), [7, 22], "even after undo");
  sampler.widgets.find(({ name }) => name === "seed").value = 8;
  await changed();
  ({ run, now } = await opened("opened", 7));
  await foreseen(22);
  assert.deepEqual(now(), [29, 22], "opened from its file again");

  ({ run, now } = await opened("queued ahead", 40));
  await foreseen(3);
  assert.deepEqual(now(), [40, 3], "its page was loaded again while prompts wait: none of them comes twice");

  ({ run, sampler, control, now } = await opened("held", 7, { mode: "fixed" }));
  await foreseen(21);
  assert.deepEqual(now(), [7, 21]);
  control.value = "increment";
  await foreseen(22);
  assert.deepEqual(now(), [7, 22], "what was held goes on from there");

  ({ now } = await opened("new here", 1));
  await foreseen(21);
  api.answers.delete("/otca/coming");
  await changed();
  assert.deepEqual(now(), [28, 21], "an error says nothing of what goes on");
  comfyuiMakes.prompt = null;
});

test("a Run that has nothing to do says so, in the workflow that was queued", async () => {
  const node = made(12, RUN);
  node.type = "OTCA_TrainingRun";
  await load("a", node);
  const [said] = node.roots[0].all("otca-curves-nothing");
  for (const [workflow, hidden] of [["b", true], ["a", false]]) {
    api.answers.set("/queue", { queue_running: [queued(workflow, workflow)], queue_pending: [] });
    send("execution_start", {});
    send("execution_cached", { nodes: ["1", "12"], prompt_id: workflow });
    await settled();
    assert.equal(said.hidden, hidden, workflow);
  }
  assert.match(said.textContent, /^This Run had nothing to do: .* Fix: let the seed/);
  send("execution_start", {});
  send("execution_cached", { nodes: ["1"], prompt_id: "a" });
  await settled();
  assert.ok(said.hidden, "the next one trains");
});

/** The server's queue item of a prompt. */
const queued = (prompt, workflow) => [1, prompt, {}, { extra_pnginfo: { workflow: { id: workflow } } }, []];
const failure = (prompt) => ({ prompt_id: prompt, node_id: 7, exception_message: `${prompt} failed` });

test("an error is shown in the workflow that was queued, not in the one that is open", async () => {
  const node = made(7, STACK);
  await load("b", node);
  api.answers.set("/queue", { queue_running: [queued("of-a", "a")], queue_pending: [] });
  send("execution_start", { prompt_id: "of-a" });
  send("execution_error", failure("of-a"));
  await settled();
  assert.equal(textOf(node, "otca-error"), "");

  api.answers.set("/queue", { queue_running: [queued("of-b", "b")], queue_pending: [] });
  send("execution_start", { prompt_id: "of-b" });
  send("execution_error", failure("of-b"));
  await settled();
  assert.equal(textOf(node, "otca-error"), "of-b failed");
});

test("an error whose prompt has left the queue is looked up in the history", async () => {
  const node = made(7, STACK);
  await load("b", node);
  api.answers.set("/queue", { queue_running: [], queue_pending: [] });
  api.answers.set("/history/of-a", { "of-a": { prompt: queued("of-a", "a") } });
  api.answers.set("/history/script", { script: { prompt: [1, "script", {}, {}, []] } });
  send("execution_error", failure("of-a"));
  await settled();
  assert.equal(textOf(node, "otca-error"), "");
  send("execution_error", failure("script"));
  await settled();
  assert.equal(textOf(node, "otca-error"), "script failed", "a script's graph belongs to no workflow");
});

test("an error is over when the next prompt has started", async () => {
  const node = made(7, STACK);
  await load("b", node);
  api.answers.set("/queue", { queue_running: [queued("one", "b")], queue_pending: [] });
  send("execution_start", { prompt_id: "one" });
  send("execution_error", failure("one"));
  send("execution_start", { prompt_id: "two" });
  await settled();
  assert.equal(textOf(node, "otca-error"), "");
});

test("inputs that the server refuses are told to their nodes", async () => {
  const told = [];
  onRefusedInputs((id, inputs) => told.push([id, inputs]));
  send("otca.refused", { inputs: { 4: ["clip"], "3:7": [] } });
  assert.deepEqual(told, [["4", ["clip"]], ["3:7", []]]);
});

test("a package that a graph lacks is told once over the page and on its node, with the line that installs it", async () => {
  const node = made(7, STACK);
  await load("a", node);
  const packages = [{ node: "7", text: "Reward: Text needs rapidocr", command: "python -m pip install rapidocr" }];
  for (let time = 0; time < 2; time += 1) send("otca.refused", { inputs: { 7: ["name"] }, packages });
  const toasts = document.body.all("otca-toast");
  assert.equal(toasts.length, 1);
  assert.match(toasts[0].textContent, /Nothing was run.*needs rapidocr.*python -m pip install rapidocr.*Copy/s);
  assert.match(node.roots.at(-1).textContent, /needs rapidocr.*python -m pip install rapidocr/s);
  toasts[0].childNodes[0].childNodes[1].click();
  assert.ok(!document.body.childNodes.includes(toasts[0]));
});

/** What the server answers to a route when the test says so: the functions that do, in the order in which it was asked. */
function heldBack(route) {
  const ask = api.answers.get.bind(api.answers);
  const held = [];
  api.answers.has = (name) => name === route || Map.prototype.has.call(api.answers, name);
  api.answers.get = (name) => (name === route ? new Promise((resolve) => held.push(resolve)) : ask(name));
  return { held, end: () => (delete api.answers.has, delete api.answers.get) };
}

const later = () => new Promise((done) => setTimeout(done, 150));

test("results of one workflow are not shown in another that was opened meanwhile", async () => {
  await load("a", made(1, LOADER));
  const { held, end } = heldBack("/otca/results");
  send("reconnected");
  await settled();
  const node = made(1, LOADER);
  await load("b", node);
  held[0]({ 1: { owner: { text: "of a, iteration 4" } } });
  await settled();
  assert.equal(textOf(node, "otca-owner"), "Adapter: not used yet");
  end();
});

test("which run goes on is said by the newest answer, and not by the last one to come", async () => {
  const node = made(12, RUN);
  comfyuiMakes.prompt = () => ({ output: { 12: { class_type: "OTCA_TrainingRun", inputs: {} } }, workflow: {} });
  await load("a", node);
  await later();
  const { held, end } = heldBack("/otca/coming");
  for (const _ of "ab") {
    send("graphChanged");
    await later();
  }
  held[1]({ 12: { run: "new", iteration: 0 } });
  await settled();
  held[0]({ 12: { run: "old", iteration: 0 } });
  await settled();
  assert.match(textOf(node, "otca-curves-coming"), /new run: new/);
  send("reconnected");
  await later();
  held[2]({ 12: { run: "newer", iteration: 0 } });
  await settled();
  assert.match(textOf(node, "otca-curves-coming"), /new run: newer/, "a server that was away is asked again");
  end();
  comfyuiMakes.prompt = null;
});

test("pictures of an evaluation that could not be read once come with the next iteration, and the curves without them", async () => {
  const node = made(12, RUN);
  await load("a", node);
  const evaluations = [0, 2].map((iteration) => ({ iteration, since: 0, rewards: { judge: { mean: 0.3, std: 0.4, standard_error: 0.1, held_out: false } } }));
  const grids = [0, 2].map((iteration) => ({ iteration, file: `${iteration}.png`, size: [8, 8], pictures: [{ prompt: "a", seed: 0, box: [0, 0, 8, 8] }] }));
  const recorded = async (iteration) => {
    const rows = [{ iteration, "reward/judge/mean": 0.3 }];
    api.answers.set(`/otca/runs/mine/metrics?after=${iteration > 2 ? 2 : 0}`, { rows, evaluations, changes: [] });
    send("otca.result", { kind: "run", node: "12", data: { run: "mine", iteration, workflow_id: "a" } });
    await settled();
  };
  await recorded(2);
  assert.equal(node.roots[0].all("otca-curves-plot").length, 1);
  api.answers.set("/otca/runs/mine/samples", { grids });
  await recorded(3);
  assert.equal(node.roots[0].all("otca-strip")[0].hidden, false);
});
