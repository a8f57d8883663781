// @ts-check
/** What names a run on the canvas: its Training Run, and the run that the model begins with. */
import { t } from "./language.js";
import { uniqueName } from "./runs.js";

/** The nodes that what is trained comes from. */
export const MODEL_NODES = ["OTCA_LoadFlowModel", "OTCA_MakeTrainable"];

const TEXT = {
  begun: (/** @type {string} */ name) => t("New run: {name}", { name }),
  from: (/** @type {string} */ start) => t("The next Run begins with {start}.", { start }),
};

/**
 * Gives Training Run the next free name, and has the model begin with a fresh adapter.
 *
 * @param {Comfy} comfy
 */
export async function beginNewRun(comfy) {
  const { runs } = await comfy.getJson("/otca/runs");
  const [node] = runNodes(comfy);
  const taken = runs.map((/** @type {Run} */ { id }) => id);
  const name = uniqueName(nameWidget(node)?.value, taken);
  setNames(comfy, { run_name: name, resume_run: "" });
  const [start] = modelNodes(comfy).map((loader) => widget(loader, "start_from")?.value);
  comfy.toast("success", TEXT.begun(name), start ? TEXT.from(start) : t("The next Run begins with a fresh adapter."));
}

/**
 * Has the graph that is open, which is the run's own, continue the run from its last checkpoint: seeds are set to where they would
 * be after `iteration` iterations.
 *
 * @param {Comfy} comfy
 * @param {{id: string, iteration: number}} run
 * @param {Prompt} prompt the graph as the run began with it
 */
export async function resumeOnCanvas(comfy, { id, iteration }, prompt) {
  await comfy.refreshCombos(); // a run that was made since the page was loaded
  if (comfy.samplesAreHeld()) comfy.holdSamples(false); // as at its last iteration: nothing would be trained
  setNames(comfy, { run_name: id, resume_run: id, start_from: "" }); // where it began is part of its checkpoint
  comfy.advanceTo(prompt, iteration);
  comfy.toast("success", t("{name} continues here", { name: id }), t("Press Run: the next iteration begins at its last checkpoint."));
}

/**
 * Has the graph that is open begin a run of that name with another run's adapter.
 *
 * @param {Comfy} comfy
 * @param {string} other
 * @param {string} name
 */
export async function beginFrom(comfy, other, name) {
  await comfy.refreshCombos(); // a run that was made since the page was loaded
  if (comfy.samplesAreHeld()) comfy.holdSamples(false); // they are the other run's
  setNames(comfy, { run_name: name, resume_run: "", start_from: other });
  comfy.toast("success", TEXT.begun(name), TEXT.from(other));
}

/**
 * @param {Comfy} comfy
 * @param {Record<string, string>} names by input: `run_name` of Training Run, the others of the node that loads the model
 */
function setNames(comfy, { run_name, ...ofTheLoader }) {
  for (const node of runNodes(comfy)) comfy.setWidget(node, "run_name", run_name);
  for (const node of modelNodes(comfy)) {
    for (const [name, value] of Object.entries(ofTheLoader)) if (widget(node, name)) comfy.setWidget(node, name, value);
  }
}

/** @param {Comfy} comfy */
function modelNodes(comfy) {
  return MODEL_NODES.flatMap((name) => ofClass(comfy, name));
}

/** @param {Comfy} comfy */
function runNodes(comfy) {
  const nodes = ofClass(comfy, "OTCA_TrainingRun");
  if (!nodes.length) throw new Error(t("This workflow has no Training Run node. Fix: add one, or open an OTCA template."));
  for (const node of nodes) if (!nameWidget(node)) throw new Error(t("run_name is linked, and has to be known before the first picture is made. Fix: type the name into Training Run."));
  return nodes;
}

/**
 * @param {GraphNode} node
 * @param {string} name
 */
function widget(node, name) {
  return node.widgets?.find((candidate) => candidate.name === name);
}

/** @param {GraphNode} node */
function nameWidget(node) {
  return widget(node, "run_name");
}

/**
 * @param {Comfy} comfy
 * @param {string} name
 */
function ofClass(comfy, name) {
  return [...comfy.allNodes()].map(({ node }) => node).filter((node) => comfy.nodeDefinition(node)?.name === name);
}
