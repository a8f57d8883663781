// @ts-check
/**
 * What the pack's own page says, in the language that ComfyUI's settings name. English is the key: texts stand where they are used.
 */

/** @type {Record<string, string>} */
const table = {};

/**
 * A text in the user's language; what has no translation stays English.
 *
 * @param {string} english a literal, so that a script finds it; {name} stands for a value
 * @param {Record<string, string | number>} [values]
 */
export function t(english, values = {}) {
  return (table[english] ?? english).replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}
