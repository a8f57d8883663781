// @ts-check
/**
 * Registers the extension: puts widgets on our nodes, hands them what the server computed, opens the sidebar.
 */
import * as comfy from "./comfy.js";
import { openWhatWasLeft } from "./gallery/canvas.js";
import { setupGallery } from "./gallery/tab.js";
import { t } from "./lib/language.js";
import { LiveWidgets } from "./lib/live.js";
import { newest } from "./lib/newest.js";
import { stageColor } from "./lib/stages.js";
import { leaveOutGone, renew } from "./lib/values.js";
import { showNewWants } from "./sidebar/actions.js";
import { askToNotify, beginWithDefaults, otcaSettings } from "./sidebar/settings.js";
import { followAgain, setupSidebar, sidebarCommands } from "./sidebar/sidebar.js";
import { votePanel } from "./vote/panel.js";
import { advancedWidget } from "./widgets/advanced.js";
import { curvesWidget } from "./widgets/curves.js";
import { heatmapWidget } from "./widgets/heatmap.js";
import { showMissing } from "./widgets/missing.js";
import { newRunWidget } from "./widgets/newrun.js";
import { ownWidget } from "./widgets/own.js";
import { ownerWidget } from "./widgets/owner.js";
import { releaseWidget } from "./widgets/release.js";
import { savedWidget } from "./widgets/saved.js";
import { OPENS, scoresWidget } from "./widgets/scores.js";
import { socketsWidget } from "./widgets/sockets.js";
import { suggestWidget } from "./widgets/suggest.js";

/** @type {OurWidget[]} */
const WIDGETS = [
  ...[advancedWidget, heatmapWidget, socketsWidget, scoresWidget],
  ...[newRunWidget, curvesWidget, ownerWidget, ownWidget, releaseWidget, savedWidget, suggestWidget],
];

const live = new LiveWidgets();

/** @type {Record<string, Definition>} */
let definitions = {};

/**
 * A result of the workflow that is open. One that a script queued names no workflow: the server knows whether this is its graph.
 *
 * @param {string} kind
 * @param {any} data
 * @param {string} id
 */
function received(kind, data, id) {
  if (!data.workflow_id) replaySoon();
  else if (comfy.isOfOpenWorkflow(data)) deliver(kind, data, id);
}

/**
 * @param {string} kind
 * @param {any} data
 * @param {string} id
 */
function deliver(kind, data, id) {
  if (kind === "scores" || kind === "credit") comfy.noticeDrawn(data.drawn ?? []);
  for (const target of new Set([id, data.credit_node])) {
    const node = target && comfy.findNode(target);
    for (const widget of live.of(node)) widget.show(kind, data);
  }
}

/**
 * @param {string} kind
 * @param {object} data
 */
function deliverToAll(kind, data = {}) {
  for (const { id } of comfy.allNodes()) deliver(kind, data, id);
}

/** A reload of the page forgets what it was sent, and a lost connection loses it; the server does not. */
async function replay() {
  /** @type {(error: Error) => Record<string, Record<string, any>>} */
  const none = () => ({});
  if (![...comfy.allNodes()].some(({ node }) => live.of(node).length)) return;
  const results = Object.entries(await comfy.lastResults().catch(none));
  // Credit comes first: advantages are about a credit that is already shown.
  for (const [id, { credit }] of results) if (credit) deliver("credit", credit, id);
  for (const [id, payloads] of results) {
    for (const [kind, data] of Object.entries(payloads)) if (data) deliver(kind, data, id);
  }
}

/**
 * A function that calls back once, a moment after the last of several calls.
 *
 * @param {() => unknown} action
 */
function soon(action) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let waiting;
  return () => {
    clearTimeout(waiting);
    waiting = setTimeout(action, 100);
  };
}

const replaySoon = soon(replay);
const showWantsSoon = soon(
  () => hasOurs() && showNewWants(comfy).catch((error) => comfy.toast("warn", "OTCA", error.message)),
);
const foreseen = newest();
const foreseeSoon = soon(async () => {
  const isNewest = foreseen();
  const runs = await comfy.comingRuns().catch(() => null); // of what is wrong with a graph, its Run will tell
  if (!runs || !isNewest()) return;
  const coming = Object.values(runs);
  if (coming.length) comfy.goOnAt(coming.flatMap(({ at = [] }) => at));
  for (const { id } of comfy.allNodes()) deliver("coming", runs[id] ?? {}, id);
});
// Once ComfyUI has opened its own graph: what is opened before that, it replaces.
const openLeftSoon = soon(() => openWhatWasLeft(comfy).catch((error) => comfy.toast("warn", "OTCA", error.message)));
const lit = newest();
const lightSoon = soon(async () => {
  const isNewest = lit();
  const { lights, own } = await comfy.lights().catch(() => ({ lights: {}, own: {} }));
  if (!isNewest()) return; // the graph has changed since
  for (const { id } of comfy.allNodes()) deliver("light", { light: lights[id] ?? null, own: own[id] }, id);
});
const enlargeTextSoon = soon(comfy.enlargeText);
const hasOurs = () => [...comfy.allNodes()].some(({ node }) => comfy.nodeDefinition(node)?.name?.startsWith("OTCA_"));

// Width and height that a new node has at least, so that what it will show can be read. A node that is loaded or pasted comes with
// a size of its own, which is set later.
/** @type {[(definition: Definition) => boolean, number, number][]} */
const READABLE = [
  [({ name }) => name === "OTCA_TrainingRun", 480, 640],
  [scoresWidget.fits, OPENS[0], OPENS[1]],
  [({ name }) => name === "OTCA_PromptDataset", 400, 340],
];
const HEATMAP = [400, 600];

/**
 * @param {GraphNode} node
 * @param {Definition} definition
 */
function openReadable(node, definition) {
  const found = READABLE.find(([is]) => is(definition));
  const [width, height] = found ? found.slice(1).map(Number) : heatmapWidget.fits(definition) ? HEATMAP : [0, 0];
  if (width) node.setSize([Math.max(node.size[0], width), Math.max(node.size[1], height)]);
}

comfy.announceEvents();
comfy.app.registerExtension({
  name: "ComfyUI-OTCA",
  ...sidebarCommands(comfy),

  settings: otcaSettings(comfy, { notify: (wanted) => wanted && askToNotify(comfy), changed: followAgain }),

  setup() {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = new URL("./otca.css", import.meta.url).href;
    document.head.append(style);
    comfy.colorLinks();
    comfy.onNodeResult(received);
    comfy.onExecution({
      started: () => deliverToAll("started"),
      cached: (ids, workflow) => {
        if (!workflow || comfy.isOfOpenWorkflow({ workflow_id: workflow })) for (const id of ids) deliver("cached", {}, id);
      },
      failed: (message, id, workflow) =>
        (!workflow || comfy.isOfOpenWorkflow({ workflow_id: workflow })) && deliver("error", { message }, id),
      interrupted: (workflow) => (!workflow || comfy.isOfOpenWorkflow({ workflow_id: workflow })) && deliverToAll("interrupted"),
    });
    comfy.onQueue((waiting) => {
      deliverToAll("queue", { waiting });
      if (!waiting) foreseeSoon();
    });
    comfy.onGraphChanged(foreseeSoon);
    comfy.onGraphChanged(lightSoon);
    comfy.onRefusedInputs((id, inputs) => deliver("refused", { inputs }, id));
    comfy.onMissingPackages((missing) => showMissing(comfy, missing));
    comfy.onReconnected(() => {
      replay();
      foreseeSoon();
      lightSoon();
    });
    comfy.onRenderer(() => deliverToAll("renderer"));
    const votes = votePanel(comfy, { stop: () => comfy.interrupt() });
    comfy.onQuestions(votes.refresh);
    comfy.onReconnected(votes.refresh);
    votes.refresh();
    setupSidebar(comfy);
    setupGallery(comfy);
  },

  /** @param {Record<string, Definition>} all */
  addCustomNodeDefs(all) {
    definitions = Object.fromEntries(Object.entries(all).filter(([name]) => name.startsWith("OTCA_")));
  },

  /** @param {{nodes: import("./lib/values.js").Saved[], definitions?: {subgraphs?: {nodes: import("./lib/values.js").Saved[]}[]}}} graph */
  beforeConfigureGraph(graph) {
    const parts = [graph, ...(graph.definitions?.subgraphs ?? [])];
    for (const part of parts) renew(part, definitions);
    const gone = parts.flatMap(({ nodes }) => leaveOutGone(nodes, definitions));
    if (gone.length) comfy.toast("warn", t("Inputs that are no more were left out"), [...new Set(gone)].join("\n"));
  },

  /** @param {GraphNode} node */
  nodeCreated(node) {
    const definition = comfy.nodeDefinition(node);
    if (!definition?.name?.startsWith("OTCA_")) return;
    // What a saved workflow says of colours and controls comes later and stays.
    node.color ??= stageColor(definition.category);
    comfy.advanceByOne(node);
    enlargeTextSoon(); // its widgets come after this call
    beginWithDefaults(comfy, node);
    const widgets = WIDGETS.filter((widget) => widget.fits(definition)).map((widget) => widget.create(node, comfy));
    if (widgets.length) live.add(node, widgets);
    openReadable(node, definition);
  },

  afterConfigureGraph() {
    if (hasOurs()) comfy.frameNewGraph();
    comfy.enlargeText();
    comfy.mountAgain();
    live.keepOnly([...comfy.allNodes()].map(({ node }) => node));
    comfy.noticeOpened();
    deliverToAll("opened");
    // Neither is awaited: the workflow opens meanwhile. It is whole only after this call.
    replaySoon();
    foreseeSoon();
    lightSoon();
    showWantsSoon();
    openLeftSoon();
  },
});
