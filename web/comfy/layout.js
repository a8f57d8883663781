// @ts-check
/** How a graph lies on the canvas: a workflow that is opened, a node that is shown, colours and letters. */
import { app } from "../../../scripts/app.js";
import { opening, SMALLEST } from "../lib/framing.js";
import { linkColorRule, withLinkColors } from "../lib/links.js";
import { inColumns } from "../lib/place.js";
import { allNodes, findNode, isOurs, rootGraph, setWidget } from "./graph.js";
import { getJson } from "./requests.js";

/** The style sheets of our own: colours of links, sizes of texts. */
const [linkColors, textSizes] = [document.createElement("style"), document.createElement("style")];
const NOTE = "OTCA note"; // property of a note that belongs to one of our templates

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
 * Opens one of our templates, as its card in the list of templates does.
 *
 * @param {string} name
 */
export async function openTemplate(name) {
  const pack = decodeURIComponent(new URL(import.meta.url).pathname.split("/").at(-3) ?? "");
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

/** Gives each of our types its colour, on the canvas and in Nodes 2.0. */
export function colorLinks() {
  withLinkColors(app.canvas.default_connection_color_byType);
  withLinkColors(window.LGraphCanvas.link_type_colors);
  linkColors.textContent = linkColorRule();
  document.head.append(linkColors, textSizes);
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
  textSizes.textContent = texts.map(({ node }) => `[data-node-id="${node.id}"] { ${name}: ${size}; }`).join("\n");
}
