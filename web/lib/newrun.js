// What names a run on the canvas: its Training Run, and the run that Load Flow Model begins with.
import { uniqueName } from "./runs.js";

const TEXT = {
  begun: (name) => `New run: ${name}`,
  detail: "The next Run begins with a fresh adapter.",
  resumed: (name) => `${name} goes on here`,
  resumedDetail: "Press Run: the next iteration begins at its last checkpoint.",
  noRunNode: "This workflow has no Training Run node. Fix: add one, or open an OTCA template.",
  linked: "run_name is linked, and has to be known before the first picture is made. Fix: type the name into Training Run.",
};

/** Gives Training Run the next free name, and has Load Flow Model begin with a fresh adapter. */
export async function beginNewRun(comfy) {
  const { runs } = await comfy.getJson("/otca/runs");
  const [node] = runNodes(comfy);
  const name = uniqueName(nameWidget(node).value, runs.map(({ id }) => id));
  setNames(comfy, name, "");
  comfy.toast("success", TEXT.begun(name), TEXT.detail);
}

/** Has the graph that is open go on with a run, from its last checkpoint. */
export async function resumeOnCanvas(comfy, name) {
  await comfy.refreshCombos(); // a run that was made since the page was loaded
  setNames(comfy, name, name);
  comfy.toast("success", TEXT.resumed(name), TEXT.resumedDetail);
}

function setNames(comfy, name, resumed) {
  for (const node of runNodes(comfy)) comfy.setWidget(node, "run_name", name);
  for (const node of ofClass(comfy, "OTCA_LoadFlowModel")) comfy.setWidget(node, "resume_run", resumed);
}

function runNodes(comfy) {
  const nodes = ofClass(comfy, "OTCA_TrainingRun");
  if (!nodes.length) throw new Error(TEXT.noRunNode);
  for (const node of nodes) if (!nameWidget(node)) throw new Error(TEXT.linked);
  return nodes;
}

const nameWidget = (node) => node.widgets.find(({ name }) => name === "run_name");

function ofClass(comfy, name) {
  return [...comfy.allNodes()].map(({ node }) => node).filter((node) => comfy.nodeDefinition(node)?.name === name);
}
