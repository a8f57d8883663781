// Elements in one expression.

const SVG = "http://www.w3.org/2000/svg";

/** h("button.otca-button", {type: "button", onclick}, "Stop"): attributes by name, listeners as on…, children last. */
export function h(selector, attributes = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  return filled(document.createElement(tag), classes, attributes, children);
}

/** The same for SVG. */
export function s(selector, attributes = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  return filled(document.createElementNS(SVG, tag), classes, attributes, children);
}

function filled(element, classes, attributes, children) {
  element.classList.add(...classes);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** A button with a PrimeIcon before its label. */
export function button(icon, label, onclick, attributes = {}) {
  return h(
    "button.otca-button",
    { type: "button", onclick, ...attributes },
    h(`i.pi.${icon}`, { "aria-hidden": "true" }),
    label,
  );
}

/**
 * Keeps children in step with a list. Each lives as long as its item does, is updated and at most moved, never made anew:
 * so a click that is under way, the focus and a screen reader's place outlast an update.
 *
 * @param keyOf (item) → what an item is known by
 * @param create () → {element, update(item)}
 * @returns (items) → void
 */
export function keyedChildren(parent, keyOf, create) {
  const entries = new Map();
  return (items) => {
    const wanted = new Set(items.map(keyOf));
    for (const [key, { element }] of entries) {
      if (wanted.has(key)) continue;
      element.remove();
      entries.delete(key);
    }
    const focused = document.activeElement;
    let next = parent.firstElementChild;
    for (const item of items) {
      const key = keyOf(item);
      if (!entries.has(key)) entries.set(key, create());
      const { element, update } = entries.get(key);
      update(item);
      if (element === next) next = next.nextElementSibling;
      else parent.insertBefore(element, next);
    }
    // What is moved loses the focus.
    if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
  };
}

/** Writes text only where it changed, so that screen readers and selections are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
