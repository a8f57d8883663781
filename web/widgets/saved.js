// @ts-check
/** The line on Save LoRA that says which file it wrote: its name is that of the input, unless the file there is another run's. */
import { t } from "../lib/language.js";
import { h, setText } from "../sidebar/dom.js";
import { textHeight } from "./owner.js";
const ELSEWHERE = 96; // five lines that say why the file has another name

/** @type {OurWidget} */
export const savedWidget = {
  fits: (definition) => definition.name === "OTCA_SaveLoRA",
  create: (node, comfy) => {
    const line = h("p.otca-owner", { role: "status" });
    const elsewhere = h("p.otca-error", { role: "alert" });
    const root = h("div.otca-saved-line", {}, line, elsewhere);
    const height = () => textHeight(line) + (elsewhere.textContent ? ELSEWHERE : 0);
    comfy.passGesturesToGraph(root);
    comfy.onOutput(node, ({ text = [], otca_elsewhere: [why] = [""] }) => {
      if (!text.length) return;
      // Only now: an element of no height stayed where it had first been drawn, and took the clicks of what moved there.
      if (!line.textContent) comfy.addElement(node, "otca_saved", root, { least: height, most: height });
      setText(line, t("Saved: {files}", { files: text.map((/** @type {string} */ file) => file.split(/[\\/]/).slice(-2).join("/")).join(", ") }));
      line.title = text.join("\n");
      setText(elsewhere, why);
      comfy.growNode(node);
    });
    return { show() {} };
  },
};
