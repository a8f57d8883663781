// @ts-check
/** The traffic light on Make Trainable: fits, tight or does not fit, before the first Run; a button that makes it fit. */
import { t } from "../lib/language.js";
import { lightLine, makeFit } from "../lib/light.js";
import { h, setText } from "../sidebar/dom.js";

const TEXT = { changed: t("Changed, so that it fits. Undo takes it back."), failed: t("Memory") };
const HEIGHT = { line: 62, button: 34, none: 8 };

/** @type {OurWidget} */
export const lightWidget = {
  fits: (definition) => definition.name === "OTCA_MakeTrainable",
  create: (node, comfy) => {
    /** @type {Light | null} */
    let light = null;
    const lamp = h("span.otca-lamp", { "aria-hidden": "true" });
    const text = h("span", {});
    const button = h("button.otca-button", { type: "button", hidden: true, onclick: () => fix() });
    const root = h("div.otca-light", { role: "status", hidden: true }, h("p.otca-owner.otca-owner-memory", {}, lamp, text), button);
    const height = () => (light ? HEIGHT.line + (button.hidden ? 0 : HEIGHT.button) : HEIGHT.none);
    comfy.passGesturesToGraph(root);
    comfy.addElement(node, "otca_light", root, { least: height, most: height });

    function fix() {
      if (!light) return;
      try {
        comfy.toast("success", TEXT.changed, makeFit(comfy, light).join("; "));
      } catch (error) {
        comfy.toast("error", TEXT.failed, error.message);
      }
    }

    /** @param {Light | null} told */
    function paint(told) {
      light = told;
      root.hidden = !told;
      const line = told ? lightLine(told) : { tone: "none", text: "", button: "" };
      lamp.setAttribute("data-tone", line.tone);
      setText(text, line.text);
      root.title = line.text;
      button.hidden = !line.button;
      setText(button, line.button);
      comfy.growNode(node);
    }

    return {
      show(kind, data) {
        if (kind === "opened") paint(null);
        if (kind === "light") paint(data);
      },
    };
  },
};
