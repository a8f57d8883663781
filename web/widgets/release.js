// @ts-check
/** The button, where the model is loaded, that gives the memory of the accelerator back to ComfyUI. */
import { t } from "../lib/language.js";
import { MODEL_NODES } from "../lib/newrun.js";

const TEXT = {
  button: t("Release memory"),
  done: (/** @type {boolean} */ released) => (released ? t("Memory released") : t("Nothing to release")),
  detail: (/** @type {boolean} */ released) =>
    released ? t("The model loads again when the graph runs.") : t("No model of OTCA is on the accelerator."),
  failed: t("Release memory"),
};

/** @type {OurWidget} */
export const releaseWidget = {
  fits: (definition) => MODEL_NODES.includes(definition.name),
  create: (node, comfy) => {
    const release = async () => {
      try {
        const { released } = await comfy.postJson("/otca/release");
        comfy.toast("success", TEXT.done(released), TEXT.detail(released));
      } catch (error) {
        comfy.toast("error", TEXT.failed, error.message);
      }
    };
    const widget = node.addWidget("button", TEXT.button, null, release, { serialize: false });
    widget.serialize = false; // else the button's value would shift those of the saved workflow
    return { show() {} };
  },
};
