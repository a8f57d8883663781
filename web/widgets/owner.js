// @ts-check
/** Load Flow Model's line that says which run its adapter belongs to: "new run NAME", "NAME, iteration 4". */
import { h, setText } from "../sidebar/dom.js";

const TEXT = { none: "Adapter: not used yet", owner: (/** @type {string} */ text) => `Adapter: ${text}` };
const HEIGHT = 46; // a line, and the margin that ComfyUI leaves around a DOM widget

/** @type {OurWidget} */
export const ownerWidget = {
  fits: (definition) => definition.name === "OTCA_LoadFlowModel",
  create: (node, comfy) => {
    const line = h("p.otca-owner", { role: "status" }, TEXT.none);
    const root = h("div.otca-owner-line", {}, line);
    comfy.passGesturesToGraph(root);
    const options = {
      serialize: false,
      hideOnZoom: false,
      getMinHeight: () => HEIGHT,
      getMaxHeight: () => HEIGHT,
      getValue: () => "",
      setValue: () => {},
    };
    const widget = node.addDOMWidget("otca_owner", "OTCA_OWNER", root, options);
    widget.serialize = false; // else it would be an input of the node, and change ComfyUI's cache key
    return {
      show(kind, data) {
        if (kind === "opened") setText(line, TEXT.none);
        if (kind !== "owner") return;
        setText(line, TEXT.owner(data.text));
        line.title = line.textContent;
      },
    };
  },
};
