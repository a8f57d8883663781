// @ts-check
/**
 * Where the model is loaded: which run its adapter belongs to ("new run NAME", "NAME, iteration 4"), and on Make Trainable a traffic
 * light: whether the training fits on this machine, before the first Run, with a button that makes it fit.
 */
import { t } from "../lib/language.js";
import { lightLine, makeFit } from "../lib/light.js";
import { MODEL_NODES } from "../lib/newrun.js";
import { h, setText } from "../sidebar/dom.js";

const TEXT = {
  none: t("Adapter: not used yet"),
};
const HEIGHT = 46; // a line, and the margin that ComfyUI leaves around a DOM widget
const LINE = { height: 17, letters: 36 }; // of a node as wide as it opens
const MORE = { light: 38, button: 50, memory: 76 }; // two lines; a button of two; four lines about memory

/**
 * The height of an element of ours that has one text, in as many lines as that takes.
 *
 * @param {HTMLElement} line
 */
export function textHeight({ textContent }) {
  return HEIGHT + LINE.height * Math.floor((textContent ?? "").length / LINE.letters);
}

/** @type {OurWidget} */
export const ownerWidget = {
  fits: (definition) => MODEL_NODES.includes(definition.name),
  create: (node, comfy) => {
    /** @type {Light | null} */
    let light = null;
    const line = h("p.otca-owner", { role: "status" }, TEXT.none);
    const lamp = h("span.otca-lamp", { "aria-hidden": "true" });
    const fits = h("span", {});
    const fix = h("button.otca-button", { type: "button", hidden: true, onclick: () => change() });
    const lit = h("div.otca-light", { role: "status", hidden: true }, h("p.otca-owner.otca-owner-memory", {}, lamp, fits), fix);
    const memory = h("p.otca-owner.otca-owner-memory", {});
    const root = h("div.otca-owner-line", {}, line, lit, memory);
    const height = () => textHeight(line) + (light ? MORE.light + (fix.hidden ? 0 : MORE.button) : memory.textContent ? MORE.memory : 0);
    comfy.passGesturesToGraph(root);
    comfy.addElement(node, "otca_owner", root, { least: height, most: height });

    function change() {
      if (!light) return;
      try {
        comfy.toast("success", t("Changed, so that it fits. Undo takes it back."), makeFit(comfy, light).join("; "));
      } catch (error) {
        comfy.toast("error", t("Memory"), error.message);
      }
    }

    /** @param {Light | null} told */
    function paint(told) {
      if (!told && !light) return;
      light = told;
      const { tone, text, more, button } = told ? lightLine(told) : { tone: "none", text: "", more: "", button: "" };
      lit.hidden = !told;
      memory.hidden = Boolean(told); // it says the same, less exactly
      lamp.setAttribute("data-tone", tone);
      setText(fits, text);
      lit.title = [text, more].filter(Boolean).join(" ");
      fix.hidden = !button;
      setText(fix, button);
      comfy.growNode(node);
    }

    return {
      show(kind, data) {
        if (kind === "opened") setText(line, TEXT.none);
        if (kind === "light") paint(data.light);
        if (kind !== "owner") return;
        setText(line, t("Adapter: {text}", { text: data.text }));
        comfy.growNode(node);
        if (typeof data.memory !== "string") return; // of an iteration that is done: what stands there still holds
        setText(memory, data.memory);
        memory.title = data.memory;
      },
    };
  },
};
