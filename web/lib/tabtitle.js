// @ts-check
/**
 * A word of ours before the title of the browser's tab. ComfyUI writes the title whenever its own has changed, and knows nothing
 * of ours: so ours is put before each new one, and taken away from whatever stands there in the end.
 */

/**
 * @param {Document} page
 * @param {(changed: () => void) => () => void} observe calls back whenever the title was written; gives a function that ends it
 */
export function tabTitle(page, observe) {
  let ours = "";
  /** @type {(() => void) | null} */
  let end = null;

  function put() {
    // Where others put a word before ours, it stays where it is: else each would answer the other for ever.
    if (ours && !page.title.includes(ours)) page.title = ours + page.title;
  }

  return {
    /** @param {string | null} word null gives the title back */
    show(word) {
      const next = word ? `${word} ` : "";
      if (next === ours) return;
      const before = ours;
      ours = next;
      page.title = before && page.title.includes(before) ? page.title.replace(before, ours) : ours + page.title;
      if (ours) end ??= observe(put);
      else {
        end?.();
        end = null;
      }
    },
  };
}

/**
 * How far a run is, as the tab's title says it; null of one that does not train.
 *
 * @param {Run | undefined} run
 */
export function titleOf(run) {
  if (!run || (run.status !== "running" && run.status !== "queued")) return null;
  if (run.status === "queued") return "[OTCA …]";
  return run.total ? `[OTCA ${Math.floor((100 * run.iteration) / run.total)}%]` : `[OTCA ${run.iteration}]`;
}
