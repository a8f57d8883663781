// @ts-check
/** What is asked of the server: JSON, pictures and addresses of its routes, and the server's own words where it refuses. */
import { api } from "../../../scripts/api.js";

/**
 * What the server knows for inputs of that kind, whatever the graph is: {values, several}.
 *
 * @param {string} kind
 */
export function suggestions(kind) {
  return getJson(`/otca/suggestions?kind=${encodeURIComponent(kind)}`);
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
export async function refusal(response) {
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
