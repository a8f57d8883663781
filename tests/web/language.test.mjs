import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { languageOf, speak, t } from "../../web/lib/language.js";

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
