import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";

import { askToNotify, beginWithDefaults, otcaSettings } from "../../web/sidebar/settings.js";

let settings;
let toasts;
const comfy = {
  settingOf: (id) => settings[id],
  changeSetting: async (id, value) => (settings[id] = value),
  toast: (...toast) => toasts.push(toast),
  nodeDefinition: (node) => ({ name: node.type }),
};

beforeEach(() => {
  [settings, toasts] = [{}, []];
  globalThis.window = { isSecureContext: true };
});

/** A browser that answers the question whether it may notify. */
function browser(answer) {
  const asked = [];
  globalThis.Notification = globalThis.window.Notification = { requestPermission: async () => (asked.push(answer), answer) };
  return asked;
}

test("the browser is asked by a click, never when the page is opened", () => {
  const asked = [];
  const setting = otcaSettings(comfy, { notify: (wanted) => asked.push(wanted), changed() {} }).find(({ id }) => id === "OTCA.Notify");
  assert.equal(setting.defaultValue, false);
  setting.onChange(true, undefined); // as ComfyUI calls it for a setting that was saved
  assert.deepEqual(asked, []);
  setting.onChange(true, false);
  assert.deepEqual(asked, [true]);
});

test("where the browser does not allow it, the switch goes back and says why", async () => {
  settings["OTCA.Notify"] = true;
  assert.equal(browser("granted").length, 0);
  await askToNotify(comfy);
  assert.deepEqual([settings["OTCA.Notify"], toasts], [true, []]);
  const asked = browser("denied");
  await askToNotify(comfy);
  assert.deepEqual([asked.length, settings["OTCA.Notify"], toasts.length], [1, false, 1]);
  assert.match(toasts[0][2], /beside the page's address/);
  globalThis.window = {}; // plain http to another machine: there is nothing to ask
  await askToNotify(comfy);
  assert.match(toasts[1][2], /https and to localhost only/);
});

test("a new node begins with the user's device; its precision is a model's alone, since a reward's is part of its scores", () => {
  const node = (type, device = "auto") => ({ type, widgets: [{ name: "device", value: device }, { name: "dtype", value: "auto" }] });
  const begun = (made) => (beginWithDefaults(comfy, made), made.widgets.map(({ value }) => value));
  assert.deepEqual(begun(node("OTCA_LoadFlowModel")), ["auto", "auto"]);
  Object.assign(settings, { "OTCA.Device": " cuda:1 ", "OTCA.Precision": "float16" });
  assert.deepEqual(begun(node("OTCA_LoadFlowModel")), ["cuda:1", "float16"]);
  assert.deepEqual(begun(node("OTCA_RewardClipT")), ["cuda:1", "auto"]);
  assert.deepEqual(begun(node("OTCA_RewardClipT", "cpu")), ["cpu", "auto"]);
  beginWithDefaults(comfy, { type: "OTCA_GRPOStep" });
});
