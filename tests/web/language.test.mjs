import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { languageOf, settingsLocale, speak, spoken, t } from "../../web/lib/language.js";

afterEach(() => speak(null));

test("a locale means its language, if that has a table", () => {
  assert.deepEqual(["de", "zh-TW", "fr_CA", "KO"].map(languageOf), ["de", "zh", "fr", "ko"]);
  assert.deepEqual(["en", "en-GB", "ru", "", undefined, null].map(languageOf), [null, null, null, null, null, null]);
});

test("a text is in the language of the table, with its values; one that is not there is English", async () => {
  await speak("de", async () => ({ "{count} of {all} runs": "{count} von {all} Läufen", "of {all}, {count}": "{all}: {count}" }));
  assert.equal(t("{count} of {all} runs", { count: 2, all: 7 }), "2 von 7 Läufen");
  assert.equal(t("of {all}, {count}", { count: 2, all: "{count}" }), "{count}: 2", "a value is no text");
  assert.equal(t("Stop {name}", { name: "$&" }), "Stop $&");
});

test("a page beside ComfyUI's asks its settings; the browser's locale stands in where they name none", async () => {
  globalThis.navigator ??= { language: "fr" }; // newer Nodes have one
  const asked = [];
  const answers = (value, ok = true) => async (address) => {
    asked.push(String(address));
    return { ok, json: async () => value };
  };
  assert.equal(await settingsLocale(answers("ja")), "ja");
  assert.match(asked[0], /\/settings\/Comfy\.Locale$/);
  assert.equal(await settingsLocale(answers(null)), navigator.language);
  assert.equal(await settingsLocale(answers("ja", false)), navigator.language);
  const away = async () => {
    throw new TypeError("Failed to fetch");
  };
  assert.equal(await settingsLocale(away), navigator.language);
});

test("the page is named by the language that it speaks", async () => {
  assert.equal(spoken(), "en");
  await speak("de", async () => ({}));
  assert.equal(spoken(), "de");
});

test("English asks for no table", async () => {
  await speak(null, () => assert.fail("a table was asked for"));
  assert.equal(t("Stop"), "Stop");
});

test("a table that cannot be read leaves the page in English, and the console says so", async (context) => {
  const warned = context.mock.method(console, "warn", () => {});
  await speak("de", async () => {
    throw new Error("404 Not Found");
  });
  assert.equal(t("Stop"), "Stop");
  assert.match(warned.mock.calls[0].arguments.join(" "), /languages\/de\.json.*404/);
});
