// @ts-check
/** The page of `otca vote`: the panel alone. */
import { languageOf } from "../lib/language.js";
import { votePanel } from "./panel.js";

/**
 * What a route of ours answers, on a page without ComfyUI's own way to ask.
 *
 * @param {Response} response
 */
export async function answerOf(response) {
  const text = await response.text();
  if (response.ok) return JSON.parse(text);
  let message = `${response.status} ${text.slice(0, 300)}`;
  try {
    message = JSON.parse(text).error;
  } catch {
    // It is no refusal of ours, but a proxy's page.
  }
  throw Object.assign(new Error(message), { status: response.status });
}

/**
 * Our routes, for a page without ComfyUI's own way to ask.
 *
 * @param {string} root the address before each route
 */
export function serverAt(root) {
  const headers = { "Content-Type": "application/json" };
  return {
    getJson: async (/** @type {string} */ route) => answerOf(await fetch(root + route)),
    postJson: async (/** @type {string} */ route, /** @type {object} */ body) => answerOf(await fetch(root + route, { method: "POST", headers, body: JSON.stringify(body) })),
    routeUrl: (/** @type {string} */ route) => root + route,
  };
}

export function start() {
  document.documentElement.lang = languageOf(navigator.language) ?? "en"; // for whoever has it read aloud
  votePanel(serverAt(""), { always: true }).refresh();
}
