// @ts-check
/** From a run that failed to the node that raised the error. */

/**
 * Opens the run's workflow, unless it is open, and moves the canvas to the node that the run failed at.
 *
 * @param {Comfy} comfy
 * @param {Run} run
 */
export async function showFailure(comfy, { id, error, failed_at: failed }) {
  if (!failed) return;
  const saved = await comfy.getJson(`/otca/runs/${encodeURIComponent(id)}/workflow`);
  if (!isOpen(comfy, saved, failed.node)) {
    await comfy.openWorkflow(saved, id);
    await comfy.drawn(); // a workflow that was just opened moves the canvas once more
  }
  comfy.showNode(failed.node);
  comfy.toast("error", failed.title, error ?? "");
}

/**
 * Whether the open workflow is the run's own. A template's id is the same in every copy, so the node has to be of that class, too.
 *
 * @param {Comfy} comfy
 * @param {any} saved
 * @param {string} node
 */
function isOpen(comfy, { workflow, prompt }, node) {
  const open = comfy.findNode(node);
  return comfy.isOfOpenWorkflow({ workflow_id: workflow?.id }) && open?.type === prompt[node]?.class_type;
}
