// @ts-check
/**
 * What the pack's own page says, in the language that ComfyUI's settings name; in the browser's, where there is no ComfyUI. English is
 * the key: texts stand where they are used. Modules that import this one are evaluated once the table is here.
 */

/** Those that have a table languages/<code>.json. */
export const LANGUAGES = ["de", "es", "fr", "ja", "ko", "zh"];

/** @type {Record<string, string>} */
let table = {};

/**
 * The language of a locale that has a table, "zh" for "zh-TW"; null: English.
 *
 * @param {unknown} locale
 */
export function languageOf(locale) {
  const code = String(locale ?? "").split(/[-_]/)[0].toLowerCase();
  return LANGUAGES.includes(code) ? code : null;
}

/**
 * Has `t` look up texts in a table. One that cannot be read leaves them English: the page works without it.
 *
 * @param {string | null} language
 * @param {(language: string) => Promise<Record<string, string>>} [read]
 */
export async function speak(language, read = served) {
  try {
    table = language ? await read(language) : {};
  } catch (error) {
    table = {};
    console.warn(`OTCA: the texts of languages/${language}.json cannot be read:`, error);
  }
}

/**
 * A text in the user's language; what has no translation stays English.
 *
 * @param {string} english a literal, so that a script finds it; {name} stands for a value
 * @param {Record<string, string | number>} [values]
 */
export function t(english, values = {}) {
  return (table[english] ?? english).replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}

/**
 * @param {string} language
 * @returns {Promise<Record<string, string>>}
 */
async function served(language) {
  const response = await fetch(new URL(`../languages/${language}.json`, import.meta.url));
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  return response.json();
}

/** The locale of the page's user: ComfyUI has read its settings before it loads the scripts of packs. */
function userLocale() {
  const settings = /** @type {any} */ (globalThis).comfyAPI?.app?.app?.extensionManager?.setting;
  return settings ? settings.get("Comfy.Locale") : navigator.language;
}

// Only a page that was served has tables beside its scripts; tests load the scripts as files.
if (/^https?:$/.test(globalThis.location?.protocol ?? "")) await speak(languageOf(userLocale()));
