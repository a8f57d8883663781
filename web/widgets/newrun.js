// @ts-check
/** Training Run's buttons: one queues as many Runs as show that something is learned, one begins a new run. */
import { t } from "../lib/language.js";
import { beginNewRun } from "../lib/newrun.js";

const MANY = 20; // templates evaluate every 10th iteration: three dots
const TEXT = { train: t("Train {count}", { count: MANY }), button: t("New run"), failed: t("New run") };

/** @type {OurWidget} */
export const newRunWidget = {
  fits: (definition) => definition.name === "OTCA_TrainingRun",
  create: (node, comfy) => {
    const begin = () => beginNewRun(comfy).catch((error) => comfy.toast("error", TEXT.failed, error.message));
    const buttons = { [TEXT.train]: () => comfy.queueRuns(MANY), [TEXT.button]: begin };
    for (const [name, callback] of Object.entries(buttons)) {
      const widget = node.addWidget("button", name, null, callback, { serialize: false });
      widget.serialize = false; // else the button's value would shift those of the saved workflow
    }
    return { show() {} };
  },
};
