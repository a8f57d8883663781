// @ts-check
// How seeds and indices move on from prompt to prompt, and how they are held where they are.

/** Whether prompts and noise stay what they are: every control says so, and there is one. */
export function areHeld(modes) {
  return modes.length > 0 && modes.every((mode) => mode === "fixed");
}

/**
 * The value to hold. ComfyUI moves values on as soon as a prompt is queued, so the one that was sampled may be the one
 * before. A value that the user typed since stays.
 */
export function heldValue(mode, queued, current) {
  const movedOn = { increment: queued + 1, decrement: queued - 1, randomize: current }[mode];
  return queued !== undefined && current === movedOn ? queued : current;
}

/** The value to go on with: a new one, since a prompt like the last one would run nothing. */
export function releasedValue(queued, current) {
  return current === queued ? queued + 1 : current;
}
