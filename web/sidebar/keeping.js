// @ts-check
/** What a user does with a run as with a file: notes, and deleting it. */
import { t } from "../lib/language.js";
import { fileSize } from "../lib/library.js";
import { askDialog, wordDialog } from "./dialogs.js";
import { h, once } from "./dom.js";

const TEXT = {
  remove: t("Delete…"),
  removeTitle: (/** @type {string} */ id) => t("Delete {name}?", { name: id }),
  size: (/** @type {Removal} */ { files, bytes }) => t("{files} files, {size}", { files, size: fileSize(bytes) }),
};

const SAVE_MS = 800; // after the last key
const AGAIN_MS = 3000; // where the server does not answer
const MOST_NOTES = 2000;

/**
 * A button for the head of a run, and its notes.
 *
 * @param {Comfy} comfy
 * @param {Record<"remove" | "noted", () => void> & {failed(error: Error): void}} actions
 */
export function keeping(comfy, actions) {
  const label = { type: "button", title: TEXT.remove, "aria-label": TEXT.remove };
  const remove = h("button.otca-icon-button", { ...label, onclick: once(actions.remove) }, h("i.pi.pi-trash"));
  const notes = h("textarea.otca-input.otca-notes", {
    rows: 1,
    maxlength: MOST_NOTES,
    placeholder: t("Notes, for yourself"),
    "aria-label": t("Notes"),
    disabled: true, // until those that there are have come
  });
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let id = "";
  let saved = "";

  /** Saves one text after the other, so that the last one stays. */
  const save = once(async () => {
    clearTimeout(timer);
    try {
      while (id && notes.value !== saved) {
        const text = notes.value;
        await comfy.postJson(`/otca/runs/${encodeURIComponent(id)}/note`, { notes: text });
        saved = text;
        actions.noted(); // the list is filtered by them
      }
    } catch (error) {
      actions.failed(error); // the next key, or leaving the field, tries again; and so does this, also when the run is shown no more
      if (!(error.status < 500)) timer = setTimeout(save, AGAIN_MS);
    }
  });

  notes.addEventListener("keydown", (event) => event.stopPropagation()); // no shortcuts of the graph
  notes.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(save, SAVE_MS);
  });
  notes.addEventListener("change", save);

  return {
    buttons: h("div.otca-keeping", {}, remove),
    notes,
    /** @param {RunDetails} run */
    update(run) {
      const first = !id;
      id = run.id;
      if (first) saved = notes.value = run.notes ?? "";
      notes.disabled = false;
    },
    dispose: save, // what was typed just now
  };
}

/** @param {Run} run */
const routeOf = ({ id }) => `/otca/runs/${encodeURIComponent(id)}`;

/**
 * Says what would be deleted, and deletes it once that is confirmed; without the user's word it says which folder that is.
 *
 * @param {Comfy} comfy
 * @param {Run} run
 * @param {() => void} done
 */
export async function deleteRun(comfy, run, done) {
  const route = routeOf(run);
  /** @type {[Word, Removal]} */
  const [word, removal] = await Promise.all([comfy.trainingsWord(), comfy.getJson(`${route}/removal`)]);
  if (!word.given) {
    const instead = { title: t("Delete this folder yourself"), command: removal.folder, note: TEXT.size(removal) };
    return wordDialog(comfy, { title: TEXT.removeTitle(run.id), word, instead });
  }
  const fields = [
    h("p.otca-path", {}, removal.folder),
    h("p.otca-note", {}, TEXT.size(removal)),
    h("p.otca-note", {}, t("The folder is removed for good, with checkpoints, adapters and pictures. There is no way back.")),
    removal.begun_with.length > 0 && h("p.otca-warning", {}, t("These runs begin with its adapter, and cannot be resumed without it: {runs}", { runs: removal.begun_with.join(", ") })),
  ];
  const start = async () => {
    await comfy.postJson(`${route}/delete`);
    comfy.toast("success", t("{name} is deleted", { name: run.id }));
    done();
  };
  askDialog(comfy, { title: TEXT.removeTitle(run.id), fields, startLabel: t("Delete for good"), isDanger: true, start });
}
