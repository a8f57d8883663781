// @ts-check
// A text goes to the clipboard.
import { t } from "../lib/language.js";
import { button, h, setText } from "./dom.js";

const TEXT = { copy: t("Copy"), };

/**
 * A button that copies a text, and says so.
 *
 * @param {string} text
 */
export function copyButton(text) {
  const copy = button("pi-copy", TEXT.copy, async () => {
    await copyText(text, copy);
    setText(copy.lastChild, t("Copied"));
    setTimeout(() => setText(copy.lastChild, TEXT.copy), 1500);
  });
  return copy;
}

/**
 * Browsers offer the clipboard to secure pages only, and ComfyUI in a local network is plain http.
 *
 * @param {string} text
 * @param {HTMLElement} near
 */
async function copyText(text, near) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h("textarea", { style: "position: fixed; opacity: 0" });
  area.value = text;
  near.after(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
