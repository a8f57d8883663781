// @ts-check
/** The picture at a cell of the credit heatmap. */
import { t } from "../lib/language.js";
import { h } from "../sidebar/dom.js";
import { factLines } from "./heatmap_text.js";

/** The picture that the model aims at from a step. Each is decoded once, and kept until the credit changes. */
export class Preview {
  /** @type {Map<string, string>} route → object URL */
  #pictures = new Map();
  /** @type {AbortController | null} of the picture that is being decoded */
  #loading = null;

  /**
   * @param {Comfy} comfy
   * @param {(isOpen: boolean, hadFocus: boolean) => void} toggled
   */
  constructor(comfy, toggled) {
    this.comfy = comfy;
    this.toggled = toggled;
    this.element = h("figure.otca-heatmap-preview", { hidden: true });
  }

  get isOpen() {
    return !this.element.hidden;
  }

  /**
   * @param {Credit} credit
   * @param {number} sample
   * @param {number} step
   * @param {import("../lib/heatmap.js").Facts} facts
   */
  async open(credit, sample, step, facts) {
    const query = new URLSearchParams({ node: credit.node, sample: String(sample), step: String(step), made_by: credit.made_by });
    if (credit.workflow_id) query.set("workflow", credit.workflow_id);
    const route = `/otca/preview?${query}`;
    const frame = h("div.otca-heatmap-picture");
    const close = h("button", { type: "button", "aria-label": t("Close the preview"), onclick: () => this.close() }, "✕");
    const caption = h("figcaption", { title: facts.prompt }, ...factLines(facts));
    this.element.replaceChildren(frame, caption, close);
    this.#setOpen(true);
    this.#loading?.abort();
    this.#loading = new AbortController();
    const { signal } = this.#loading;
    frame.replaceChildren(h("p", { role: "status" }, t("Decoding…")));
    try {
      const url = this.#pictures.get(route) ?? (await this.comfy.getPicture(route, signal));
      if (signal.aborted) {
        if (!this.#pictures.has(route)) URL.revokeObjectURL(url); // of a credit that is no more
        return;
      }
      this.#pictures.set(route, url);
      const alt = t("x̂0, where {place} is heading", { place: facts.place });
      frame.replaceChildren(h("img", { src: url, alt, title: t("x̂0: the picture that the model aims at from here") }));
    } catch (error) {
      if (!signal.aborted) frame.replaceChildren(h("p", { role: "alert" }, `⚠ ${error.message}`));
    }
  }

  close() {
    this.#loading?.abort();
    this.#setOpen(false);
  }

  /** Drops all pictures but the one that is shown: the credit that they belong to is gone. */
  forget() {
    this.#loading?.abort();
    for (const url of this.#pictures.values()) URL.revokeObjectURL(url);
    this.#pictures.clear();
  }

  dispose() {
    this.#loading?.abort();
    for (const url of this.#pictures.values()) URL.revokeObjectURL(url);
  }

  /** @param {boolean} open */
  #setOpen(open) {
    if (this.isOpen === open) return;
    const hadFocus = this.element.contains(document.activeElement);
    this.element.hidden = !open;
    this.toggled(open, hadFocus);
  }
}
