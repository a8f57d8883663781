// @ts-check
/** "Train on these": what a training on the opinions would take, and its workflow on the canvas. */
import { fileSize } from "../lib/format.js";
import { t } from "../lib/language.js";
import { newest } from "../lib/newest.js";
import { openDialog } from "../sidebar/dialogs.js";
import { button, h, setText } from "../sidebar/dom.js";

const TEXT = {
  from: t("Learn from"),
  model: t("Model"),
};

/**
 * @param {GalleryServer} server
 * @param {{ids: string[], openWorkflow: (graph: SavedGraph, name: string) => Promise<string>}} options `ids`: the pictures that are listed
 */
export function trainDialog(server, { ids, openWorkflow }) {
  const from = h(
    "select.otca-input",
    { "aria-label": TEXT.from },
    h("option", { value: "all" }, t("everything that you have an opinion about")),
    h("option", { value: "listed" }, t("the {count} pictures that are listed", { count: ids.length })),
  );
  const model = h("select.otca-input", { "aria-label": TEXT.model });
  const told = h("ul.otca-bundle");
  const error = h("div.otca-error", { role: "alert" });
  /** @type {any} */
  let made = null;
  const begun = newest();
  const open = button("pi-external-link", t("Open on the canvas"), async () => {
    try {
      const where = await openWorkflow({ prompt: made.prompt, note: note(model.selectedOptions[0].text) }, made.name);
      told.replaceChildren(h("li.otca-note", {}, where));
      dialog.close();
    } catch (failure) {
      setText(error, failure.message);
    }
  }, { class: "otca-button otca-primary" });
  const dialog = openDialog(
    t("Train on these"),
    h("p.otca-note", {}, t("Makes a workflow that learns from your opinions, from these pictures alone: nothing is sampled but for the pictures before and after. Nothing starts until you press Run.")),
    h("label.otca-gallery-field", {}, h("span", {}, TEXT.from), from),
    h("label.otca-gallery-field", {}, h("span", {}, TEXT.model), model),
    h("div", { role: "status" }, told),
    error,
    h("div.otca-buttons.otca-end", {}, open),
  );
  from.addEventListener("change", read);
  model.addEventListener("change", read);
  read();

  async function read() {
    const isNewest = begun();
    open.disabled = true;
    setText(error, "");
    told.replaceChildren(h("li.otca-note", {}, t("Reading the opinions …")));
    try {
      const chosen = from.value === "listed" ? ids : [];
      const answer = await server.postJson("/otca/gallery/workflow", { ids: chosen, ...(model.value && { model: model.value }) });
      if (!isNewest()) return;
      made = answer;
    } catch (failure) {
      if (!isNewest()) return;
      told.replaceChildren();
      return setText(error, failure.message);
    }
    if (!model.options.length) model.append(...made.models.map((/** @type {[string, string]} */ [name, title]) => h("option", { value: name }, title)));
    const { items, held_out: held, forwards, memory, said, learn_from: form } = made;
    const minutes = (/** @type {number} */ seconds) => Math.max(1, Math.round((forwards * seconds) / 60)).toLocaleString();
    const lines = [
      form === "pairs"
        ? t("{items} pairs to learn from, {held} held out to test it", { items, held })
        : t("{items} pictures to learn from, pairs held out to test it: {held}", { items, held }),
      t("{forwards} calls of the model: about {fast} min if one takes 0.1 s, {slow} min if it takes 1 s", {
        forwards,
        fast: minutes(0.1),
        slow: minutes(1),
      }),
      memory !== null && t("about {size} of memory on the GPU", { size: fileSize(memory) }),
      ...said,
    ];
    told.replaceChildren(...lines.filter(Boolean).map((line) => h("li.otca-note", {}, line)));
    open.disabled = false;
  }
}

/**
 * What stands beside the graph, in Markdown.
 *
 * @param {string} model
 */
const note = (model) =>
  [
    `# ${t("Learn from my pictures")}`,
    t("Model: {model}. It learns what you like; the result is a LoRA: *Save LoRA*, at the right.", { model }),
    t("**Press *Train 20*** on *Training Run*. From the third iteration on it says how long the rest takes."),
    t(
      "**What to look at**: *agreement* counts the pairs in which the model prefers what you chose, of pairs that it never sees; half of them is chance. Below are the same prompts before training and now.",
    ),
    t("*colorfulness* is not trained on: if it moves far, the pictures change in more than you asked for."),
    t("**For hours**: *Train headless…* in the OTCA tab of the sidebar."),
  ].join("\n\n");
