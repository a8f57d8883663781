// @ts-check
/** Gives a new node that samples, or gives it prompts, what its model is made for, once: when a model is connected. */
import { t } from "../lib/language.js";

/** @type {OurWidget} */
export const ownWidget = {
  fits: (definition) => ["OTCA_SDESampler", "OTCA_MyPictures", "OTCA_PromptDataset"].includes(definition.name),
  create: (node, comfy) => {
    /** @type {Record<string, any> | null} */
    let begun = Object.fromEntries((node.widgets ?? []).map(({ name, value }) => [name, value]));
    const before = node.onConfigure;
    node.onConfigure = (...details) => {
      begun = null; // it was saved, pasted or brought back by undo: its values stay
      before?.apply(node, details);
    };
    return {
      show(kind, data) {
        if (kind !== "light" || !data.own || !begun) return;
        const untouched = begun;
        begun = null;
        /** @type {string[]} */
        const set = [];
        comfy.changeTogether(() => {
          for (const [name, value] of Object.entries(data.own)) {
            const widget = node.widgets?.find((candidate) => candidate.name === name);
            if (name === "file" && node.widgets?.find((text) => text.name === "prompts")?.value) continue; // which it would replace
            if (!widget || widget.value !== untouched[name] || widget.value === value) continue;
            comfy.setWidget(node, name, value);
            set.push(`${widget.label ?? name} ${value}`);
          }
        });
        if (set.length) comfy.toast("info", t("{title}: set to what the model is made for", { title: node.title }), set.join(", "));
      },
    };
  },
};
