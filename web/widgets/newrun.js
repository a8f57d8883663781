// @ts-check
/** Training Run's button that begins a new run: the next free name, and a fresh adapter. */
import { t } from "../lib/language.js";
import { beginNewRun } from "../lib/newrun.js";

const TEXT = { button: t("New run"), failed: t("New run") };

/** @type {OurWidget} */
export const newRunWidget = {
  fits: (definition) => definition.name === "OTCA_TrainingRun",
  create: (node, comfy) => {
    const begin = () => beginNewRun(comfy).catch((error) => comfy.toast("error", TEXT.failed, error.message));
    const widget = node.addWidget("button", TEXT.button, null, begin, { serialize: false });
    widget.serialize = false; // else the button's value would shift those of the saved workflow
    return { show() {} };
  },
};
