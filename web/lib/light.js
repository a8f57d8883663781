// @ts-check
/** Whether a training fits on this machine, in words: what Make Trainable's light says before the first Run. */
import { t } from "./language.js";

/** What each state is called, and the colour of its light. */
const STATES = {
  fits: { word: t("Fits"), tone: "good" },
  tight: { word: t("Tight"), tone: "unclear" },
  "does not fit": { word: t("Does not fit"), tone: "bad" },
};

/** @param {number} size in GB */
const gb = (size) => size.toFixed(size < 100 ? 1 : 0);

/**
 * A line for a light, its colour, and what the button that makes it fit says; "" where there is none.
 *
 * @param {Light} light
 * @returns {{tone: "good" | "unclear" | "bad" | "none", text: string, button: string}}
 */
export function lightLine(light) {
  if (light.state === "missing") {
    const files = light.missing.join(", ");
    return { tone: "none", text: t("Memory: files are missing, see ComfyUI's list: {files}", { files }), button: "" };
  }
  if (light.state === "unknown") return { tone: "none", text: t("Memory: not known yet. {why}", { why: light.text }), button: "" };
  const { word, tone } = STATES[light.state];
  const values = { word, needs: gb(light.needs), has: gb(light.has), device: light.device, ram: gb(light.ram), all: gb(light.ram_has) };
  const figures = light.device
    ? t("{word}: needs about {needs} of {has} GB on {device}, and {ram} of {all} GB of RAM.", values)
    : t("{word}: needs about {needs} of {has} GB of main memory; there is no GPU.", values);
  const isHopeless = light.state === "does not fit" && !light.fix.length;
  const nothing = isHopeless ? ` ${t("No setting makes it fit: take a smaller model or a larger GPU.")}` : "";
  const button = light.fix.length ? t("{change}: {after} GB", { change: light.fix.join(", "), after: gb(light.after) }) : "";
  return { tone: /** @type {"good" | "unclear" | "bad"} */ (tone), text: figures + nothing, button };
}

/**
 * Sets the inputs that make a training fit; ComfyUI's undo takes all of it back at once. Returns what was changed, in words.
 *
 * @param {Comfy} comfy
 * @param {Light} light
 */
export function makeFit(comfy, light) {
  /** @type {string[]} */
  const done = [];
  comfy.changeTogether(() => {
    for (const { node: id, input, value } of light.settings) {
      const node = comfy.findNode(id);
      const before = node?.widgets?.find(({ name }) => name === input)?.value;
      if (!node || before === value) continue;
      comfy.setWidget(node, input, value);
      done.push(`${node.title}, ${input}: ${before} → ${value}`);
    }
  });
  return done;
}
