// @ts-check
/** Two pictures of one place, and a line between them that is dragged, or moved by the arrow keys. */
import { t } from "../lib/language.js";
import { h, setText } from "./dom.js";

const TEXT = {
  slider: t("How much of the left picture is seen, in percent"),
  picture: (/** @type {string} */ run, /** @type {string} */ caption) => t("{run}: {caption}", { run, caption }),
};
const WIDTH = 360; // pixels on the page, at most

/**
 * A picture that lies in a larger one: `size` is the larger one's.
 *
 * @typedef {{run: string, color: string, url: string, size: [number, number], box: Box}} Cut
 */

export function splitView() {
  const sides = [side("left"), side("right")];
  const line = h("div.otca-split-line");
  const stage = h("div.otca-split", {}, sides[1].element, sides[0].element, line, sides[0].name, sides[1].name);
  const slider = h("input.otca-slider", { type: "range", min: 0, max: 100, value: 50, "aria-label": TEXT.slider });
  slider.addEventListener("keydown", (event) => event.stopPropagation());
  slider.addEventListener("input", () => show());
  stage.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    stage.setPointerCapture(event.pointerId);
    drag(event);
  });
  stage.addEventListener("pointermove", (event) => event.buttons & 1 && drag(event));

  /** @param {PointerEvent} event */
  function drag(event) {
    const box = stage.getBoundingClientRect();
    slider.value = String(Math.round((100 * (event.clientX - box.left)) / box.width));
    show();
  }

  function show() {
    const share = Number(slider.value);
    sides[0].element.style.clipPath = `inset(0 ${100 - share}% 0 0)`;
    line.style.left = `${share}%`;
  }

  show();
  return {
    element: h("div.otca-split-view", {}, stage, slider),
    /**
     * @param {[Cut, Cut]} cuts
     * @param {string} caption
     */
    update(cuts, caption) {
      const [, , width, height] = cuts[0].box;
      stage.style.width = `min(100%, ${Math.max(WIDTH, Math.min(width, 2 * WIDTH))}px)`;
      stage.style.aspectRatio = `${width} / ${height}`;
      sides.forEach((one, index) => one.update(cuts[index], caption));
    },
  };
}

/** @param {string} place */
function side(place) {
  const element = h("div.otca-split-side", { role: "img" });
  const name = h(`span.otca-split-name.otca-${place}`);
  return {
    element,
    name,
    /**
     * @param {Cut} cut
     * @param {string} caption
     */
    update({ run, color, url, size, box: [left, top, width, height] }, caption) {
      // In percent, as CSS places a background: of the room that is left over.
      const at = (/** @type {number} */ start, /** @type {number} */ all, /** @type {number} */ part) =>
        all > part ? `${(100 * start) / (all - part)}%` : "0%";
      element.style.backgroundImage = `url("${url}")`;
      element.style.backgroundSize = `${(100 * size[0]) / width}% ${(100 * size[1]) / height}%`;
      element.style.backgroundPosition = `${at(left, size[0], width)} ${at(top, size[1], height)}`;
      element.style.imageRendering = width < WIDTH / 2 ? "pixelated" : "auto"; // of a tiny model's pictures each pixel counts
      element.setAttribute("aria-label", TEXT.picture(run, caption));
      name.style.borderColor = color;
      setText(name, run);
    },
  };
}
