// @ts-check
/**
 * All that this extension asks of ComfyUI's page. The only module that imports ComfyUI's scripts, so that a change of
 * theirs is mended here.
 */
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { areHeld, heldValue, releasedValue } from "./lib/controls.js";
import { SMALLEST, opening } from "./lib/framing.js";
import { linkColorRule, withLinkColors } from "./lib/links.js";
import { besides, inColumns, jointOf } from "./lib/place.js";

export { app, api };

const rules = { links: document.createElement("style"), text: document.createElement("style") };
const NOTE = "OTCA note"; // property of a note that belongs to one of our templates
const MODELS = new Set(["OTCA_MakeTrainable", "OTCA_LoadFlowModel"]);

/**
 * The node's definition as /object_info gives it: {name, output: [types], …}; undefined for notes and reroutes.
 *
 * @param {GraphNode} node
 */
export function nodeDefinition(node) {
  return /** @type {{nodeData?: Definition}} */ (/** @type {unknown} */ (node.constructor)).nodeData;
}

/**
 * What a class of nodes has where a graph says nothing: {input: value}.
 *
 * @param {string} kind
 * @returns {Record<string, unknown>}
 */
export function defaultsOf(kind) {
  const { required, optional } = window.LiteGraph.registered_node_types[kind]?.nodeData?.input ?? {};
  const inputs = Object.entries({ ...required, ...optional }).filter(([, [, options]]) => options && "default" in options);
  return Object.fromEntries(inputs.map(([name, [, options]]) => [name, options?.default]));
}

function rootGraph() {
  return app.rootGraph ?? app.graph;
}

/**
 * Every node of the workflow with its id as the server sees it: "7", or a path such as "3:7" inside a subgraph.
 *
 * @returns {Generator<{node: GraphNode, id: string}>}
 */
export function* allNodes(graph = rootGraph(), prefix = "") {
  for (const node of graph.nodes) {
    const id = prefix + node.id;
    yield { node, id };
    if (node.isSubgraphNode?.()) yield* allNodes(node.subgraph, `${id}:`);
  }
}

/**
 * ComfyUI lets new seeds jump at random; an iteration is the one before plus one, here as in the headless trainer.
 *
 * @param {GraphNode} node
 */
export function advanceByOne(node) {
  for (const { control } of controlsOf(node)) control.value = "increment";
}

/**
 * The widgets whose values move on after each prompt, each with the one that says how.
 *
 * @param {GraphNode} node
 */
function controlsOf(node) {
  return (node.widgets ?? []).flatMap((widget) =>
    (widget.linkedWidgets ?? [])
      .filter((linked) => linked.name === "control_after_generate")
      .map((control) => ({ widget, control })),
  );
}

/** @param {GraphNode} node */
function isOurs(node) {
  return Boolean(nodeDefinition(node)?.name?.startsWith("OTCA_"));
}

function ourNodes() {
  return [...allNodes()].filter(({ node }) => isOurs(node));
}

function ourControls() {
  // An input is known by its key for as long as the page is open; its widget is made anew by undo and by a change of tabs.
  return ourNodes().flatMap(({ node, id }) =>
    controlsOf(node).map((found) => ({ ...found, node, id, key: `${rootGraph().id} ${id} ${found.widget.name}` })),
  );
}

/** Whether the next prompt samples what the last one did. */
export function samplesAreHeld() {
  return areHeld(ourControls().map(({ control }) => control.value));
}

/**
 * Keeps prompts and noise of the last prompt, or lets them move on again.
 *
 * @param {boolean} hold
 */
export function holdSamples(hold) {
  for (const { widget, control, key } of ourControls()) {
    const known = advancing.get(key);
    if (known) known.untouched = false; // a run that was trained on samples twice is ahead of its seeds
    const queued = queuedValues.get(key);
    const value = hold ? heldValue(control.value, queued ?? drawnValues.get(key), widget.value, drawnValues.get(key)) : releasedValue(queued, widget.value);
    control.value = hold ? "fixed" : "increment";
    if (value === widget.value) continue;
    widget.value = value;
    widget.callback?.(value);
  }
  rootGraph().setDirtyCanvas(true, true);
}

/**
 * Puts what moves on with every prompt to where it stands after so many iterations of a graph in API form. Seeds of other
 * nodes, as of a KSampler that shows the model before and after, stay as they are.
 *
 * @param {Prompt} prompt
 * @param {number} iterations
 */
export function advanceTo(prompt, iterations) {
  for (const { node, id, widget } of ourControls()) {
    const begun = prompt[id]?.inputs[widget.name];
    if (Number.isInteger(begun)) setWidget(node, widget.name, begun + iterations);
  }
}

/**
 * What moves on with every prompt, by workflow, node and input: its value in the file, the least that we set, the one that was seen
 * last, and whether that is the file's or ours, or a prompt of this page moved it on: the user has not set it since. It outlives the
 * nodes, which undo makes anew.
 *
 * @type {Map<string, {file: number, least: number, seen: number, untouched: boolean}>}
 */
const advancing = new Map();

/**
 * Calls back for each of our inputs that moves on by one with every prompt; `key` is its key in `advancing`.
 *
 * @param {(key: string, node: GraphNode, widget: Widget, id: string) => void} callback
 */
function forEachIncrement(callback) {
  for (const { node, id, widget, control, key } of ourControls()) if (control.value === "increment") callback(key, node, widget, id);
}

/** Takes the values of a workflow that was opened for those of its file, unless it was open before and has only been shown again. */
export function noticeOpened() {
  forEachIncrement((key, _node, { value }) => {
    const known = advancing.get(key);
    if (!known || (value === known.file && value !== known.seen)) advancing.set(key, { file: value, least: value, seen: value, untouched: true });
  });
}

/**
 * Has what moves on with every prompt go on where the run stopped, and begin as in the file where a new run begins: else an opened
 * template would repeat the prompts and the noise of the run's beginning. What the user has set stays.
 *
 * @param {Coming["at"]} at
 */
export function goOnAt(at) {
  forEachIncrement((key, node, widget, id) => {
    const known = advancing.get(key);
    if (!known) return;
    const moved = widget.value > known.seen && widget.value === queuedValues.get(key) + (movesOnBefore() ? 0 : 1);
    known.untouched &&= moved || widget.value === known.seen;
    if (moved) known.least = widget.value; // never back: prompts may wait
    known.seen = widget.value;
    if (!known.untouched) return;
    const stopped = at.find(([place, name]) => place === id && name === widget.name);
    known.seen = stopped ? Math.max(known.least, stopped[2]) : known.least;
    if (known.seen !== widget.value) setWidget(node, widget.name, known.seen);
  });
}

/**
 * Which of these inputs has the value given, and so goes on there: its name for a person, and the value.
 *
 * @param {Coming["at"]} at
 * @returns {[string, number] | null}
 */
export function goesOnAt(at) {
  for (const [id, name, value] of at) {
    const widget = findNode(id)?.widgets?.find((candidate) => candidate.name === name);
    if (widget?.value === value) return [widget.label ?? name, value];
  }
  return null;
}

/** @type {Map<string, any>} */
const queuedValues = new Map(); // by key: the value in the prompt that was queued last …
/** @type {Map<string, any>} */
const drawnValues = new Map(); // … and in the one whose samples are shown: those that were queued after it may have been cancelled

/**
 * Notices what moves on with every prompt as it was in the one whose samples are shown.
 *
 * @param {Coming["at"]} drawn
 */
export function noticeDrawn(drawn) {
  for (const [id, name, value] of drawn) drawnValues.set(`${rootGraph().id} ${id} ${name}`, value);
}

const movesOnBefore = () => app.extensionManager.setting.get("Comfy.WidgetControlMode") === "before";

/**
 * Has a widget of ours notice prompts: ComfyUI asks all widgets before and after it queues one.
 *
 * @param {Widget} ours
 */
export function noticeQueuedValues(ours) {
  const remember = () => ourControls().forEach(({ widget, key }) => queuedValues.set(key, widget.value));
  ours.beforeQueued = () => movesOnBefore() || remember();
  ours.afterQueued = () => movesOnBefore() && remember();
}

/**
 * Whether a result was computed from the workflow that is open: ids of nodes are the same in many workflows.
 *
 * @param {Queued} result
 */
export function isOfOpenWorkflow({ workflow_id: id }) {
  return id === rootGraph().id;
}

/** @param {string} id */
export function findNode(id) {
  for (const entry of allNodes()) if (entry.id === id) return entry.node;
  return null;
}

/** Has ComfyUI know what our server sends, before it is listened to: of what it does not know, it complains. */
export function announceEvents() {
  for (const type of ["otca.result", "otca.questions", "otca.refused"]) api.addEventListener(type, () => {});
}

/**
 * Calls back for what our nodes send, whoever queued them: (kind, data, executionId), kind being "credit", "advantages",
 * "scores" or "run".
 *
 * @param {(kind: string, data: any, node: string) => void} callback
 */
export function onNodeResult(callback) {
  api.addEventListener("otca.result", ({ detail: { kind, data, node } }) => callback(kind, data, node));
}

/**
 * Calls back with what a node returned for the page, whenever it has run.
 *
 * @param {GraphNode} node
 * @param {(output: Record<string, any>) => void} callback
 */
export function onOutput(node, callback) {
  const before = node.onExecuted;
  node.onExecuted = (output) => {
    before?.call(node, output);
    callback(output ?? {});
  };
}

/**
 * Calls back when a training asks people something, or stops asking.
 *
 * @param {() => void} callback
 */
export function onQuestions(callback) {
  api.addEventListener("otca.questions", () => callback());
}

/** @type {WeakMap<GraphNode, (name: string, box: HTMLInputElement) => void>} */
const textBoxes = new WeakMap();

/**
 * Calls back with the name of the widget and its box whenever somebody goes into a text box on a node, as Nodes 2.0 has them.
 *
 * @param {GraphNode} node
 * @param {(name: string, box: HTMLInputElement) => void} callback
 */
export function onTextBox(node, callback) {
  document.addEventListener("focusin", enteredTextBox); // once: it is the same function
  textBoxes.set(node, callback);
}

/** @param {FocusEvent} event */
function enteredTextBox({ target }) {
  if (!(target instanceof HTMLInputElement) || target.type !== "text") return;
  const id = target.closest("[data-node-id]")?.getAttribute("data-node-id");
  const node = id ? app.canvas.graph.getNodeById(/** @type {any} */ (id)) : null;
  const called = target.getAttribute("aria-label");
  const widget = node?.widgets?.find(({ name, label }) => name === called || label === called);
  if (node && widget) textBoxes.get(node)?.(widget.name, target);
}

/**
 * What the server knows for inputs of that kind, whatever the graph is: {values, several}.
 *
 * @param {string} kind
 */
export function suggestions(kind) {
  return getJson(`/otca/suggestions?kind=${encodeURIComponent(kind)}`);
}

/**
 * What follows from the graph as it stands, for an input of that node.
 *
 * @param {string} kind
 * @param {GraphNode} node
 */
export async function suggestionsByGraph(kind, node) {
  const { output } = await exportedGraph();
  const id = [...allNodes()].find((entry) => entry.node === node)?.id;
  return postJson("/otca/suggestions", { kind, node: id, prompt: output });
}

/** What the nodes of the open workflow last showed, as far as it was made by this very graph: {id: {kind: data}}. */
export async function lastResults() {
  const { output } = await exportedGraph();
  if (!Object.keys(output).length) return {};
  return postJson("/otca/results", { prompt: output, workflow: rootGraph().id ?? null });
}

/**
 * Which run each Training Run of the open workflow would go on with: {id: Coming}. null if another workflow was opened meanwhile.
 *
 * @returns {Promise<Record<string, Coming> | null>}
 */
export async function comingRuns() {
  const asked = rootGraph().id;
  const { output } = await exportedGraph();
  if (!Object.values(output).some(({ class_type }) => class_type === "OTCA_TrainingRun")) return {};
  const runs = await postJson("/otca/coming", { prompt: output });
  return asked === rootGraph().id ? runs : null;
}

/**
 * Whether what each Make Trainable of the open workflow trains fits on the server's machine, and what the models are made for:
 * {lights: {id: Light}, own: {id of a node that samples: {input: value}}}.
 */
export async function lights() {
  const { output } = await exportedGraph();
  if (!Object.values(output).some(({ class_type }) => MODELS.has(class_type))) return { lights: {}, own: {} };
  return postJson("/otca/fits", { prompt: output });
}

const graph = new EventTarget(); // tells of what we change ourselves, which ComfyUI does not hear of

/**
 * Calls back when the open workflow was changed, by the user or by us.
 *
 * @param {() => void} callback
 */
export function onGraphChanged(callback) {
  api.addEventListener("graphChanged", () => callback());
  graph.addEventListener("changed", () => callback());
  // A bypass or a mute is no change to ComfyUI, or one that it tells of before it is there.
  const modes = () => [...allNodes()].map(({ node, id }) => `${id} ${node.mode}`).join();
  let before = "";
  const look = () => {
    const now = modes();
    if (now !== before) callback();
    before = now;
  };
  for (const type of ["keyup", "click"]) document.addEventListener(type, () => setTimeout(look), { capture: true });
}

/** What the open workflow asks for beyond its own data: see /otca/permissions/wants. */
export async function workflowsWants() {
  const { output } = await exportedGraph();
  if (!Object.keys(output).length) return [];
  return (await postJson("/otca/permissions/wants", { prompt: output })).wants;
}

/**
 * Whether this page may start and stop processes, and how the user allows it: it can change whenever ComfyUI starts anew.
 *
 * @returns {Promise<Word>}
 */
export async function trainingsWord() {
  return (await getJson("/otca/machine")).trainings;
}

/**
 * JSON from one of our routes; an Error with the server's own message where it refuses.
 *
 * @param {string} route
 */
export async function getJson(route) {
  return unpacked(await api.fetchApi(route));
}

/** @param {string} route */
export async function postJson(route, body = {}) {
  const headers = { "Content-Type": "application/json" };
  return unpacked(await api.fetchApi(route, { method: "POST", headers, body: JSON.stringify(body) }));
}

/**
 * An object URL of a picture; whoever asked revokes it.
 *
 * @param {string} route
 * @param {AbortSignal} signal
 */
export async function getPicture(route, signal) {
  const response = await api.fetchApi(route, { signal });
  if (!response.ok) throw await refusal(response);
  return URL.createObjectURL(await response.blob());
}

/** @param {Response} response */
async function unpacked(response) {
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/**
 * An Error with the server's message, its status, and what else it said of the refusal (`problems`).
 *
 * @param {Response} response
 */
async function refusal(response) {
  const { status, statusText } = response;
  const text = await response.text();
  try {
    const { error, ...more } = JSON.parse(text);
    return Object.assign(new Error(error ?? text), { status, ...more });
  } catch {
    return Object.assign(new Error(`${status} ${statusText}`), { status }); // a proxy's page, or a server without our routes
  }
}

/**
 * severity: "success" | "info" | "warn" | "error"
 *
 * @param {"success" | "info" | "warn" | "error"} severity
 * @param {string} summary
 */
export function toast(severity, summary, detail = "") {
  app.extensionManager.toast.add({ severity, summary, detail, life: severity === "error" ? 10000 : 5000 });
}

/**
 * Front ends before 1.30 carry it on the manager itself, later ones below `sidebarTab`.
 *
 * @param {object} tab
 */
export function registerSidebar(tab) {
  const manager = app.extensionManager;
  if (manager.registerSidebarTab) manager.registerSidebarTab(tab);
  else manager.sidebarTab.registerSidebarTab(tab);
}

/**
 * Calls back for each node of a prompt of this page's of which the server refuses inputs, with their names.
 *
 * @param {(id: string, inputs: string[]) => void} callback
 */
export function onRefusedInputs(callback) {
  api.addEventListener("otca.refused", ({ detail: { inputs } }) => {
    for (const [id, names] of Object.entries(inputs)) callback(id, names);
  });
}

/**
 * Calls back with the packages that a graph of this page's lacks, where the server has refused it for that.
 *
 * @param {(missing: Missing[]) => void} callback
 */
export function onMissingPackages(callback) {
  api.addEventListener("otca.refused", ({ detail: { packages } }) => packages?.length && callback(packages));
}

/**
 * Presses the button by which Nodes 2.0 shows a node's advanced inputs. Returns whether there is one: it says what it will do, and
 * does not hear of what is set otherwise.
 *
 * @param {GraphNode} node
 */
export function pressAdvanced(node) {
  const shown = node.graph === app.canvas.graph;
  const place = shown && document.querySelector(`[data-node-id="${node.id}"] [data-testid="advanced-inputs-button"]`);
  if (place instanceof HTMLElement) place.click();
  return place instanceof HTMLElement;
}

/** Whether the user wants to see all advanced inputs of all nodes: a setting of newer ComfyUI. */
export function alwaysShowsAdvanced() {
  return app.extensionManager.setting.get("Comfy.Node.AlwaysShowAdvancedWidgets") === true;
}

const NODES_2 = "Comfy.VueNodes.Enabled";

/** Whether nodes are drawn as elements of the page, not on the canvas. */
export function showsNodes2() {
  return app.extensionManager.setting.get(NODES_2) === true;
}

/**
 * Calls back when nodes are drawn in the other way from now on.
 *
 * @param {() => void} callback
 */
export function onRenderer(callback) {
  // Some front ends tell of a setting just before they change it.
  app.ui.settings.addEventListener(`${NODES_2}.change`, () => setTimeout(callback));
}

/** @param {string} id */
export function settingOf(id) {
  return app.extensionManager.setting.get(id);
}

/**
 * @param {string} id
 * @param {unknown} value
 */
export async function changeSetting(id, value) {
  await app.extensionManager.setting.set(id, value);
}

/** How much the graph is magnified; a canvas needs as many more pixels to stay sharp. */
export function graphZoom() {
  return app.canvas?.ds?.scale ?? 1;
}

/**
 * Calls back once the user has stopped zooming at another magnification. Returns a function that ends it.
 *
 * @param {() => void} callback
 */
export function onZoom(callback) {
  let shown = graphZoom();
  const timer = setInterval(() => {
    if (graphZoom() === shown) return;
    shown = graphZoom();
    callback();
  }, 150);
  return () => clearInterval(timer);
}

/**
 * Calls back when the colour palette changes: it lives in classes and style variables of <html> and <body>.
 *
 * @param {() => void} callback
 */
export function onTheme(callback) {
  const observer = new MutationObserver(callback);
  for (const element of [document.documentElement, document.body]) {
    observer.observe(element, { attributes: true, attributeFilter: ["class", "style"] });
  }
  return () => observer.disconnect();
}

/**
 * Puts an element on a node, below its inputs. Nothing of it is saved or queued: else it would be an input of the node, and
 * change ComfyUI's cache key.
 *
 * ComfyUI's Properties panel shows the widgets of the selected node once more. What it cannot show it lists as an empty row, and
 * writes its own width into the widget, which from then on is the width on the canvas. So ours are not listed there, and have no
 * width but the node's.
 *
 * @param {GraphNode} node
 * @param {string} name
 * @param {HTMLElement} element
 * @param {{least: () => number, most?: () => number}} height in pixels of the graph
 */
export function addElement(node, name, element, { least, most }) {
  const widget = node.addDOMWidget(name, name.toUpperCase(), element, {
    serialize: false,
    hideOnZoom: false,
    hideInPanel: true,
    getMinHeight: least,
    ...(most && { getMaxHeight: most }),
    getValue: () => "",
    setValue: () => {},
  });
  widget.serialize = false;
  element.dataset.otcaWidget = name;
  Object.defineProperty(widget, "width", { get: () => undefined, set: () => {}, configurable: true });
  return widget;
}

/**
 * Shows the elements of the nodes that are here now. Undo makes a graph's nodes anew, and Nodes 2.0 of front end 1.58 goes on to show
 * the elements of those that had their ids.
 */
export async function mountAgain() {
  if (!showsNodes2()) return;
  await drawn();
  for (const node of app.canvas.graph.nodes) {
    for (const { name, element } of node.widgets ?? []) {
      if (!element?.dataset?.otcaWidget || element.isConnected) continue;
      document.querySelector(`[data-node-id="${node.id}"] [data-otca-widget="${name}"]`)?.replaceWith(element);
    }
  }
}

/**
 * Lets the wheel zoom and the middle button move the graph where a widget would swallow them.
 *
 * @param {HTMLElement} element
 */
export function passGesturesToGraph(element) {
  const pass = (/** @type {MouseEvent} */ event) => {
    event.preventDefault();
    event.stopPropagation();
    const Same = /** @type {typeof PointerEvent} */ (event.constructor);
    app.canvas.canvas.dispatchEvent(new Same(event.type, event));
  };
  element.addEventListener("wheel", pass);
  element.addEventListener("pointerdown", (event) => event.button === 1 && pass(event));
  element.addEventListener("pointermove", (event) => event.buttons & 4 && pass(event));
  element.addEventListener("pointerup", (event) => event.button === 1 && pass(event));
}

/**
 * Makes the node as tall as its widgets need, never shorter than the user made it, and draws it again.
 *
 * @param {GraphNode} node
 */
export function growNode(node) {
  const [width, height] = node.size;
  const needed = node.computeSize()[1];
  if (needed > height) node.setSize([width, needed]);
  node.setDirtyCanvas(true, true);
}

/* ---- The sidebar's part ---------------------------------------------------------------------------------------- */

/**
 * Opens one of the sidebar's tabs, if another or none is open.
 *
 * @param {string} id
 */
export function openSidebar(id) {
  const sidebar = app.extensionManager.sidebarTab;
  if (sidebar.activeSidebarTabId !== id) sidebar.toggleSidebarTab(id);
}

/**
 * Closes it, if it is open: what it has opened lies below it.
 *
 * @param {string} id
 */
export function closeSidebar(id) {
  const sidebar = app.extensionManager.sidebarTab;
  if (sidebar.activeSidebarTabId === id) sidebar.toggleSidebarTab(id);
}

/**
 * Calls back when the server is heard again: what it sent meanwhile is lost.
 *
 * @param {() => void} callback
 */
export function onReconnected(callback) {
  api.addEventListener("reconnected", () => callback());
}

/**
 * Calls back when a prompt starts: started(); with the nodes that it has nothing to do for: cached(ids, workflow); and when one of
 * its nodes fails: failed(message, id, workflow); both unless the next prompt has started by then. `workflow` is the id of the one
 * that was queued, as far as it has one.
 *
 * @param {object} callbacks
 * @param {() => void} callbacks.started
 * @param {(ids: string[], workflow: string | undefined) => void} callbacks.cached
 * @param {(message: string, id: string, workflow: string | undefined) => void} callbacks.failed
 * @param {(workflow: string | undefined) => void} callbacks.interrupted
 */
export function onExecution({ started, cached, failed, interrupted }) {
  let starts = 0;
  api.addEventListener("execution_start", () => {
    starts += 1;
    started();
  });
  api.addEventListener("execution_interrupted", async ({ detail }) => interrupted(await workflowOf(detail.prompt_id)));
  api.addEventListener("execution_cached", async ({ detail }) => {
    const before = starts;
    const ids = detail.nodes.map(String).filter((/** @type {string} */ id) => findNode(id)?.type === "OTCA_TrainingRun");
    if (!ids.length) return;
    const workflow = await workflowOf(detail.prompt_id);
    if (starts === before) cached(ids, workflow);
  });
  api.addEventListener("execution_error", async ({ detail }) => {
    const before = starts;
    const workflow = await workflowOf(detail.prompt_id);
    if (starts === before) failed(detail.exception_message, String(detail.node_id), workflow);
  });
}

/** @param {number} count how often the graph that is open is queued, as by ComfyUI's Run with that number beside it */
export const queueRuns = (count) => app.queuePrompt(0, count);

/**
 * The ids of the prompts of the open workflow that wait in the queue, or of the one that runs.
 *
 * @param {"queue_pending" | "queue_running"} [state]
 */
export async function waitingHere(state = "queue_pending") {
  const ours = (await getJson("/queue"))[state].filter((/** @type {any[]} */ [, , , extra]) => isOfOpenWorkflow({ workflow_id: extra.extra_pnginfo?.workflow?.id }));
  return ours.map((/** @type {[number, string]} */ [, id]) => id);
}

/** @param {string[]} ids of prompts that are to leave the queue */
export async function takeOut(ids) {
  const response = await api.fetchApi("/queue", { method: "POST", body: JSON.stringify({ delete: ids }) });
  if (!response.ok) throw await refusal(response);
}

/**
 * Calls back with how many prompts are in the queue, the one that runs included.
 *
 * @param {(waiting: number) => void} callback
 */
export function onQueue(callback) {
  api.addEventListener("status", ({ detail }) => callback(detail?.exec_info?.queue_remaining ?? 0));
}

/**
 * The id of the workflow that a prompt was made from: another may have been opened since, before it even started.
 *
 * @param {string} prompt its id
 * @returns {Promise<string | undefined>}
 */
async function workflowOf(prompt) {
  const { queue_running: running } = await getJson("/queue");
  const queued = running.find((/** @type {[number, string]} */ [, id]) => id === prompt) ?? (await getJson(`/history/${prompt}`))[prompt].prompt;
  const [, , , extra] = queued;
  return extra.extra_pnginfo?.workflow?.id;
}

/**
 * ComfyUI's own Stop: ends the prompt that runs.
 *
 * @param {string | null} [prompt] its id: no other one is ended
 */
export function interrupt(prompt = null) {
  return api.interrupt(prompt);
}

/**
 * The address of one of our routes, for an <img>.
 *
 * @param {string} route
 */
export function routeUrl(route) {
  return api.apiURL(route);
}

/**
 * The address of a picture that a node wrote: {filename, subfolder, type}; `rand` tells a new one from its predecessor.
 *
 * @param {PictureFile} picture
 * @param {number} rand
 */
export function viewUrl(picture, rand) {
  return api.apiURL(`/view?${new URLSearchParams({ ...picture, rand: String(rand) })}`);
}

/**
 * The canvas as it is queued and as it is saved: {output: API JSON, workflow: the canvas's own format}.
 *
 * Of a node whose class this ComfyUI does not know, some front ends leave out the class. Its name is put back, so that it can
 * be said.
 */
export async function exportedGraph() {
  const graph = await app.graphToPrompt();
  for (const [id, entry] of Object.entries(graph.output)) entry.class_type ??= findNode(id)?.type ?? "";
  return graph;
}

/**
 * Opens one of our templates, as its card in the list of templates does.
 *
 * @param {string} name
 */
export async function openTemplate(name) {
  const pack = decodeURIComponent(new URL(import.meta.url).pathname.split("/").at(-2) ?? "");
  const workflow = await getJson(`/workflow_templates/${encodeURIComponent(pack)}/${encodeURIComponent(name)}.json`);
  await openWorkflow({ workflow }, name);
}

/**
 * Opens a workflow of either format in a tab of its own.
 *
 * @param {SavedGraph} graph `note`: Markdown that stands before the graph
 * @param {string} name
 */
export async function openWorkflow({ workflow, prompt, note }, name) {
  if (workflow) return app.loadGraphData(workflow, true, true, name);
  await app.loadApiJson(prompt, name);
  drawn().then(() => layOut(note)); // a tab behind another one draws later
}

/**
 * Gives the nodes of a graph without places their columns, where ComfyUI has a row, and shows all of it, or where it trains.
 *
 * @param {string} [note]
 */
function layOut(note) {
  const graph = rootGraph();
  const run = graph.nodes.find(({ type }) => type === "OTCA_TrainingRun");
  run?.setSize([Math.max(run.size[0], RUN_WIDTH), run.size[1]]);
  for (const preview of graph.nodes.filter(isPreview)) preview.setSize(PREVIEW_SIZE);
  const uses = (/** @type {GraphNode} */ node) => (node.inputs ?? []).flatMap((_, slot) => node.getInputNode(slot) ?? []);
  const size = (/** @type {GraphNode} */ node) => [node.size[0], node.size[1] + (GAINS[node.type ?? ""] ?? 0)];
  const nodes = graph.nodes.map((node) => ({ id: node, size: size(node), uses: uses(node), anywhere: isPreview(node), grows: node === run }));
  for (const [node, place] of inColumns(nodes)) node.pos = place;
  if (note) {
    const first = window.LiteGraph.createNode("MarkdownNote");
    Object.assign(first, { pos: [-NOTE_SIZE[0] - 30, 0], properties: { [NOTE]: true } });
    graph.add(first);
    first.setSize(NOTE_SIZE);
    for (const { name } of first.widgets ?? []) setWidget(first, name, note); // it has one
  }
  frameNewGraph(OVERVIEW);
  drawn().then(() => run && !isInView(run) && showNode(String(run.id)));
}

const isPreview = (/** @type {GraphNode} */ { type }) => type === "PreviewImage";

/** @param {GraphNode} node */
function isInView({ pos, size }) {
  const [x, y, width, height] = app.canvas.ds.visible_area;
  return pos[0] >= x && pos[1] >= y && pos[0] + size[0] <= x + width && pos[1] + Math.min(size[1], height / 2) <= y + height;
}

const READABLE = 0.7; // how much the graph is magnified, at least, where a node is shown
const OVERVIEW = 0.6; // and where a whole graph is, that nobody laid out
/** @type {Record<string, number>} what lines make a node taller by, once it has run */
const GAINS = { OTCA_MakeTrainable: 80, OTCA_LoadFlowModel: 80, OTCA_SaveLoRA: 60 };
const RUN_WIDTH = 480; // of Training Run: two curves beside each other
/** @type {[number, number][]} */
const [NOTE_SIZE, PREVIEW_SIZE] = [[290, 560], [234, 300]];

/** Ends when the page was drawn twice: by then what ComfyUI does after it has opened a workflow is done. */
export async function drawn() {
  for (let frame = 0; frame < 2; frame++) await new Promise((done) => requestAnimationFrame(done));
}

/**
 * Selects a node and moves the canvas to it, into the subgraph that holds it; where that is gone, to the subgraph's node.
 *
 * @param {string} id
 */
export function showNode(id) {
  const node = findNode(id) ?? rootGraph().getNodeById(Number(id.split(":")[0]));
  if (!node) return;
  app.canvas.setGraph?.(node.graph);
  app.canvas.selectItems([node]);
  app.canvas.ds.scale = Math.max(app.canvas.ds.scale, READABLE);
  app.canvas.centerOnNode(node);
}

export function selectedNodes() {
  return Object.values(app.canvas.selected_nodes ?? {});
}

/**
 * All of a run's rows after an iteration, some thousands at a time: {rows, evaluations, changes}
 *
 * @param {string} run
 * @param {number} after
 */
export async function getMetrics(run, after) {
  const rows = [];
  for (;;) {
    const from = rows.at(-1)?.iteration ?? after;
    const answer = await getJson(`/otca/runs/${encodeURIComponent(run)}/metrics?after=${from}`);
    rows.push(...answer.rows);
    if (!answer.more || !answer.rows.length) return { ...answer, rows };
  }
}

/**
 * A new node at a free place beside the graph that is open, which is then in view.
 *
 * @param {string} type
 */
export function addNode(type) {
  const node = window.LiteGraph.createNode(type);
  const { graph } = app.canvas;
  node.pos = besides(graph.nodes.map(({ pos: [x, y], size: [width, height] }) => [x, y, width, height]));
  graph.add(node);
  app.canvas.selectItems([node]);
  app.canvas.centerOnNode(node);
  return node;
}

/**
 * Adds a loader for a LoRA: between the model and what uses it, where there is one such place, else beside the graph. Gives the
 * node, the title of the one that it has its model from, and whether something uses it.
 *
 * @returns {{node: GraphNode, source: string | null, isUsed: boolean}}
 */
export function addLoraLoader() {
  const { nodes } = app.canvas.graph;
  const plain = nodes.map(plainNode);
  const [model, clip] = [jointOf(plain, "MODEL"), jointOf(plain, "CLIP")];
  const node = addNode(model && clip ? "LoraLoader" : "LoraLoaderModelOnly");
  for (const [slot, joint] of (clip ? [model, clip] : [model]).entries()) if (model && joint) joinAt(node, slot, joint);
  return { node, source: model && nodeOf(model.from.node).title, isUsed: Boolean(model?.moved.length) };
}

/**
 * @param {GraphNode} node
 * @param {number} slot of the node, where its input and output of that type are
 * @param {import("./lib/place.js").Joint} joint
 */
function joinAt(node, slot, { from, moved }) {
  link(nodeOf(from.node), from.slot, node, slot);
  for (const user of moved) link(node, slot, nodeOf(user.node), user.slot);
}

/**
 * @param {GraphNode} from
 * @param {number} output
 * @param {GraphNode} to
 * @param {number} input
 */
function link(from, output, to, input) {
  from.connectSlots(from.outputs[output], to, to.inputs[input]);
}

/** @param {number | string} id */
function nodeOf(id) {
  return /** @type {GraphNode} */ (app.canvas.graph.getNodeById(Number(id)));
}

/**
 * @param {GraphNode} node
 * @returns {import("./lib/place.js").Plain}
 */
function plainNode(node) {
  const { id, type = "", inputs = [], outputs = [] } = node;
  const originOf = (/** @type {number} */ slot) => {
    const link = node.getInputLink(slot);
    return link && { node: link.origin_id, slot: link.origin_slot };
  };
  return {
    id,
    ours: type.startsWith("OTCA_"),
    outputs: outputs.map((output) => output.type),
    inputs: inputs.map((input, slot) => ({ type: input.type, origin: originOf(slot) })),
  };
}

/**
 * @param {GraphNode} node
 * @param {string} name
 * @param {any} value
 */
export function setWidget(node, name, value) {
  const widget = node.widgets?.find((candidate) => candidate.name === name);
  if (!widget) throw new Error(`${node.title} has no ${name}`);
  widget.value = value;
  widget.callback?.(value);
  node.setDirtyCanvas(true, true);
  graph.dispatchEvent(new Event("changed"));
}

/**
 * Has ComfyUI's undo take back all that an action changes at once.
 *
 * @param {() => void} action
 */
export function changeTogether(action) {
  app.canvas.emitBeforeChange();
  try {
    action();
  } finally {
    app.canvas.emitAfterChange();
  }
}

/** Makes lists of files on the canvas know what was written since the page was loaded. */
export function refreshCombos() {
  return app.refreshComboInNodes();
}

/** Gives each of our types its colour, on the canvas and in Nodes 2.0. */
export function colorLinks() {
  withLinkColors(app.canvas.default_connection_color_byType);
  withLinkColors(window.LGraphCanvas.link_type_colors);
  rules.links.textContent = linkColorRule();
  document.head.append(rules.links, rules.text);
}

/**
 * Shows a graph that was saved without a view, as templates are: as large as the page allows, and large enough to read. ComfyUI
 * would leave a quarter of the page empty. It sets its own view after this call, so that ours comes in the next frame.
 *
 * @param {number} [smallest] scale
 */
export function frameNewGraph(smallest = SMALLEST) {
  const graph = rootGraph();
  if (graph.extra?.ds) return;
  requestAnimationFrame(() => {
    const { canvas, ds } = app.canvas;
    const page = canvas.getBoundingClientRect();
    if (graph !== app.canvas.graph || !page.width) return;
    const covered = [...document.querySelectorAll(".side-bar-panel, .side-tool-bar-container, .sidebar-content-container")]
      .map((element) => element.getBoundingClientRect())
      .filter((box) => box.width && box.left < page.left + page.width / 3);
    const left = Math.max(0, ...covered.map((box) => box.right - page.left));
    const boxes = graph.nodes.map((node) => [...node.pos, ...node.size]);
    const { scale, offset } = opening(boxes, { width: page.width, height: page.height, left }, smallest);
    ds.scale = scale;
    ds.offset[0] = offset[0];
    ds.offset[1] = offset[1];
    app.canvas.setDirty(true, true);
  });
}

/**
 * Letters of our nodes' texts and our templates' notes: ComfyUI's own 10 units are 8 pixels where a graph is seen as a whole. Nodes
 * of others, and what the user's setting makes larger, stay as they are.
 */
export function enlargeText() {
  const name = "--comfy-textarea-font-size";
  const size = `max(${app.extensionManager.setting.get("Comfy.TextareaWidget.FontSize") ?? 10}px, 12.5px)`;
  const texts = [...allNodes()].filter(({ node }) => isOurs(node) || node.properties?.[NOTE]);
  for (const { node } of texts) for (const widget of node.widgets ?? []) widget.element?.style?.setProperty(name, size);
  // In Nodes 2.0, a node's elements come and go with what is in sight.
  rules.text.textContent = texts.map(({ node }) => `[data-node-id="${node.id}"] { ${name}: ${size}; }`).join("\n");
}
