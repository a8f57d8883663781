// @ts-check
/** What a taste that is learned from the clicks would say, how sure it is, and the button that keeps it as a file. */
import { button, h, setText } from "../sidebar/dom.js";
import { t } from "../lib/language.js";

/**
 * @param {GalleryServer} server
 * @param {{changed: () => void, failed: (error: Error) => void}} options
 */
export function tasteBar(server, { changed, failed }) {
  const element = h("div.otca-gallery-taste");
  element.hidden = true;
  return { element, soon() {} };
}
