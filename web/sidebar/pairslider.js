// @ts-check
/** Two pictures of the same size, one above the other: a slider says how much of the upper one is seen. */
import { t } from "../lib/language.js";
import { h, setText } from "./dom.js";

const SMALL = 128; // pixels: a smaller picture is shown by its pixels, and not blurred

/** @returns {View<{before: string, after: string, caption: string, names?: [string, string]}>} */
export function pairSlider() {
  const before = h("img.otca-pair-picture.otca-pair-before", { alt: "" });
  const after = h("img.otca-pair-picture", { alt: "" });
  const line = h("div.otca-pair-line");
  const [left, right] = [h("span.otca-pair-name"), h("span.otca-pair-name")];
  const slider = h("input.otca-pair-slider", {
    type: "range",
    min: 0,
    max: 100,
    value: 50,
    "aria-label": t("{percent} % of the first picture", { percent: 50 }), // until there are pictures
    oninput: () => split(),
  });
  const frame = h("div.otca-pair", {}, after, before, line, left, right, slider);
  const caption = h("figcaption.otca-note");

  for (const image of [before, after]) {
    image.addEventListener("load", () => (image.style.imageRendering = image.naturalWidth < SMALL ? "pixelated" : ""));
  }

  function split() {
    before.style.clipPath = `inset(0 ${100 - Number(slider.value)}% 0 0)`;
    line.style.left = `${slider.value}%`;
    slider.setAttribute("aria-valuetext", t("{percent} % of the first picture", { percent: slider.value }));
  }

  return {
    element: h("figure.otca-pair-figure", {}, frame, caption),
    update({ before: first, after: second, caption: text, names = [t("before"), t("after")] }) {
      for (const [image, source, name] of /** @type {const} */ ([
        [before, first, names[0]],
        [after, second, names[1]],
      ])) {
        if (image.getAttribute("src") !== source) image.setAttribute("src", source);
        image.setAttribute("alt", `${name}: ${text}`);
      }
      setText(left, names[0]);
      setText(right, names[1]);
      setText(caption, text);
      slider.setAttribute("aria-label", t("Where {first} ends and {second} begins", { first: names[0], second: names[1] }));
      split();
    },
  };
}
