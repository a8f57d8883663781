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

/** Writes text only where it changed, so that screen readers and selections are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
