// @ts-check
/** Whether a training fits on this machine, in words: what Make Trainable's light says before the first Run. */
import { t } from "./language.js";

/** What each state is called, and the colour of its light. */
const STATES = {
  fits: { word: t("Fits"), tone: /** @type {const} */ ("good") },
  tight: { word: t("Tight"), tone: /** @type {const} */ ("unclear") },
  "does not fit": { word: t("Does not fit"), tone: /** @type {const} */ ("bad") },
};

/** @param {number} size in GB */
const gb = (size) => size.toFixed(size < 100 ? 1 : 0);

const counted = (/** @type {string} */ phase) => t("An estimate, counted from the files. It needs the most in: {phase}.", { phase });

/** @param {Light} light What the files that are missing would need on a GPU; "" if that is not known. */
function withThem(light) {
  if (!light.needs) return "";
  const values = { needs: light.needs.toFixed(0), has: light.has.toFixed(0), device: light.device };
  return light.device
    ? t("With them it needs about {needs} GB; {device} has {has} GB.", values)
    : t("With them it needs about {needs} GB of GPU memory; this machine has no GPU.", values);
}

/**
 * A line for a light, its colour, what else there is to know, and what the button that makes it fit says; "" without one.
 *
 * @param {Light} light
 * @returns {{tone: "good" | "unclear" | "bad" | "none", text: string, more: string, button: string}}
 */
export function lightLine(light) {
  const none = { tone: /** @type {const} */ ("none"), more: "", button: "" };
  if (light.state === "missing") return { ...none, text: `${t("Files are missing: see ComfyUI's list.")} ${withThem(light)}`.trim(), more: light.missing.join(", ") };
  if (light.state === "unknown") return { ...none, text: t("Memory: not known yet."), more: light.text };
  const { word, tone } = STATES[light.state];
  const values = { word, needs: gb(light.needs), has: gb(light.has), device: light.device, ram: gb(light.ram), all: gb(light.ram_has) };
  const figures = light.device
    ? t("{word}: {needs} of {has} GB on {device}, RAM {ram} of {all} GB.", values)
    : t("{word}: {needs} of {has} GB of RAM (no GPU).", values);
  const streamed = light.streamed > 0.05 && t("Slower: {streamed} GB of the weights stay in RAM.", { streamed: gb(light.streamed) });
  const change = { change: light.fix.join(", "), after: gb(light.after) };
  const button = light.streamed && light.state !== "does not fit"
    ? t("Keep all on the GPU: {change} ({after} GB)", change)
    : t("Make it fit: {change} ({after} GB)", change);
  const isHopeless = light.state === "does not fit" && !light.fix.length;
  return {
    tone,
    text: [figures, streamed, isHopeless && t("No setting makes it fit."), light.text && t("Unusual size.")].filter(Boolean).join(" "),
    more: [light.text, counted(light.phase)].filter(Boolean).join(". "),
    button: light.fix.length ? button : "",
  };
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
