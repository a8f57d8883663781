// @ts-check
/** The line that says, where the model is loaded, which run its adapter belongs to: "new run NAME", "NAME, iteration 4". */
import { t } from "../lib/language.js";
import { MODEL_NODES } from "../lib/newrun.js";
import { h, setText } from "../sidebar/dom.js";

const TEXT = { none: t("Adapter: not used yet"), owner: (/** @type {string} */ text) => t("Adapter: {text}", { text }) };
const HEIGHT = 46; // a line, and the margin that ComfyUI leaves around a DOM widget
const MORE = 76; // for four lines more, about memory

/** @type {OurWidget} */
export const ownerWidget = {
  fits: (definition) => MODEL_NODES.includes(definition.name),
  create: (node, comfy) => {
    const line = h("p.otca-owner", { role: "status" }, TEXT.none);
    const memory = h("p.otca-owner.otca-owner-memory", {});
    const root = h("div.otca-owner-line", {}, line, memory);
    const height = () => HEIGHT + (memory.textContent ? MORE : 0);
    comfy.passGesturesToGraph(root);
    comfy.addElement(node, "otca_owner", root, { least: height, most: height });
    return {
      show(kind, data) {
        if (kind === "opened") setText(line, TEXT.none);
        if (kind !== "owner") return;
        setText(line, TEXT.owner(data.text));
        line.title = line.textContent;
        if (typeof data.memory !== "string") return; // of an iteration that is done: what stands there still holds
        setText(memory, data.memory);
        memory.title = data.memory;
      },
    };
  },
};
