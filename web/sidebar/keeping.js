// @ts-check
/** What a user does with a run as with a file: notes, another name, its folder's window, the trash. */
import { t } from "../lib/language.js";
import { fileSize } from "../lib/library.js";
import { openDialog } from "./dialogs.js";
import { h, setText } from "./dom.js";

const TEXT = {
  notes: t("Notes"),
  notesHint: t("Notes, for yourself"),
  rename: t("Rename…"),
  renameTitle: (/** @type {string} */ id) => t("Rename {name}", { name: id }),
  renameNote: t("The run stays the same: it is resumed as before. Workflows on the canvas keep the name that they have."),
  newName: t("New name"),
  doRename: t("Rename"),
  renamed: (/** @type {string} */ id) => t("The run is called {name} now", { name: id }),
  open: t("Open folder"),
  remove: t("Delete…"),
  removeTitle: (/** @type {string} */ id) => t("Delete {name}?", { name: id }),
  size: (/** @type {Removal} */ { files, bytes }) => t("{files} files, {size}", { files, size: fileSize(bytes) }),
  toTrash: t("The folder goes to the trash of the machine that ComfyUI runs on."),
  forGood: t("The folder is removed for good, with checkpoints, adapters and pictures. There is no way back."),
  begunWith: (/** @type {string[]} */ runs) =>
    t("These runs begin with its adapter, and cannot be resumed without it: {runs}", { runs: runs.join(", ") }),
  doTrash: t("Move to the trash"),
  doRemove: t("Delete for good"),
  removed: (/** @type {string} */ id) => t("{name} is deleted", { name: id }),
  cancel: t("Cancel"),
};

const SAVE_MS = 800; // after the last key
const MOST_NOTES = 2000;

/**
 * Buttons for the head of a run, and its notes.
 *
 * @param {Comfy} comfy
 * @param {Record<"rename" | "open" | "remove" | "noted", () => void> & {failed(error: Error): void}} actions
 */
export function keeping(comfy, actions) {
  const icon = (/** @type {string} */ name, /** @type {string} */ label, /** @type {() => void} */ onclick) =>
    h("button.otca-icon-button", { type: "button", title: label, "aria-label": label, onclick }, h(`i.pi.${name}`));
  const open = icon("pi-folder", TEXT.open, () => actions.open());
  const buttons = h(
    "div.otca-keeping",
    {},
    icon("pi-pencil", TEXT.rename, () => actions.rename()),
    open,
    icon("pi-trash", TEXT.remove, () => actions.remove()),
  );
  const notes = h("textarea.otca-input.otca-notes", {
    rows: 1,
    maxlength: MOST_NOTES,
    placeholder: TEXT.notesHint,
    "aria-label": TEXT.notes,
  });
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let id = "";
  let saved = "";

  async function save() {
    clearTimeout(timer);
    const text = notes.value;
    if (!id || text === saved) return;
    saved = text;
    try {
      await comfy.postJson(`/otca/runs/${encodeURIComponent(id)}/note`, { notes: text });
      actions.noted(); // the list is filtered by them
    } catch (error) {
      saved = ""; // the next key, or leaving the field, tries again
      actions.failed(error);
    }
  }

  notes.addEventListener("keydown", (event) => event.stopPropagation()); // no shortcuts of the graph
  notes.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(save, SAVE_MS);
  });
  notes.addEventListener("change", save);

  return {
    buttons,
    notes,
    /** @param {RunDetails} run */
    update(run) {
      const first = !id;
      id = run.id;
      open.hidden = !run.can_open;
      if (first) saved = notes.value = run.notes ?? "";
    },
    dispose: save, // what was typed just now
  };
}

/** @param {Run} run */
const routeOf = ({ id }) => `/otca/runs/${encodeURIComponent(id)}`;

/**
 * Asks for another name; `done` gets it.
 *
 * @param {Comfy} comfy
 * @param {Run} run
 * @param {(id: string) => void} done
 */
export function renameRun(comfy, run, done) {
  const name = h("input.otca-input", { id: "otca-rename", required: true, maxlength: 100, value: run.id });
  const { dialog } = confirmDialog({
    title: TEXT.renameTitle(run.id),
    content: [
      h("p.otca-note", {}, TEXT.renameNote),
      h("div.otca-field", {}, h("label", { for: "otca-rename" }, TEXT.newName), name),
    ],
    label: TEXT.doRename,
    async act() {
      const { id, told } = await comfy.postJson(`${routeOf(run)}/rename`, { name: name.value.trim() });
      dialog.close();
      if (id === run.id) return;
      comfy.toast("success", TEXT.renamed(id), told ?? undefined);
      done(id);
    },
  });
  name.select();
}

/**
 * Opens the run's folder on the machine of this page.
 *
 * @param {Comfy} comfy
 * @param {Run} run
 */
export async function openRunFolder(comfy, run) {
  await comfy.postJson(`${routeOf(run)}/open`);
}

/**
 * Says what would be deleted, and deletes it once that is confirmed. What the trash does not take can be deleted for good, by
 * another click.
 *
 * @param {Comfy} comfy
 * @param {Run} run
 * @param {() => void} done
 */
export async function deleteRun(comfy, run, done) {
  /** @type {Removal} */
  const removal = await comfy.getJson(`${routeOf(run)}/removal`);
  let forGood = !removal.trash;
  const how = h("p.otca-note", {}, forGood ? TEXT.forGood : TEXT.toTrash);
  const { dialog, submit } = confirmDialog({
    title: TEXT.removeTitle(run.id),
    content: [
      h("p.otca-path", {}, removal.folder),
      h("p.otca-note", {}, TEXT.size(removal)),
      how,
      removal.begun_with.length > 0 && h("p.otca-warning", {}, TEXT.begunWith(removal.begun_with)),
    ],
    label: forGood ? TEXT.doRemove : TEXT.doTrash,
    danger: true,
    async act() {
      try {
        await comfy.postJson(`${routeOf(run)}/delete`, { for_good: forGood });
      } catch (error) {
        if (error.trash === false) {
          forGood = true;
          setText(how, TEXT.forGood);
          setText(submit, TEXT.doRemove);
        }
        throw error;
      }
      dialog.close();
      comfy.toast("success", TEXT.removed(run.id));
      done();
    },
  });
}

/**
 * @param {object} options
 * @param {string} options.title
 * @param {Child[]} options.content
 * @param {string} options.label of the button that acts
 * @param {boolean} [options.danger]
 * @param {() => Promise<void>} options.act what it throws is shown, and the dialog stays
 */
function confirmDialog({ title, content, label, danger = false, act }) {
  const message = h("div.otca-error", { role: "alert" });
  const submit = h(danger ? "button.otca-button.otca-danger" : "button.otca-button.otca-primary", { type: "submit" }, label);
  const cancel = h("button.otca-button", { type: "button", onclick: () => dialog.close() }, TEXT.cancel);
  const form = h("form.otca-form", {}, content, message, h("div.otca-buttons.otca-end", {}, cancel, submit));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    setText(message, "");
    try {
      await act();
    } catch (error) {
      setText(message, error.message);
    } finally {
      submit.disabled = false;
    }
  });
  const dialog = openDialog(title, form);
  if (danger) cancel.focus();
  return { dialog, submit };
}
