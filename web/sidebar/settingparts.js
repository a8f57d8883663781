// @ts-check
/** Settings that are lists: where things go, and what was allowed. */
import { t } from "../lib/language.js";
import { h, setText } from "./dom.js";

/**
 * A list that is read when it is shown.
 *
 * @param {() => Promise<Child[]>} read
 */
function listed(read) {
  const element = h("div.otca-setting", { role: "group" }, h("span.otca-quiet", {}, t("Reading…")));
  read().then(
    (rows) => element.replaceChildren(...h("div", {}, rows).childNodes),
    (error) => element.replaceChildren(h("div.otca-error", { role: "alert" }, error.message)),
  );
  return element;
}

/** @param {string} what */
function folderName(what) {
  /** @type {Record<string, string>} */
  const names = {
    runs: t("Runs"),
    adapters: t("LoRAs by Save LoRA, and of Load the LoRA"),
    votes: t("Votes"),
    permissions: t("What you allowed by clicks"),
  };
  return names[what] ?? what;
}

/** @param {Comfy} comfy */
export function folderList(comfy) {
  return listed(async () => {
    const { folders } = await comfy.getJson("/otca/folders");
    return folders.map((/** @type {{what: string, path: string, by: string}} */ { what, path, by }) =>
      h(
        "div.otca-setting-row",
        {},
        h("strong", {}, folderName(what)),
        h("code.otca-setting-path", { tabindex: "0" }, path || t("none: clicks allow nothing")),
        h("span.otca-quiet", {}, by ? t("decided by {by}", { by }) : t("ComfyUI's own place")),
      ),
    );
  });
}

/** @param {string} kind */
function kindName(kind) {
  /** @type {Record<string, string>} */
  const names = {
    read: t("Read files and models in"),
    post: t("Send pictures, prompts or figures to"),
    download: t("Download"),
    run: t("Run Python rewards in"),
  };
  return names[kind] ?? kind;
}

/** @param {Comfy} comfy */
export function allowedList(comfy) {
  return listed(async () => {
    const { given } = await comfy.getJson("/otca/permissions");
    if (!given.length) return [h("span.otca-quiet", {}, t("Nothing beyond ComfyUI's own folders and this machine."))];
    return given.map((/** @type {{kind: string, what: string, by: string}} */ each) => allowedRow(comfy, each));
  });
}

/**
 * @param {Comfy} comfy
 * @param {{kind: string, what: string, by: string}} given
 */
function allowedRow(comfy, { kind, what, by }) {
  const error = h("span.otca-fix", { role: "alert" });
  const back = h("button.otca-button", { type: "button", onclick: take, "aria-label": t("Take back {what}", { what }) }, t("Take back"));
  const row = h(
    "div.otca-setting-row",
    {},
    h("strong", {}, kindName(kind)),
    h("code.otca-setting-path", { tabindex: "0" }, what),
    by ? h("span.otca-quiet", {}, t("by {by}, where ComfyUI is started", { by })) : back,
    error,
  );

  async function take() {
    try {
      await comfy.postJson("/otca/permissions/take_back", { kind, what });
      row.remove();
    } catch (refusal) {
      setText(error, refusal.message);
    }
  }

  return row;
}
