// @ts-check
/** The queue of prompts, and what the server tells while they run. */
import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { findNode, isOfOpenWorkflow } from "./graph.js";
import { getJson, refusal } from "./requests.js";

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
 * Calls back when a training asks people something, or stops asking.
 *
 * @param {() => void} callback
 */
export function onQuestions(callback) {
  api.addEventListener("otca.questions", () => callback());
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
