// @ts-check
/** The sidebar's dialogs. Each is a <dialog>: the browser keeps the focus inside and closes it on Esc. */
import { fileSize } from "../lib/format.js";
import { t } from "../lib/language.js";
import { poll } from "../lib/poll.js";
import { iterationsOf, runNameOf, uniqueName } from "../lib/runs.js";
import { copyButton } from "./copy.js";
import { button, h, setText } from "./dom.js";

const BUNDLE_POLL_MS = 1000;

const TEXT = {
  trainNote:
    t("Trains this workflow as a process of its own on this machine. ComfyUI stays usable, and the page may be closed."),
  proofTitle: (/** @type {string} */ id) => t("Proof: {name}", { name: id }),
  noRunNode: t("This workflow has no Training Run node. Fix: open the OTCA quickstart from Browse Templates in the menu."),
  bundle: t("Bundle…"),
  written: (/** @type {BundleAnswer} */ { path }) => t("Written: {path}", { path }),
};

/**
 * @param {string} title
 * @param {...Child} content
 */
export function openDialog(title, ...content) {
  const dialog = h(
    "dialog.otca-dialog",
    { "aria-label": title },
    h(
      "header.otca-dialog-head",
      {},
      h("h2.otca-run-name", {}, title),
      h(
        "button.otca-icon-button",
        { type: "button", "aria-label": t("Close"), onclick: () => dialog.close() },
        h("i.pi.pi-times"),
      ),
    ),
    content,
  );
  // Keys typed here are no shortcuts of the graph.
  dialog.addEventListener("keydown", (event) => event.stopPropagation());
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/**
 * A picture as large as the window allows.
 *
 * @param {string} source
 * @param {string | null} caption
 */
export function pictureDialog(source, caption) {
  openDialog(caption ?? "", h("img.otca-enlarged", { src: source, alt: caption })).classList.add("otca-picture-dialog");
}

/**
 * Asks how to train the graph on the canvas.
 *
 * @typedef {{iterations: number, gpus: number, reward_gpus: number}} Settings
 *
 * @param {Comfy} comfy
 * @param {object} options
 * @param {Prompt} options.prompt
 * @param {string[]} options.taken names of runs
 * @param {string} [options.goesOn] the graph's own run, which goes on under its name
 * @param {(settings: Settings & {name: string}) => Promise<void>} options.start posts them; an Error may carry `problems`
 */
export function trainDialog(comfy, { prompt, taken, goesOn, start }) {
  const named = nameFields(goesOn ?? uniqueName(runNameOf(prompt), taken));
  trainingDialog(comfy, {
    title: t("Train headless"),
    note: goesOn ? `${t("{run} goes on from its last checkpoint, with the values of its last iteration. Another name, such as {name}, begins a new run.", { run: goesOn, name: uniqueName(runNameOf(prompt), taken) })} ${TEXT.trainNote}` : TEXT.trainNote,
    iterations: iterationsOf(prompt),
    iterationsLabel: t("Iterations"),
    before: [named.name],
    after: [named.folder],
    error: hasRun(prompt) ? "" : TEXT.noRunNode,
    startLabel: t("Start training"),
    start: (values) => start({ name: named.value(), ...values }),
  });
  named.select();
}

/** @param {Prompt} prompt */
function hasRun(prompt) {
  return Object.values(prompt).some((node) => node.class_type === "OTCA_TrainingRun");
}

/**
 * A new run's name, and the folder that it gets.
 *
 * @param {string} first
 */
function nameFields(first) {
  const name = h("input.otca-input", { id: "otca-train-name", required: true, maxlength: 100, value: first });
  const folder = h("output.otca-quiet", { for: "otca-train-name" });
  const value = () => name.value.trim();
  const showFolder = () => setText(folder, (`output/otca/${value()}`));
  name.addEventListener("input", showFolder);
  showFolder();
  return { name: field(t("Name"), name), folder: field(t("Output folder"), folder), value, select: () => name.select() };
}

/**
 * Asks how long to try whether the graph on the canvas learns.
 *
 * @param {Comfy} comfy
 * @param {object} options
 * @param {Prompt} options.prompt
 * @param {string[]} options.taken names of runs
 * @param {(settings: {name: string, hours: number}) => Promise<void>} options.start posts them; an Error may carry `problems`
 */
export function proveDialog(comfy, { prompt, taken, start }) {
  const named = nameFields(uniqueName(`${runNameOf(prompt)}-proof`, taken));
  const hours = h("input.otca-input", {
    id: "otca-prove-hours",
    type: "number",
    min: 0.01,
    max: 10000,
    step: "any",
    required: true,
    value: 1,
    "aria-describedby": "otca-prove-note",
  });
  askDialog(comfy, {
    title: t("Prove it"),
    note: t("Finds out whether this workflow's model learns on this machine, as a process of its own: it draws 64 pictures, trains as long as there is time, draws the same ones again, and writes one page with the verdict."),
    fields: [named.name, field(t("Hours in all"), hours, h("span.otca-note", { id: "otca-prove-note" }, t("A first answer takes 0.5 to 2 hours on a GPU. The evaluations are in it."))), named.folder],
    error: hasRun(prompt) ? "" : TEXT.noRunNode,
    startLabel: t("Start the proof"),
    start: () => start({ name: named.value(), hours: Number(hours.value) }),
  });
  named.select();
}

/**
 * The page that a proof has written. Nothing in it runs, as the server says too.
 *
 * @param {Comfy} comfy
 * @param {string} id of the run
 */
export function proofDialog(comfy, id) {
  const source = comfy.routeUrl(`/otca/runs/${encodeURIComponent(id)}/proof`);
  openDialog(
    TEXT.proofTitle(id),
    h("a.otca-button", { href: source, target: "_blank", rel: "noopener" }, t("Open in a tab")),
    h("iframe.otca-proof", { src: source, title: TEXT.proofTitle(id), sandbox: "" }),
  ).classList.add("otca-picture-dialog");
}

/**
 * Asks how far a finished run shall train on.
 *
 * @param {Comfy} comfy
 * @param {{run: Run, start: (settings: Settings) => Promise<void>}} options
 */
export function resumeDialog(comfy, { run, start }) {
  trainingDialog(comfy, {
    title: t("Train on: {name}", { name: run.id }),
    iterations: Math.max(run.total ?? 0, run.iteration) * 2,
    iterationsLabel: t("Iterations in all"),
    startLabel: t("Train on"),
    start,
  });
}

/**
 * @param {Comfy} comfy
 * @param {object} options
 * @param {string} options.title
 * @param {string} [options.note]
 * @param {number} options.iterations
 * @param {string} options.iterationsLabel
 * @param {Child[]} [options.before] fields above those of every training
 * @param {Child[]} [options.after] fields below them
 * @param {string} [options.error]
 * @param {string} options.startLabel
 * @param {(settings: Settings) => Promise<void>} options.start
 */
function trainingDialog(
  comfy,
  { title, note, iterations, iterationsLabel, before = [], after = [], error = "", startLabel, start },
) {
  const number = (/** @type {string} */ id, /** @type {number} */ min, /** @type {number} */ max, value = min) =>
    h("input.otca-input", { id, type: "number", min, max, required: true, value });
  const explained = (/** @type {HTMLElement} */ input, /** @type {string} */ text) => {
    const note = h("span.otca-note", { id: `${input.id}-note` }, text);
    input.setAttribute("aria-describedby", note.id);
    return note;
  };
  const count = number("otca-train-iterations", 1, 1e7, iterations);
  const gpus = number("otca-train-gpus", 1, 1024);
  const rewardGpus = number("otca-train-reward-gpus", 0, 1024);
  const fields = [
    before,
    field(iterationsLabel, count),
    field(t("GPUs"), gpus, explained(gpus, t("1 uses the CPU if there is no GPU."))),
    field(t("GPUs for rewards"), rewardGpus, explained(rewardGpus, t("More GPUs, which do not train: rewards whose device is auto go there."))),
    after,
  ].flat();
  const values = () => ({ iterations: Number(count.value), gpus: Number(gpus.value), reward_gpus: Number(rewardGpus.value) });
  askDialog(comfy, { title, note, fields, error, startLabel, start: () => start(values()) });
}

/**
 * A form whose answer starts something, or ends it for good; what the server refuses is shown in it.
 *
 * @param {Comfy} comfy
 * @param {object} options
 * @param {string} options.title
 * @param {string} [options.note]
 * @param {Child[]} options.fields
 * @param {string} [options.error]
 * @param {string} options.startLabel
 * @param {boolean} [options.isDanger] Enter cancels
 * @param {() => Promise<void>} options.start
 */
export function askDialog(comfy, { title, note, fields, error = "", startLabel, isDanger = false, start }) {
  const message = h("div.otca-error", { role: "alert" }, error);
  const problems = h("div");
  const submit = h(`button.otca-button.otca-${isDanger ? "danger" : "primary"}`, { type: "submit" }, startLabel);
  const cancel = h("button.otca-button", { type: "button", onclick: () => dialog.close() }, t("Cancel"));
  const form = h(
    "form.otca-form",
    {},
    note && h("p.otca-note", {}, note),
    fields,
    message,
    problems,
    h("div.otca-buttons.otca-end", {}, cancel, submit),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    if (!isDanger) setText(submit, t("Starting…"));
    setText(message, "");
    problems.replaceChildren();
    try {
      await start();
      dialog.close();
    } catch (error) {
      if (!dialog.open) return comfy.toast("error", title, error.message); // it was closed meanwhile
      // The message of a workflow with problems is the list of them.
      setText(message, error.problems ? "" : error.message);
      problems.replaceChildren(problemList(comfy, error.problems ?? [], dialog));
    } finally {
      submit.disabled = false;
      setText(submit, startLabel);
    }
  });
  const dialog = openDialog(title, form);
  if (isDanger) cancel.focus();
}

/**
 * @param {string} label
 * @param {HTMLElement} input
 * @param {...Child} more
 */
function field(label, input, ...more) {
  return h("div.otca-field", {}, h("label", { for: input.id || undefined }, label), input, more);
}

/**
 * Errors of a workflow, and below them what does no harm. A click on one closes the dialog, which covers the canvas, and goes to the node; one
 * that is about the whole graph names no node.
 *
 * @param {Comfy} comfy
 * @param {Problem[]} problems
 * @param {HTMLDialogElement} dialog
 * @returns {HTMLElement | ""}
 */
function problemList(comfy, problems, dialog) {
  if (!problems.length) return "";
  const rest = problems.filter(({ severity }) => severity === "warning");
  if (rest.length && rest.length < problems.length) {
    const fatal = problems.filter(({ severity }) => severity !== "warning");
    return h("div", {}, problemList(comfy, fatal, dialog), problemList(comfy, rest, dialog));
  }
  const entries = problems.map(({ node_id: node, title, input, message, fix, severity }) => {
    const where = [title, input].filter(Boolean).join(" › ");
    const content = [where && h("strong", {}, where), h("span", {}, message), fix && h("span.otca-fix", {}, fix)];
    const go = () => {
      if (!node) return;
      dialog.close();
      comfy.showNode(node);
      comfy.toast("warn", where, [message, fix].filter(Boolean).join("\n"));
    };
    const attributes = {
      "data-severity": severity,
      ...(node && { type: "button", onclick: go, title: t("Show {node} on the canvas", { node: title ?? node }) }),
    };
    return h("li", {}, h(node ? "button.otca-problem" : "div.otca-problem", attributes, content));
  });
  const heading = rest.length ? t("Good to know") : t("To fix before it can train");
  return h("section.otca-command", {}, h("h3.otca-heading", {}, heading), h("ul.otca-problems", {}, entries));
}

/**
 * What a workflow asks for beyond its own data. A click allows what is not allowed yet, on this machine, from then on.
 *
 * @param {Comfy} comfy
 * @param {{wants: Want[], allow: (want: Want) => Promise<unknown>}} options
 */
export function permissionsDialog(comfy, { wants, allow }) {
  const rows = wants.map((want) => {
    const state = h("span.otca-quiet");
    const error = h("span.otca-fix", { role: "alert" });
    const show = (/** @type {boolean | null} */ allowed) =>
      setText(state, allowed === null ? t("known only when the graph runs") : allowed ? t("allowed") : t("not allowed"));
    show(want.allowed);
    const click =
      want.remember &&
      button("pi-check", t("Allow {what}", { what: want.remember }), async (event) => {
        const clicked = /** @type {HTMLElement} */ (event.currentTarget);
        try {
          await allow(want);
          show(true);
          clicked.remove();
        } catch (refusal) {
          setText(error, refusal.message);
        }
      });
    const fix = want.allowed === false && !want.remember && h("span.otca-fix", {}, want.fix);
    return h("li.otca-want", { "data-allowed": String(want.allowed) }, h("strong", {}, want.text), state, fix, error, click);
  });
  openDialog(
    t("What this workflow wants"),
    h(
      "p.otca-note",
      {},
      wants.length
        ? t(
            "A workflow may be a stranger's. What it names outside of ComfyUI's own folders and this machine, only you can allow: a click is remembered on this machine, for every workflow.",
          )
        : t("It names nothing outside of ComfyUI's own folders and this machine."),
    ),
    h("ul.otca-problems", {}, rows),
  );
}

/**
 * A button that has a bundle written, and then what became of it.
 *
 * @param {Comfy} comfy
 * @param {(hashes: boolean, pictures: boolean) => Promise<BundleAnswer>} make an Error may carry `pictures`, the names of those that the
 *   bundle would contain: the user is asked
 * @param {() => HTMLDialogElement} dialog
 */
function bundleSection(comfy, make, dialog) {
  const hashes = h("input", { id: "otca-bundle-hashes", type: "checkbox", checked: true, "aria-describedby": "otca-bundle-note" });
  const error = h("div.otca-error", { role: "alert" });
  const result = h("div", { role: "status" });
  const start = button("pi-box", TEXT.bundle, () => write(false));
  /** @param {boolean} pictures they may be in it */
  async function write(pictures) {
    start.disabled = true;
    setText(start.lastChild, t("Writing…"));
    setText(error, "");
    result.replaceChildren();
    const { refresh, end } = poll(reading, { every: BUNDLE_POLL_MS, isSeen: () => true, failed: () => {} });
    refresh();
    try {
      const made = await make(hashes.checked, pictures);
      if (!dialog().open) comfy.toast("success", TEXT.bundle, TEXT.written(made));
      result.replaceChildren(...bundleResult(comfy, made));
    } catch (failure) {
      if (!dialog().open) comfy.toast("error", TEXT.bundle, failure.message);
      setText(error, failure.problems || failure.pictures ? "" : failure.message);
      const asked = failure.pictures && picturesAsked(failure.pictures, () => write(true));
      result.replaceChildren(asked ?? problemList(comfy, failure.problems ?? [], dialog()));
    } finally {
      end();
      start.disabled = false;
      setText(start.lastChild, TEXT.bundle);
    }
  }
  /** Says on the button how much of the models has been read. */
  async function reading() {
    const { read, total } = await comfy.getJson("/otca/bundle");
    if (start.disabled && total) setText(start.lastChild, t("Reading the models: {percent} %", { percent: Math.floor((100 * read) / total) }));
    return true;
  }
  return h(
    "section.otca-command",
    {},
    h("div.otca-row", {}, h("h3.otca-heading", {}, t("Everything in one file")), start),
    h("p.otca-note", {}, t("One zip with the workflow, its files, this pack, the exact packages, and scripts for a shell, Docker, SLURM and SkyPilot. Models are not copied: the bundle lists them, and checks them there. Nothing is uploaded.")),
    h("label.otca-check", { for: "otca-bundle-hashes" }, hashes, t("Read the models to compare their content there")),
    h("p.otca-note", { id: "otca-bundle-note" }, t("Takes a while where models are large. Without it their sizes are compared.")),
    error,
    result,
  );
}

/**
 * Which pictures would leave this machine with a bundle, and the button that lets them.
 *
 * @param {string[]} names
 * @param {() => void} allow
 */
function picturesAsked(names, allow) {
  return h(
    "div",
    {},
    h("p.otca-note", {}, t("The bundle would contain {count} of your pictures. Who gets the bundle can see them:", { count: names.length })),
    h("ul.otca-bundle", { tabindex: "0" }, names.map((name) => h("li.otca-note", {}, name))),
    button("pi-check", t("Put these pictures into it"), allow),
  );
}

/**
 * @param {Comfy} comfy
 * @param {BundleAnswer} made
 */
function bundleResult(comfy, made) {
  const address = comfy.routeUrl(`/otca/bundles/${encodeURIComponent(made.name)}`);
  const known = [
    TEXT.written(made),
    made.models.length && t("Model files that have to be there: {count}, {size} in all. The bundle's README lists them.", { count: made.models.length, size: fileSize(made.model_bytes) }),
    ...made.estimate,
    ...made.notes,
  ];
  return [
    h("a.otca-button.otca-primary", { href: address, download: made.name }, t("Download {name} ({size})", { name: made.name, size: fileSize(made.bytes) })),
    h("ul.otca-bundle", {}, known.filter(Boolean).map((line) => h("li.otca-note", {}, line))),
  ];
}

/**
 * Command lines of an export, after its download.
 *
 * @param {Comfy} comfy
 * @param {object} options
 * @param {ExportAnswer} options.answer
 * @param {boolean} options.failed
 * @param {() => void} options.download
 * @param {(hashes: boolean, pictures: boolean) => Promise<BundleAnswer>} options.bundle
 */
export function exportDialog(comfy, { answer, failed, download, bundle }) {
  const commands = answer.commands.map(({ title, lines, note }) => commandSection(title, lines.join("\n"), note));
  const problems = h("div");
  const dialog = openDialog(
    t("Export for headless training"),
    h(
      "p.otca-note",
      {},
      failed
        ? t("The workflow has errors, so training would not start.")
        : t("{file} was downloaded. Copy it to the machine that trains; there, one of these starts the training:", {
            file: answer.filename,
          }),
    ),
    failed
      ? [problems, h("div.otca-buttons.otca-end", {}, button("pi-download", t("Download anyway"), download))]
      : [bundleSection(comfy, bundle, () => dialog), commands, problems],
  );
  problems.append(problemList(comfy, answer.problems, dialog));
}

/**
 * What to type in place of what the page may not do yet, and how the user allows it.
 *
 * @param {Comfy} comfy
 * @param {object} options
 * @param {string} options.title
 * @param {Word} options.word
 * @param {{title: string, command: string, note: string}} [options.instead]
 * @param {{name: string, save: () => void}} [options.file] that the command is about
 * @param {Problem[]} [options.problems] of the workflow, which come first
 */
export function wordDialog(comfy, { title, word, instead, file, problems = [] }) {
  const first = h("div");
  const failed = problems.some(({ severity }) => severity === "error");
  const download = file && h("div", {}, button("pi-download", t("Download {file}", { file: file.name }), file.save, { class: "otca-button otca-primary" }));
  const dialog = openDialog(
    title,
    h(
      "p.otca-note",
      {},
      t(
        "ComfyUI does not know who opens its page. So this page may start and stop trainings, and delete runs, on this computer only once you have allowed that from outside of it.",
      ),
    ),
    first,
    instead && !failed && commandSection(instead.title, instead.command, instead.note, download),
    commandSection(
      t("Allow it on this page"),
      word.command,
      [
        t("Type this into a terminal of this computer, once, and restart ComfyUI. With --take-back at its end it takes your word back."),
        t("Or start ComfyUI with {variable} in its environment.", { variable: word.variable }),
      ].join(" "),
    ),
  );
  first.append(problemList(comfy, problems, dialog));
}

/**
 * @param {string} title
 * @param {string} text
 * @param {string} [note]
 * @param {Child} [before] the command
 */
function commandSection(title, text, note, before) {
  return h(
    "section.otca-command",
    {},
    h("div.otca-row", {}, h("h3.otca-heading", {}, title), copyButton(text)),
    before,
    // No line ends after the dashes of an option.
    h("pre.otca-code", { tabindex: "0" }, text.split(/([ \n])/).map((part, at) => (at % 2 ? part : h("span.otca-word", {}, part)))),
    note && h("p.otca-note", {}, note),
  );
}
