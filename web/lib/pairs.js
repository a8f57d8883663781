// @ts-check
/** Pictures of a prompt without and with a run's adapter: what the route says of them, in words. */
import { t } from "./language.js";

/**
 * How far the pictures are that are being made.
 *
 * @param {PairWork} work
 */
export function workText({ state, done, calls }) {
  if (state === "waits") return t("Waits until a training ends: as many are at work as may be.");
  if (state === "loads") return t("The model is loaded by a process of its own.");
  return t("Step {done} of {calls}", { done: Math.min(done + 1, calls), calls });
}

/** @param {PairWork} work */
export function workShare({ done, calls }) {
  return calls ? done / calls : 0;
}

/** @param {Pair} pair */
export function pairTitle({ prompt, seed, iteration }) {
  const when = iteration === null ? "" : t("iteration {iteration}", { iteration });
  return [prompt, t("seed {seed}", { seed }), when].filter(Boolean).join(" · ");
}

/**
 * Whether a run's model has learned something that was saved.
 *
 * @param {Run} run
 */
export function canTry(run) {
  return run.place !== "remote" && (run.has_lora || run.has_checkpoint); // what is elsewhere cannot be loaded here
}
