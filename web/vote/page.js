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

export function start() {
  document.documentElement.lang = languageOf(navigator.language) ?? "en"; // for whoever has it read aloud
  const headers = { "Content-Type": "application/json" };
  votePanel(
    {
      getJson: async (route) => answerOf(await fetch(route)),
      postJson: async (route, body) => answerOf(await fetch(route, { method: "POST", headers, body: JSON.stringify(body) })),
      routeUrl: (route) => route,
    },
    { always: true },
  ).refresh();
}
