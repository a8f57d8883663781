// @ts-check
/** Says once of each file where Save LoRA wrote it: at every Run it writes the same one again. */
import { t } from "../lib/language.js";

const TEXT = { saved: t("LoRA saved") };

/** @type {Set<string>} */
const told = new Set();

/** @type {OurWidget} */
export const savedWidget = {
  fits: (definition) => definition.name === "OTCA_SaveLoRA",
  create: (node, comfy) => {
    comfy.onOutput(node, ({ text = [] }) => {
      const news = text.filter((/** @type {string} */ file) => !told.has(file));
      for (const file of news) told.add(file);
      if (news.length) comfy.toast("success", TEXT.saved, news.join("\n"));
    });
    return { show() {} };
  },
};
