// @ts-check
/** The button, where the model is loaded, that gives the memory of the accelerator back to ComfyUI. */
import { t } from "../lib/language.js";
import { MODEL_NODES } from "../lib/newrun.js";

/** @type {OurWidget} */
export const releaseWidget = {
  fits: (definition) => MODEL_NODES.includes(definition.name),
  create: (node, comfy) => {
    const release = async () => {
      try {
        const { released } = await comfy.postJson("/otca/release");
        comfy.toast(
          "success",
          released ? t("Memory released") : t("Nothing to release"),
          released ? t("The model loads again when the graph runs.") : t("No model of OTCA is on the accelerator."),
        );
      } catch (error) {
        comfy.toast("error", t("Release memory"), error.message);
      }
    };
    const widget = node.addWidget("button", t("Release memory"), null, release, { serialize: false });
    widget.serialize = false; // else the button's value would shift those of the saved workflow
    return { show() {} };
  },
};
