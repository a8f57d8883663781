// @ts-check
/**
 * What the pack's own page says, in the language that ComfyUI's settings name; in the browser's, where there is no ComfyUI. English is
 * the key: texts stand where they are used. Modules that import this one are evaluated once the table is here.
 */

/** Those that have a table languages/<code>.json. */
export const LANGUAGES = ["de", "es", "fr", "ja", "ko", "zh"];

/** @type {Record<string, string>} */
let table = {};
/** @type {string | null} */
let language = null; // that of the table

/** The language that `t` speaks, as HTML names it. */
export const spoken = () => language ?? "en";

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
 * The locale of ComfyUI's settings, asked for by a page of ours that ComfyUI serves; the browser's, where the user has chosen none.
 *
 * @param {(address: URL, options: RequestInit) => Promise<Response>} [ask]
 */
export async function settingsLocale(ask = fetch) {
  const user = globalThis.localStorage?.getItem("Comfy.userId"); // if ComfyUI has several users
  try {
    const response = await ask(new URL("../../../settings/Comfy.Locale", import.meta.url), user ? { headers: { "Comfy-User": user } } : {});
    return (response.ok && (await response.json())) || navigator.language;
  } catch {
    return navigator.language; // ComfyUI is not there; the gallery says so itself
  }
}

/**
 * Has `t` look up texts in a table. One that cannot be read leaves them English: the page works without it.
 *
 * @param {string | null} wanted
 * @param {(language: string) => Promise<Record<string, string>>} [read]
 */
export async function speak(wanted, read = served) {
  try {
    table = wanted ? await read(wanted) : {};
    language = wanted;
  } catch (error) {
    [table, language] = [{}, null];
    console.warn(`OTCA: the texts of languages/${wanted}.json cannot be read:`, error);
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
async function userLocale() {
  const settings = /** @type {any} */ (globalThis).comfyAPI?.app?.app?.extensionManager?.setting;
  if (settings) return settings.get("Comfy.Locale");
  return document.body?.classList.contains("otca-gallery-page") ? settingsLocale() : navigator.language;
}

// Only a page that was served has tables beside its scripts; tests load the scripts as files.
if (/^https?:$/.test(globalThis.location?.protocol ?? "")) await speak(languageOf(await userLocale()));
