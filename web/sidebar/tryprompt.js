// @ts-check
/** Before and after on any prompt: a run's model without and with what it learned, and the pictures that were made so far. */
import { t } from "../lib/language.js";
import { canTry, pairTitle, workShare, workText } from "../lib/pairs.js";
import { poll } from "../lib/poll.js";
import { wordDialog } from "./dialogs.js";
import { button, h, once, section, setText } from "./dom.js";
import { pairSlider } from "./pairslider.js";

const POLL_MS = 1000;
const LARGEST_SEED = Number.MAX_SAFE_INTEGER;

/** @param {Comfy} comfy */
export function tryPromptSection(comfy) {
  const prompt = h("textarea.otca-input.otca-try-prompt", {
    id: "otca-try-prompt",
    rows: 2,
    required: true,
    maxlength: 2000,
    placeholder: t("Describe a picture"),
  });
  const seed = h("input.otca-input", { id: "otca-try-seed", type: "number", min: 0, max: LARGEST_SEED, value: 0, required: true });
  const make = h(
    "button.otca-button",
    { type: "submit", title: t("By a process of its own, which loads the model: ComfyUI stays usable") },
    h("i.pi.pi-images", { "aria-hidden": "true" }),
    t("Make both pictures"),
  );
  const form = h(
    "form.otca-form",
    { onsubmit: (/** @type {Event} */ event) => (event.preventDefault(), start()) },
    h("div.otca-try-field", {}, h("label", { for: prompt.id }, t("Prompt")), prompt),
    h("div.otca-try-field.otca-try-seed", {}, h("label", { for: seed.id }, t("Seed")), seed, make),
  );
  const title = t("Before and after on any prompt");
  const locked = h(
    "div.otca-try-locked",
    {},
    h("p.otca-note", {}, t("Making these pictures starts a process, which this page may not do yet.")),
    button("pi-lock-open", t("How to allow it…"), () => word && wordDialog(comfy, { title, word })),
  );
  form.hidden = locked.hidden = true; // until it is known
  const work = workRow(() => post("/cancel", {}));
  const error = h("div.otca-error", { role: "alert" });
  const shown = pairSlider();
  const kept = h("select.otca-input", { "aria-label": t("Pictures that were made"), onchange: () => show() });
  const element = section(title, null, form, locked, work.element, error, kept, shown.element);
  element.hidden = true;
  element.addEventListener("keydown", (event) => event.stopPropagation()); // keys pressed here are no shortcuts of the graph

  /** @type {Run | null} */
  let run = null;
  /** @type {Word | null} */
  let word = null;
  /** @type {Pair[]} */
  let pairs = [];
  let disposed = false;
  const route = () => `/otca/runs/${encodeURIComponent(run?.id ?? "")}/before_after`;
  const isSeen = () => run !== null && document.visibilityState === "visible";
  const { refresh, end } = poll(read, { every: POLL_MS, isSeen, failed: (failure) => setText(error, failure.message) });

  async function read() {
    const made = await comfy.getJson(route());
    if (!word?.given) word = await comfy.trainingsWord();
    if (disposed) return false;
    form.hidden = !word.given;
    locked.hidden = word.given;
    const isNew = made.pairs[0]?.name !== pairs[0]?.name;
    pairs = made.pairs;
    if (isNew) kept.replaceChildren(...pairs.map((pair) => h("option", { value: pair.name }, pairTitle(pair))));
    kept.hidden = shown.element.hidden = pairs.length === 0;
    if (isNew) show();
    const failed = made.work?.state === "failed";
    work.update(failed ? null : made.work);
    make.disabled = Boolean(made.work) && !failed;
    setText(error, failed ? [made.work.error, made.from_comfyui && otherWay()].filter(Boolean).join("\n\n") : "");
    return make.disabled;
  }

  function show() {
    const pair = pairs.find(({ name }) => name === kept.value) ?? pairs[0];
    if (!pair) return;
    const [before, after] = ["before", "after"].map((which) => comfy.routeUrl(`${route()}/${pair.name}/${which}`));
    shown.update({ before, after, caption: pairTitle(pair) });
  }

  const start = once(() => post("", { prompt: prompt.value, seed: Number(seed.value) }));

  /**
   * @param {string} below
   * @param {object} content
   */
  async function post(below, content) {
    try {
      await comfy.postJson(route() + below, content);
      await refresh();
    } catch (refusal) {
      setText(error, refusal.message);
    }
  }

  return {
    element,
    /** @param {Run} next */
    update(next) {
      const first = run === null;
      run = next;
      element.hidden = !canTry(run);
      if (first && !element.hidden) refresh();
      else if (element.hidden) run = null; // until it has saved something
    },
    dispose() {
      disposed = true;
      end();
    },
  };
}

/** What helps where a model that ComfyUI's nodes load cannot be loaded outside of it. */
function otherWay() {
  return t(
    "This run trains what ComfyUI's own nodes load. On the canvas: press Resume on canvas, connect Tuned Model to a KSampler with that prompt and seed, and the untouched MODEL to another one.",
  );
}

/** @param {() => void} cancel */
function workRow(cancel) {
  const text = h("span.otca-quiet", { role: "status" });
  const done = h("div.otca-progress-done");
  const bar = h("div.otca-progress", { role: "progressbar", "aria-label": t("Pictures"), "aria-valuemin": 0, "aria-valuemax": 100 }, done);
  const element = h("div.otca-try-work", {}, text, bar, button("pi-times", t("Cancel"), cancel));
  element.hidden = true;
  return {
    element,
    /** @param {PairWork | null} work */
    update(work) {
      element.hidden = work === null;
      if (!work) return;
      setText(text, workText(work));
      bar.setAttribute("aria-valuenow", String(Math.round(100 * workShare(work))));
      done.style.width = `${100 * workShare(work)}%`;
    },
  };
}
