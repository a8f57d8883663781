// @ts-check
/** Packages that a queued graph lacks: a message with each command and *Copy*, and the same on the node that needs it. */
import { t } from "../lib/language.js";
import { copyButton } from "../sidebar/copy.js";
import { button, h } from "../sidebar/dom.js";
const NAME = "otca_missing";
const HEIGHT = 128; // four lines, the command and its button

/** @type {HTMLElement | null} what is shown over the page */
let last = null;

/**
 * @param {Comfy} comfy
 * @param {Missing[]} missing
 */
export function showMissing(comfy, missing) {
  last?.remove();
  const toast = (last = h("div.otca-toast", { role: "alert" }));
  const close = button("pi-times", t("Close"), () => toast.remove());
  const parts = missing.map((one) => h("div.otca-missing", {}, h("p.otca-note", {}, one.text), t("Type this in a terminal, and start ComfyUI again:"), command(one)));
  toast.append(h("div.otca-row", {}, h("strong", {}, t("A package is missing. Nothing was run.")), close), ...parts);
  document.body.append(toast);
  for (const one of missing) showOnNode(comfy, one);
}

/** @param {Missing} one */
function command(one) {
  return h("div.otca-row", {}, h("pre.otca-code.otca-one-line", { tabindex: "0", title: one.command }, one.command), copyButton(one.command));
}

/**
 * @param {Comfy} comfy
 * @param {Missing} one
 */
function showOnNode(comfy, one) {
  const node = comfy.findNode(one.node);
  const shown = node?.widgets?.find(({ name }) => name === NAME);
  if (!node || shown) return;
  const root = h("div.otca-owner-line.otca-missing", { role: "status" }, h("p.otca-note", { title: one.text }, one.text), command(one));
  comfy.passGesturesToGraph(root);
  comfy.addElement(node, NAME, root, { least: () => HEIGHT, most: () => HEIGHT });
  comfy.growNode(node);
}
