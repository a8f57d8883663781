// @ts-check
/** How seeds and indices move on from prompt to prompt, and how they are held where they are. */

/**
 * Whether prompts and noise stay what they are: every control says so, and there is one.
 *
 * @param {string[]} modes
 */
export function areHeld(modes) {
  return modes.length > 0 && modes.every((mode) => mode === "fixed");
}

/**
 * The value to hold. ComfyUI moves values on as soon as a prompt is queued, so the one that was sampled is one before: that of the
 * last prompt, or of an earlier one if those after it were cancelled. A value that the user typed since stays.
 *
 * @param {string} mode
 * @param {number | undefined} queued
 * @param {number} current
 * @param {number | undefined} drawn
 */
export function heldValue(mode, queued, current, drawn = queued) {
  if (queued === undefined) return current;
  /** @type {Record<string, number>} */
  const movedOn = { increment: queued + 1, decrement: queued - 1, randomize: current };
  return current === movedOn[mode] ? (drawn ?? queued) : current;
}

/**
 * The value to go on with: a new one, since a prompt like the last one would run nothing.
 *
 * @param {number | undefined} queued
 * @param {number} current
 */
export function releasedValue(queued, current) {
  return current === queued ? queued + 1 : current;
}
