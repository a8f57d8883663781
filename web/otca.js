/**
 * Registers the extension: puts widgets on our nodes, hands them what the server computed, opens the sidebar.
 */
import * as comfy from "./comfy.js";
import { LiveWidgets } from "./lib/live.js";
import { stageColor } from "./lib/stages.js";
import { setupSidebar, sidebarCommands } from "./sidebar/sidebar.js";
import { curvesWidget } from "./widgets/curves.js";
import { heatmapWidget } from "./widgets/heatmap.js";
import { releaseWidget } from "./widgets/release.js";
import { scoresWidget } from "./widgets/scores.js";
import { socketsWidget } from "./widgets/sockets.js";

/**
 * A widget is {fits(definition) → bool, create(node, comfy) → {show(kind, data), dispose?()}}. `show` is told of the
 * results of its own node and of those that name the node as their `credit_node`.
 */
const WIDGETS = [heatmapWidget, socketsWidget, scoresWidget, curvesWidget, releaseWidget];

/** What replays a result that a widget may want, beyond the nodes that carry one. */
const REPLAYED = "OTCA_ADVANTAGES";

const live = new LiveWidgets();

function deliver(kind, data, id) {
  if (!comfy.isOfOpenWorkflow(data)) return;
  for (const target of new Set([id, data.credit_node])) {
    const node = target && comfy.findNode(target);
    for (const widget of live.of(node)) widget.show(kind, data);
  }
}

function deliverToAll(kind) {
  for (const { id } of comfy.allNodes()) deliver(kind, {}, id);
}

/** A reload of the page forgets what it was sent, and a lost connection loses it; the server does not. */
async function replay() {
  const nodes = [...comfy.allNodes()].filter(
    ({ node }) => live.of(node).length || comfy.nodeDefinition(node)?.output?.includes(REPLAYED),
  );
  const results = await Promise.all(
    nodes.map(async ({ id }) => [id, await comfy.lastResults(id).catch(() => ({}))]),
  );
  const credits = results.map(([id, { credit }]) => [id, { credit }]);
  // Credit comes first: advantages are about a credit that is already shown.
  for (const [id, payloads] of [...credits, ...results]) {
    for (const [kind, data] of Object.entries(payloads)) if (data) deliver(kind, data, id);
  }
}

comfy.app.registerExtension({
  name: "ComfyUI-OTCA",
  ...sidebarCommands(comfy),

  setup() {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = new URL("./otca.css", import.meta.url).href;
    document.head.append(style);
    comfy.onNodeResult(deliver);
    comfy.onExecution({
      started: () => deliverToAll("started"),
      failed: (message, id, workflow) => deliver("error", { message, workflow_id: workflow }, id),
    });
    comfy.onReconnected(replay);
    setupSidebar(comfy);
  },

  nodeCreated(node) {
    const definition = comfy.nodeDefinition(node);
    if (!definition?.name?.startsWith("OTCA_")) return;
    // What a saved workflow says of colours and controls comes later and stays.
    node.color ??= stageColor(definition.category);
    comfy.advanceByOne(node);
    const widgets = WIDGETS.filter((widget) => widget.fits(definition)).map((widget) => widget.create(node, comfy));
    if (widgets.length) live.add(node, widgets);
  },

  afterConfigureGraph() {
    live.keepOnly([...comfy.allNodes()].map(({ node }) => node));
    deliverToAll("opened");
    replay(); // not awaited: the workflow opens meanwhile
  },
});
