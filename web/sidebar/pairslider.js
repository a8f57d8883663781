// @ts-check
/** Two pictures of the same size and their caption, with a slider between them. */
import { t } from "../lib/language.js";
import { h, setText, showPicture } from "./dom.js";
import { splitView } from "./split.js";

const SMALL = 128; // pixels: a smaller picture is shown by its pixels, and not blurred

/** @returns {View<{before: string, after: string, caption: string, names?: [string, string]}>} */
export function pairSlider() {
  const before = h("img.otca-pair-picture.otca-pair-before", { alt: "" });
  const after = h("img.otca-pair-picture", { alt: "" });
  const view = splitView(before, after);
  const caption = h("figcaption.otca-note");
  for (const image of [before, after]) {
    image.addEventListener("load", () => (image.style.imageRendering = image.naturalWidth < SMALL ? "pixelated" : ""));
  }
  return {
    element: h("figure.otca-pair-figure", {}, view.element, caption),
    update({ before: first, after: second, caption: text, names = [t("before"), t("after")] }) {
      for (const [image, source, name] of /** @type {const} */ ([
        [before, first, names[0]],
        [after, second, names[1]],
      ])) {
        showPicture(image, source);
        image.setAttribute("alt", `${name}: ${text}`);
      }
      setText(caption, text);
      view.name(names);
    },
  };
}
