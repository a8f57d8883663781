// @ts-check
/** Hands a workflow from the gallery's own tab to a tab that shows ComfyUI's canvas: one that is open, or a new one. */
import { t } from "../lib/language.js";

const CHANNEL = "otca.gallery";
const LEFT = "otca.gallery.open"; // in the browser's store, for a page that is being opened
const ANSWER_MS = 1000;
export const PALETTE = "otca.gallery.palette"; // there, too: "dark" or "light", as ComfyUI's page is

/**
 * @param {SavedGraph} graph
 * @param {string} name
 * @param {string} root the address of ComfyUI's page
 * @returns {Promise<string>} where it was opened
 */
export async function openElsewhere(graph, name, root) {
  const channel = new BroadcastChannel(CHANNEL);
  const heard = new Promise((resolve) => {
    channel.onmessage = ({ data }) => data.opened === name && resolve(true);
    setTimeout(() => resolve(false), ANSWER_MS);
  });
  channel.postMessage({ graph, name });
  const isOpen = await heard;
  channel.close();
  if (isOpen) return t("{name} is open on the canvas, in the tab of ComfyUI.", { name });
  localStorage.setItem(LEFT, JSON.stringify({ graph, name }));
  window.open(root || "/", "_blank");
  return t("{name} opens on the canvas, in a new tab.", { name });
}

/**
 * Opens on this canvas what the gallery's own tab hands over.
 *
 * @param {Comfy} comfy
 */
export function openForGallery(comfy) {
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = async ({ data }) => {
    if (!data.graph) return;
    channel.postMessage({ opened: data.name }); // before it is: who waits longer opens it once more
    await comfy.openWorkflow(data.graph, data.name);
  };
}

/**
 * The same once, for a page that was opened for it.
 *
 * @param {Comfy} comfy
 */
export async function openWhatWasLeft(comfy) {
  const left = localStorage.getItem(LEFT);
  if (!left) return;
  localStorage.removeItem(LEFT);
  const { graph, name } = JSON.parse(left);
  await comfy.openWorkflow(graph, name);
}
