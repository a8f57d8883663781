// @ts-check
/** Two pictures of one place: all of it is a slider, dragged or moved by the arrow keys, that says how much of the left one is seen. */
import { t } from "../lib/language.js";
import { h, setText } from "./dom.js";

/**
 * @param {HTMLElement} left lies over the right one
 * @param {HTMLElement} right gives both their place
 */
export function splitView(left, right) {
  const line = h("div.otca-split-line");
  const names = [h("span.otca-split-name.otca-left"), h("span.otca-split-name.otca-right")];
  const slider = h("input.otca-split-slider", { type: "range", min: 0, max: 100, value: 50, "aria-label": "", oninput: () => show() });
  slider.addEventListener("keydown", (event) => event.stopPropagation()); // an arrow key does not move the graph, too

  function show() {
    left.style.clipPath = `inset(0 ${100 - Number(slider.value)}% 0 0)`;
    line.style.left = `${slider.value}%`;
    slider.setAttribute("aria-valuetext", t("{percent} % of the first picture", { percent: slider.value }));
  }

  show();
  return {
    element: h("div.otca-split", {}, right, left, line, names, slider),
    /**
     * @param {[string, string]} texts what the left and the right one are called
     * @param {[string, string]} [colors] a line below each name, as of its curve
     */
    name([first, second], colors) {
      [first, second].forEach((text, index) => {
        setText(names[index], text);
        names[index].style.borderBottom = colors ? `3px solid ${colors[index]}` : "";
      });
      slider.setAttribute("aria-label", t("Where {first} ends and {second} begins", { first, second }));
    },
  };
}
