// @ts-check
/**
 * One run, all of it: state and buttons, curves, credit, pictures, log. Built once a run is chosen, then updated by what
 * the routes say.
 */
import { significant } from "../lib/format.js";
import { t } from "../lib/language.js";
import { PLACE, STATUS, formatDuration, offeredActions, progress, sampleIteration, secondsLeft } from "../lib/runs.js";
import { pictureDialog } from "./dialogs.js";
import { button, h, section, setText, showPicture } from "./dom.js";
import { keeping } from "./keeping.js";
import { curveSections } from "./runcurves.js";
import { tryPromptSection } from "./tryprompt.js";

const TEXT = {
  resume: t("Resume headless"),
  progress: (/** @type {Run} */ { iteration, total }) =>
    total ? t("iteration {iteration} of {total}", { iteration, total }) : t("iteration {iteration}", { iteration }),
  change: (/** @type {Change} */ { iteration, lines }) =>
    t("from iteration {iteration} on: {changes}", { iteration, changes: lines.join("; ") }),
  samplesAt: (/** @type {number} */ iteration) => (iteration === 0 ? t("before training") : t("iteration {iteration}", { iteration })),
  beforeAfter: t("Before and after"),
  emptyLog: t("The log is empty."),
};

const LONGEST_LOG = 200_000; // characters that stay in the page

/**
 * What the buttons call.
 * @typedef {Record<"stop" | "resume" | "canvas" | "lora" | "workflow" | "proof" | "failure", () => void>
 *   & Record<"remove" | "noted", () => void>
 *   & {failed(error: Error): void}} Actions
 *
 * @param {Comfy} comfy
 * @param {Actions} actions
 */
export function runView(comfy, actions) {
  const kept = keeping(comfy, actions);
  const head = runHead(actions, kept);
  const samples = samplesSection(comfy);
  const curves = curveSections(samples.element);
  const changes = changesSection();
  const tried = tryPromptSection(comfy);
  const log = logSection();
  const parts = [head, curves, changes, tried, log].map((part) => part.element);
  return {
    element: h("div.otca-run", {}, parts),
    /** @param {RunData} data */
    update(data) {
      head.update(data);
      kept.update(data.run);
      curves.update(data);
      changes.update(data.changes);
      samples.update(data.run);
      tried.update(data.run);
    },
    appendLog: log.append,
    clearLog: log.clear,
    onLogOpen: log.onOpen,
    logIsOpen: log.isOpen,
    dispose() {
      kept.dispose();
      curves.dispose();
      tried.dispose();
    },
  };
}

/**
 * A run's state as icon, word and colour.
 *
 * @returns {View<Run>}
 */
export function statusBadge() {
  const icon = h("i", { "aria-hidden": "true" });
  const text = h("span");
  const element = h("span.otca-status", {}, icon, text);
  return {
    element,
    update({ status }) {
      const state = STATUS[status];
      element.setAttribute("data-tone", state.tone);
      icon.setAttribute("class", `pi ${state.icon}`);
      setText(text, state.word);
    },
  };
}

/** @returns {View<Run>} */
export function progressBar() {
  const done = h("div.otca-progress-done");
  const element = h("div.otca-progress", { role: "progressbar", "aria-valuemin": 0 }, done);
  return {
    element,
    update(run) {
      element.setAttribute("aria-valuemax", String(run.total ?? run.iteration));
      element.setAttribute("aria-valuenow", String(run.iteration));
      element.setAttribute("aria-label", TEXT.progress(run));
      done.style.width = `${100 * progress(run)}%`;
    },
  };
}

/**
 * @param {Actions} actions
 * @param {{buttons: HTMLElement, notes: HTMLElement}} kept
 */
function runHead(actions, kept) {
  const name = h("h2.otca-run-name");
  const badge = statusBadge();
  const runPlace = h("span");
  const bar = progressBar();
  const state = h("div.otca-run-state", {}, badge.element, runPlace, bar.element);
  const pace = h("div.otca-quiet");
  const error = h("div.otca-error", { role: "alert" });
  const failure = button("pi-search-plus", "", () => actions.failure());
  const warning = h("div.otca-warning", { role: "status" });
  const buttons = {
    proof: button("pi-verified", t("Open the proof"), () => actions.proof(), { class: "otca-button otca-primary" }),
    stop: button("pi-stop-circle", t("Stop"), () => actions.stop()),
    resume: button("pi-play", TEXT.resume, () => actions.resume()),
    canvas: button("pi-pencil", t("Resume on canvas"), () => actions.canvas()),
    lora: button("pi-bolt", t("Load the LoRA"), () => actions.lora()),
    workflow: button("pi-folder-open", t("Open workflow"), () => actions.workflow()),
  };
  /** @type {boolean | null} */
  let proven = null; // whether its page was there when it was looked at last
  for (const element of [state, failure, ...Object.values(buttons)]) element.hidden = true; // until the run is known
  return {
    element: h(
      "header.otca-run-head",
      {},
        [h("div.otca-row.otca-run-top", {}, name, kept.buttons), state, pace, error, failure, warning, kept.notes],
      h("div.otca-buttons", {}, Object.values(buttons)),
    ),
    /** @param {RunData} data */
    update({ run, rows }) {
      setText(name, run.id);
      badge.update(run);
      setText(runPlace, run.remote ?? PLACE[run.place]);
      bar.update(run);
      state.hidden = false;
      // On the canvas, how long it takes is up to whoever queues.
      const left = run.status === "running" && run.place === "headless" ? secondsLeft(run, rows) : null;
      const each = rows.at(-1)?.["seconds/iteration"];
      setText(pace, [TEXT.progress(run), each && t("{seconds} s each", { seconds: significant(each, 2) }), left && t("about {time} left", { time: formatDuration(left) }), run.spent].filter(Boolean).join(" · "));
      setText(error, run.error ?? "");
      failure.hidden = !run.failed_at;
      setText(failure.lastChild, run.failed_at ? t("Show {node} on the canvas", { node: run.failed_at.title }) : "");
      setText(warning, run.warning ?? "");
      const offered = offeredActions(run);
      if (proven === false && offered.proof) actions.proof(); // it was waited for
      proven = offered.proof;
      for (const [action, element] of Object.entries(buttons)) element.hidden = !offered[action];
      buttons.canvas.title = t(
        "Opens the run's workflow here, with its name, seeds and last checkpoint. The next Run then is iteration {next}.",
        { next: run.iteration + 1 },
      );
      setText(buttons.resume.lastChild, run.status === "finished" ? t("Train on…") : TEXT.resume);
    },
  };
}

/** Values that were changed while the run trained; nothing where there were none. */
function changesSection() {
  const list = h("ul.otca-changes");
  const element = section(t("Changed while it trained"), null, list);
  element.hidden = true;
  return {
    element,
    /** @param {Change[]} [changes] */
    update(changes = []) {
      element.hidden = changes.length === 0;
      list.replaceChildren(...changes.map((change) => h("li", {}, TEXT.change(change))));
    },
  };
}

/**
 * The evaluation's grids, one an evaluation, chosen by a slider.
 *
 * @param {Comfy} comfy
 */
function samplesSection(comfy) {
  const image = h("img.otca-samples", { alt: "" });
  const caption = h("output.otca-quiet");
  const enlarge = h(
    "button.otca-picture",
    { type: "button", onclick: () => pictureDialog(image.src, caption.textContent) },
    image,
  );
  const slider = h("input.otca-slider", {
    type: "range",
    min: 0,
    value: 0,
    "aria-label": t("Iteration of the pictures"),
    oninput: () => show(),
  });
  const beforeAfter = button(
    "pi-images",
    TEXT.beforeAfter,
    () => run && pictureDialog(latestPicture(run), TEXT.beforeAfter),
    {
      title: t("The evaluation's pictures before training and now, one above the other"),
    },
  );
  // The trainer draws samples.png again under its old name.
  const latestPicture = (/** @type {RunDetails} */ { id, updated }) =>
    comfy.routeUrl(`/otca/runs/${encodeURIComponent(id)}/pictures/samples.png?at=${updated}`);
  const empty = h("p.otca-note", {}, t("Pictures appear with the first evaluation."));
  const content = h("div", {}, h("div.otca-row", {}, slider, caption), enlarge);
  /** @type {RunDetails | null} */
  let run = null;
  let followsLatest = true;

  function show() {
    if (!run) return;
    const file = run.samples[Number(slider.value)];
    followsLatest = Number(slider.value) === run.samples.length - 1;
    const text = TEXT.samplesAt(sampleIteration(file));
    const source = comfy.routeUrl(`/otca/runs/${encodeURIComponent(run.id)}/pictures/samples-${file}`);
    setText(caption, text);
    slider.setAttribute("aria-valuetext", text);
    enlarge.setAttribute("aria-label", t("Samples, {caption}: enlarge", { caption: text }));
    showPicture(image, source);
  }

  return {
    element: section(t("Samples"), null, empty, content, h("div.otca-buttons", {}, beforeAfter)),
    /** @param {RunDetails} next */
    update(next) {
      run = next;
      empty.hidden = run.samples.length > 0;
      content.hidden = run.samples.length === 0;
      beforeAfter.hidden = !run.pictures.includes("samples.png");
      if (!run.samples.length) return;
      slider.max = String(run.samples.length - 1);
      if (followsLatest) slider.value = slider.max;
      show();
    },
  };
}

/** The log's tail. It stays at its end unless the user scrolled up to read. */
function logSection() {
  const text = h("pre.otca-log", { tabindex: "0" }, TEXT.emptyLog);
  const details = h("details.otca-section", {}, h("summary.otca-heading", {}, t("Log of the trainer")), text);
  let content = "";
  return {
    element: details,
    isOpen: () => details.open,
    onOpen: (/** @type {() => void} */ callback) => details.addEventListener("toggle", () => details.open && callback()),
    clear() {
      content = "";
      setText(text, TEXT.emptyLog);
    },
    /** @param {string} more */
    append(more) {
      if (!more) return;
      const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 8;
      content = (content + more).slice(-LONGEST_LOG);
      setText(text, content);
      if (atEnd) text.scrollTop = text.scrollHeight;
    },
  };
}
