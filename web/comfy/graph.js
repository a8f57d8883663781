// @ts-check
/** The graph that is open: its nodes and their values, how it is changed and queued, and what the server says of it. */
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { besides, jointOf } from "../lib/place.js";
import { postJson } from "./requests.js";

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

export function rootGraph() {
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

/** @param {GraphNode} node */
export function isOurs(node) {
  return Boolean(nodeDefinition(node)?.name?.startsWith("OTCA_"));
}

export function ourNodes() {
  return [...allNodes()].filter(({ node }) => isOurs(node));
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
  const workflow = rootGraph().id;
  const { output } = await exportedGraph();
  if (!Object.keys(output).length) return {};
  const results = await postJson("/otca/results", { prompt: output, workflow: workflow ?? null });
  return workflow === rootGraph().id ? results : {}; // another workflow was opened meanwhile
}

/**
 * Which run each Training Run of the open workflow would go on with: {id: Coming}. null if another workflow was opened meanwhile.
 *
 * @returns {Promise<Record<string, Coming> | null>}
 */
export async function comingRuns() {
  const workflow = rootGraph().id;
  const { output } = await exportedGraph();
  if (!Object.values(output).some(({ class_type }) => class_type === "OTCA_TrainingRun")) return {};
  const runs = await postJson("/otca/coming", { prompt: output });
  return workflow === rootGraph().id ? runs : null;
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

export function selectedNodes() {
  return Object.values(app.canvas.selected_nodes ?? {});
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
 * @param {import("../lib/place.js").Joint} joint
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
 * @returns {import("../lib/place.js").Plain}
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
