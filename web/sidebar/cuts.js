// @ts-check
/** The same sample of two runs, each cut out of its run's grid of samples, with a slider between them. */
import { t } from "../lib/language.js";
import { h } from "./dom.js";
import { splitView } from "./split.js";

const WIDTH = 360; // pixels on the page, at most

/**
 * A picture that lies in a larger one: `size` is the larger one's.
 *
 * @typedef {{run: string, color: string, url: string, size: [number, number], box: Box}} Cut
 */

export function cutsView() {
  const sides = [h("div.otca-cut", { role: "img" }), h("div.otca-cut", { role: "img" })];
  const view = splitView(sides[0], sides[1]);
  view.element.classList.add("otca-cuts");
  return {
    element: view.element,
    /**
     * @param {[Cut, Cut]} cuts
     * @param {string} caption
     */
    update(cuts, caption) {
      const [, , width, height] = cuts[0].box;
      view.element.style.width = `min(100%, ${Math.max(WIDTH, Math.min(width, 2 * WIDTH))}px)`;
      view.element.style.aspectRatio = `${width} / ${height}`;
      sides.forEach((one, index) => showCut(one, cuts[index], caption));
      view.name([cuts[0].run, cuts[1].run], [cuts[0].color, cuts[1].color]);
    },
  };
}

/**
 * @param {HTMLElement} element
 * @param {Omit<Cut, "color">} cut
 * @param {string} caption
 */
export function showCut(element, { run, url, size, box: [left, top, width, height] }, caption) {
  // In percent, as CSS places a background: of the room that is left over.
  const at = (/** @type {number} */ start, /** @type {number} */ all, /** @type {number} */ part) =>
    all > part ? `${(100 * start) / (all - part)}%` : "0%";
  element.style.backgroundImage = `url("${url}")`;
  element.style.backgroundSize = `${(100 * size[0]) / width}% ${(100 * size[1]) / height}%`;
  element.style.backgroundPosition = `${at(left, size[0], width)} ${at(top, size[1], height)}`;
  element.style.imageRendering = width < WIDTH / 2 ? "pixelated" : "auto"; // of a tiny model's pictures each pixel counts
  element.setAttribute("aria-label", t("{run}: {caption}", { run, caption }));
}
