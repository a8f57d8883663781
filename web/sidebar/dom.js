// @ts-check
// Elements in one expression.

const SVG = "http://www.w3.org/2000/svg";

/**
 * h("button.otca-button", {type: "button", onclick}, "Stop"): attributes by name, listeners as on…, children last.
 *
 * @template {string} S
 * @param {S} selector
 * @param {Record<string, any>} [attributes] those that are null, undefined or false are left out
 * @param {...Child} children
 * @returns {HtmlOf<S>}
 */
export function h(selector, attributes = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  return /** @type {any} */ (filled(document.createElement(tag), classes, attributes, children));
}

/**
 * The same for SVG.
 *
 * @template {string} S
 * @param {S} selector
 * @param {Record<string, any>} [attributes]
 * @param {...Child} children
 * @returns {SvgOf<S>}
 */
export function s(selector, attributes = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  return /** @type {any} */ (filled(document.createElementNS(SVG, tag), classes, attributes, children));
}

/**
 * @param {Element} element
 * @param {string[]} classes
 * @param {Record<string, any>} attributes
 * @param {Child[]} children
 */
function filled(element, classes, attributes, children) {
  element.classList.add(...classes);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  /** @type {(Node | string)[]} */
  const all = /** @type {any[]} */ (children).flat(Infinity);
  element.append(...all.filter((child) => child !== null && child !== undefined && /** @type {any} */ (child) !== false));
  return element;
}

/**
 * An action that is not begun again while it goes on: a double click is one.
 *
 * @template {any[]} A
 * @param {(...details: A) => void} action or a promise of it
 */
export function once(action) {
  let goesOn = false;
  return async (/** @type {A} */ ...details) => {
    if (goesOn) return;
    goesOn = true;
    try {
      await action(...details);
    } finally {
      goesOn = false;
    }
  };
}

/**
 * A button with a PrimeIcon before its label.
 *
 * @param {string} icon
 * @param {string} label
 * @param {(event: Event) => void} onclick
 * @param {Record<string, any>} [attributes]
 */
export function button(icon, label, onclick, attributes = {}) {
  return h(
    "button.otca-button",
    { type: "button", onclick: once(onclick), ...attributes },
    h(`i.pi.${icon}`, { "aria-hidden": "true" }),
    label,
  );
}

/**
 * Another picture in an <img>: the one before is not seen under its name until that has come.
 *
 * @param {HTMLImageElement} image
 * @param {string} source
 */
export function showPicture(image, source) {
  if (image.getAttribute("src") === source) return;
  for (const end of ["load", "error"]) image.addEventListener(end, () => image.classList.remove("otca-late"), { once: true });
  image.setAttribute("src", source);
  image.classList.toggle("otca-late", !image.complete);
}

/**
 * A part of the sidebar: heading, content, and a note below.
 *
 * @param {string} title
 * @param {string | null} note
 * @param {...Child} content
 */
export function section(title, note, ...content) {
  return h("section.otca-section", {}, h("h3.otca-heading", {}, title), content, note && h("p.otca-note", {}, note));
}

/**
 * Keeps children in step with a list. Each lives as long as its item does: it is updated and moved, but never made again. So a
 * click that is under way, the focus and the position of a screen reader survive an update.
 *
 * @template T
 * @param {Element} parent
 * @param {(item: T) => unknown} keyOf the identity of an item
 * @param {() => View<T>} create
 * @returns {(items: T[]) => void}
 */
export function keyedChildren(parent, keyOf, create) {
  /** @type {Map<unknown, View<T>>} */
  const entries = new Map();
  return (items) => {
    const wanted = new Set(items.map(keyOf));
    for (const [key, { element }] of entries) {
      if (wanted.has(key)) continue;
      element.remove();
      entries.delete(key);
    }
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    let next = parent.firstElementChild;
    for (const item of items) {
      const key = keyOf(item);
      const entry = entries.get(key) ?? create();
      entries.set(key, entry);
      const { element, update } = entry;
      update(item);
      if (element === next) next = next.nextElementSibling;
      else parent.insertBefore(element, next);
    }
    // What is moved loses the focus.
    if (focused && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
  };
}

/**
 * Writes text only where it changed, so that screen readers and selections are left alone.
 *
 * @param {Node | null} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node && node.textContent !== text) node.textContent = text;
}
