// @ts-check
/**
 * A list below a text box, from which one may choose while any other text stays as good: the combobox of the ARIA practices, put on
 * a box that ComfyUI has made. Arrows move in the list, Enter takes what is marked, Escape closes the list, typing filters it.
 */
import { t } from "../lib/language.js";
import { h } from "../sidebar/dom.js";

const GAP = 4; // pixels between the box and its list
const MARGIN = 8; // and between the list and the window's edge
const MOST_SHOWN = 200;
const OPENING = ["ArrowDown", "ArrowUp"];

let lists = 0; // each needs an id of its own

/**
 * @typedef {object} Offer
 * @property {string[]} values
 * @property {boolean} several whether the text is a list with commas, of which the last part is typed
 */

/**
 * What is offered for a text: all as long as nothing was typed, else what holds the typed part, beginnings first.
 *
 * @param {Offer} offer
 * @param {string} text
 * @param {boolean} typed
 */
export function matching({ values, several }, text, typed) {
  const chosen = several ? parts(text).slice(0, -1) : [];
  const part = (several ? parts(text).at(-1) ?? "" : text).trim().toLowerCase();
  const left = values.filter((value) => !chosen.includes(value));
  if (!typed || !part) return left.slice(0, MOST_SHOWN);
  const at = (/** @type {string} */ value) => value.toLowerCase().indexOf(part);
  const holding = left.filter((value) => at(value) >= 0);
  return [...holding.filter((value) => at(value) === 0), ...holding.filter((value) => at(value) > 0)].slice(0, MOST_SHOWN);
}

/**
 * The text once a value was chosen.
 *
 * @param {Offer} offer
 * @param {string} text
 * @param {string} value
 * @param {boolean} typed whether the last part is one that was being typed, and so is replaced
 */
export function chosenText({ several }, text, value, typed) {
  if (!several) return value;
  const before = parts(text).filter(Boolean);
  if (typed && parts(text).at(-1)) before.pop();
  return [...before.filter((part) => part !== value), value].join(", ");
}

/** @param {string} text */
function parts(text) {
  return text.split(",").map((part) => part.trim());
}

export class Combobox {
  /** @type {Offer | null} */
  offer = null;
  /** @type {string[]} */
  shown = [];
  active = -1;
  typed = false;
  opening = false;
  taking = false;

  /**
   * @param {HTMLInputElement} input
   * @param {object} options
   * @param {string} options.label what the box is called
   * @param {() => Promise<Offer>} options.load
   * @param {(offer: Offer) => void} [options.chosen] after a value was put into the box
   */
  constructor(input, { label, load, chosen = () => {} }) {
    this.input = input;
    this.load = load;
    this.chosen = chosen;
    const id = `otca-suggestions-${(lists += 1)}`;
    this.list = h("ul.otca-suggestions", { id, role: "listbox", "aria-label": label });
    this.list.addEventListener("pointerdown", (event) => event.preventDefault()); // the focus stays in the box
    this.list.addEventListener("wheel", (event) => event.stopPropagation());
    const attributes = { role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": id };
    for (const [name, value] of Object.entries({ ...attributes, autocomplete: "off" })) input.setAttribute(name, value);
    if (!input.getAttribute("aria-label")) input.setAttribute("aria-label", label);
    this.listen();
  }

  listen() {
    const { input } = this;
    // Before whoever else listens to the box: Enter and Escape mean something there, too.
    input.addEventListener("keydown", (event) => this.key(event), { capture: true });
    input.addEventListener("click", () => this.open());
    input.addEventListener("input", () => {
      if (this.taking) return;
      this.typed = true;
      if (this.offer) this.refresh();
      else this.open();
    });
    input.addEventListener("blur", () => {
      this.close();
      this.offer = null; // the server is asked again when somebody comes back
    });
  }

  /**
   * The list stays where it is while the graph below it moves: a wheel anywhere else closes it.
   *
   * @param {WheelEvent} event
   */
  wheel = (event) => {
    if (!this.list.contains(/** @type {Node} */ (event.target))) this.close();
  };

  get isOpen() {
    return this.list.parentNode !== null;
  }

  /** Shows the list, as it is now on the server. */
  async open() {
    if (this.isOpen || this.opening) return;
    this.opening = true;
    try {
      this.offer = await this.load();
      this.refresh();
    } catch (error) {
      this.offer = { values: [], several: false };
      this.say(t("No suggestions: {reason}", { reason: /** @type {Error} */ (error).message }));
    } finally {
      this.opening = false;
    }
  }

  /** Shows what fits the text. */
  refresh() {
    const { offer, input, typed } = this;
    if (!offer) return;
    this.shown = matching(offer, input.value, typed);
    this.active = -1;
    const current = offer.several ? null : input.value;
    this.list.replaceChildren(...this.shown.map((value, index) => this.option(value, index, value === current)));
    if (!offer.values.length) this.say(t("Nothing found to choose from. Any text can be typed."));
    else if (!this.shown.length) this.close();
    else this.place();
  }

  /**
   * @param {string} value
   * @param {number} index
   * @param {boolean} current whether it is what the box says
   */
  option(value, index, current) {
    const option = h(
      "li.otca-suggestion",
      { id: `${this.list.id}-${index}`, role: "option", "aria-selected": "false", title: value, onclick: () => this.take(value) },
      value,
    );
    if (current) option.classList.add("otca-suggestion-current");
    return option;
  }

  /**
   * A line in place of the list.
   *
   * @param {string} text
   */
  say(text) {
    this.shown = [];
    this.active = -1;
    this.list.replaceChildren(h("li.otca-suggestion-note", { role: "option", "aria-disabled": "true" }, text));
    this.place();
  }

  /** Below the box, or above it where there is more room. */
  place() {
    const { list, input } = this;
    if (document.activeElement !== input) return; // who typed there has left
    document.body.append(list); // only while it is seen: ComfyUI makes boxes and drops them without a word
    window.addEventListener("wheel", this.wheel, { capture: true });
    input.setAttribute("aria-expanded", "true");
    input.removeAttribute("aria-activedescendant");
    const box = input.getBoundingClientRect();
    const below = window.innerHeight - box.bottom - GAP - MARGIN;
    const above = box.top - GAP - MARGIN;
    const up = below < Math.min(list.scrollHeight, 160) && above > below;
    list.style.maxHeight = `${Math.max(60, Math.min(280, up ? above : below))}px`;
    list.style.minWidth = `${Math.max(180, box.width)}px`;
    list.style.left = `${Math.max(MARGIN, Math.min(box.left, window.innerWidth - list.offsetWidth - MARGIN))}px`;
    list.style.top = up ? `${box.top - GAP - list.offsetHeight}px` : `${box.bottom + GAP}px`;
  }

  close() {
    this.list.remove();
    window.removeEventListener("wheel", this.wheel, { capture: true });
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
    this.active = -1;
    this.typed = false;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.isComposing || event.ctrlKey || event.metaKey) return;
    if (OPENING.includes(event.key)) {
      event.preventDefault();
      event.stopPropagation();
      if (this.isOpen) this.mark(event.key === "ArrowDown" ? this.active + 1 : this.active - 1);
      else this.open();
    } else if (event.key === "Escape" && this.isOpen) {
      this.close();
      event.preventDefault();
      event.stopImmediatePropagation();
    } else if (event.key === "Enter" && this.isOpen && this.active >= 0) {
      event.preventDefault();
      event.stopImmediatePropagation();
      this.take(this.shown[this.active]);
    } else if (event.key === "Tab") {
      this.close();
    }
  }

  /**
   * Marks an option; before the first comes the last.
   *
   * @param {number} index
   */
  mark(index) {
    if (!this.shown.length) return;
    const options = [...this.list.children];
    this.active = index < 0 ? options.length - 1 : index % options.length;
    options.forEach((option, at) => option.setAttribute("aria-selected", String(at === this.active)));
    const marked = options[this.active];
    this.input.setAttribute("aria-activedescendant", marked.id);
    marked.scrollIntoView({ block: "nearest" });
  }

  /** @param {string} value */
  take(value) {
    const offer = /** @type {Offer} */ (this.offer);
    this.input.value = chosenText(offer, this.input.value, value, this.typed);
    this.close();
    // As typing does, so that ComfyUI's page hears of it; it must not open the list again.
    this.taking = true;
    this.input.dispatchEvent(new Event("input", { bubbles: true }));
    this.taking = false;
    this.chosen(offer);
  }
}
