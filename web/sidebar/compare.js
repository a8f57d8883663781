// @ts-check
/** Several runs beside each other: their curves over each other, their pictures of the same prompt and seed, and what they were set to. */
import { OBJECTIVES } from "../lib/color.js";
import { curveOf, differingSettings, isEvaluated, sharedIterations, sharedMetrics, sharedPictures } from "../lib/compare.js";
import { t } from "../lib/language.js";
import { newest } from "../lib/newest.js";
import { cutsView } from "./cuts.js";
import { openDialog } from "./dialogs.js";
import { h, section, setText } from "./dom.js";
import { overlayChart } from "./overlay.js";
import { chartName } from "./runcurves.js";

const TEXT = {
  curves: t("Curves"),
  metric: t("Figure"),
  axis: t("Along"),
  kinds: /** @type {Record<string, string>} */ ({
    evaluation: t("Evaluation: always the same prompts and seeds"),
    reward: t("Rewards of the iterations"),
    held_out: t("Held out"),
    other: t("Training"),
  }),
  prompt: t("Prompt and seed"),
  at: t("Evaluation"),
  left: t("Left"),
  right: t("Right"),
};

/**
 * Reads the runs and opens the comparison.
 *
 * @param {Comfy} comfy
 * @param {Run[]} runs two at least
 */
export async function compareRuns(comfy, runs) {
  const compared = await Promise.all(runs.map((run) => read(comfy, run)));
  const parts = [curvesPart(comfy, compared), picturesPart(comfy, compared)];
  const dialog = openDialog(t("Compare runs"), legend(compared), ...parts.map(({ element }) => element), settingsPart(comfy, compared));
  dialog.classList.add("otca-compare");
  dialog.addEventListener("close", () => parts.forEach(({ dispose }) => dispose()));
  for (const { start } of parts) start();
}

/**
 * @param {Comfy} comfy
 * @param {Run} run
 * @returns {Promise<import("../lib/compare.js").Compared>}
 */
async function read(comfy, run) {
  const route = `/otca/runs/${encodeURIComponent(run.id)}`;
  const unreadable = (/** @type {any} */ error) => {
    if (!(error.status < 500)) throw error; // it is the server that could not answer
    return { prompt: null }; // of one that is damaged the rest can be compared
  };
  const [{ names, evaluations }, { grids }, { prompt }] = await Promise.all([
    comfy.getJson(`${route}/columns`),
    comfy.getJson(`${route}/samples`),
    comfy.getJson(`${route}/workflow`).catch(unreadable),
  ]);
  return { run, names, evaluations, grids, prompt };
}

/** @param {number} index */
const colorOf = (index) => OBJECTIVES[index % OBJECTIVES.length];

/** @param {import("../lib/compare.js").Compared[]} compared */
function legend(compared) {
  return h(
    "div.otca-legend",
    {},
    compared.map(({ run }, index) =>
      h("span.otca-legend-entry", {}, h("span.otca-swatch", { style: `background: ${colorOf(index)}` }), run.id),
    ),
  );
}

/**
 * @param {string} label
 * @param {[string, string][]} options value and text
 * @param {() => void} onchange
 */
function choice(label, options, onchange) {
  const select = h(
    "select.otca-input",
    { "aria-label": label, onchange },
    options.map(([value, text]) => h("option", { value }, text)),
  );
  select.addEventListener("keydown", (event) => event.stopPropagation());
  return select;
}

/**
 * @param {string} label
 * @param {HTMLElement} field
 */
const labelled = (label, field) => h("label.otca-choice", {}, h("span.otca-quiet", {}, label), field);

/**
 * @param {Comfy} comfy
 * @param {import("../lib/compare.js").Compared[]} compared
 */
function curvesPart(comfy, compared) {
  const metrics = sharedMetrics(compared);
  const metric = choice(TEXT.metric, [], () => show());
  for (const [kind, label] of Object.entries(TEXT.kinds)) {
    const options = metrics.filter((one) => one.kind === kind).map(({ key, label: text }) => h("option", { value: key }, kind === "reward" || kind === "held_out" ? t("{name}, each iteration", { name: text }) : chartName(key) ?? text));
    if (options.length) metric.append(h("optgroup", { label }, options));
  }
  const axis = choice(TEXT.axis, [["iterations", t("iterations")], ["seconds", t("seconds of training")]], () => show());
  const drawn = overlayChart();
  const error = h("div.otca-error", { role: "alert" });
  /** @type {Map<string, Promise<Figures>[]>} */
  const figures = new Map(); // by metric, as far as it was asked for
  const begun = newest();

  async function show() {
    const isNewest = begun();
    drawn.element.classList.add("otca-late"); // it is not what is chosen now
    const [key, bySeconds] = [metric.value, axis.value === "seconds"];
    try {
      if (!figures.has(key)) figures.set(key, compared.map(({ run }) => readFigures(comfy, run.id, key)));
      const read = await Promise.all(figures.get(key) ?? []);
      if (!isNewest()) return; // another one was chosen meanwhile
      const curves = read.map((one, index) => ({
        name: compared[index].run.id,
        color: colorOf(index),
        dots: isEvaluated(key),
        ...curveOf(one, key, bySeconds),
      }));
      drawn.update(() => ({ curves, bySeconds, rest: "" }));
      drawn.element.classList.remove("otca-late");
      setText(error, "");
    } catch (problem) {
      figures.delete(key);
      if (isNewest()) setText(error, problem.message);
    }
  }

  return {
    element: metrics.length
      ? section(TEXT.curves, null, h("div.otca-choices", {}, labelled(TEXT.metric, metric), labelled(TEXT.axis, axis)), drawn.element, error)
      : section(TEXT.curves, t("These runs have no figure in common yet.")),
    start: () => metrics.length && show(),
    dispose: drawn.dispose,
  };
}

/**
 * @param {Comfy} comfy
 * @param {string} run
 * @param {string} key
 * @returns {Promise<Figures>}
 */
function readFigures(comfy, run, key) {
  const names = ["seconds/iteration", ...(isEvaluated(key) ? [] : [key])];
  return comfy.getJson(`/otca/runs/${encodeURIComponent(run)}/columns?${new URLSearchParams(names.map((name) => ["name", name]))}`);
}

/**
 * @param {Comfy} comfy
 * @param {import("../lib/compare.js").Compared[]} compared
 */
function picturesPart(comfy, compared) {
  const runs = /** @type {[string, string][]} */ (compared.map(({ run }, index) => [String(index), run.id]));
  const left = choice(TEXT.left, runs, () => show());
  const right = choice(TEXT.right, runs, () => show());
  const shared = sharedIterations(compared.map(({ grids }) => grids));
  const at = choice(
    TEXT.at,
    [
      ["last", t("the last of each run")],
      .../** @type {[string, string][]} */ (
        shared.map((one) => [String(one), one ? t("iteration {iteration}", { iteration: one }) : t("before training")])
      ),
    ],
    () => show(),
  );
  const prompt = choice(TEXT.prompt, [], () => show());
  const view = cutsView();
  const none = h("p.otca-note", {}, t("These runs have no picture of the same prompt and seed."));
  const choices = h(
    "div.otca-choices",
    {},
    labelled(TEXT.prompt, prompt),
    labelled(TEXT.at, at),
    labelled(TEXT.left, left),
    labelled(TEXT.right, right),
  );
  let prompts = "";

  /** @param {HTMLSelectElement} side */
  function gridOf(side) {
    const { run, grids } = compared[Number(side.value)];
    const grid = at.value === "last" ? grids.at(-1) : grids.find(({ iteration }) => String(iteration) === at.value);
    return grid && { run, grid, color: colorOf(Number(side.value)) };
  }

  function show() {
    const sides = [gridOf(left), gridOf(right)].flatMap((side) => side ?? []);
    const pictures = sides.length === 2 ? sharedPictures(sides.map(({ grid }) => grid)) : [];
    offer(pictures);
    none.hidden = pictures.length > 0;
    view.element.hidden = pictures.length === 0;
    const picture = pictures[Number(prompt.value)] ?? pictures[0];
    if (!picture) return;
    const cuts = sides.map(({ run, grid: { file, size }, color }, index) => ({
      run: run.id,
      color,
      size,
      box: picture.boxes[index],
      url: comfy.routeUrl(`/otca/runs/${encodeURIComponent(run.id)}/pictures/samples-${file}`),
    }));
    view.update(/** @type {any} */ (cuts), picture.prompt);
  }

  /**
   * Keeps the choice where the same prompts are offered again.
   *
   * @param {ReturnType<typeof sharedPictures>} pictures
   */
  function offer(pictures) {
    const texts = pictures.map((picture) => t("{prompt} · seed {seed}", { prompt: picture.prompt, seed: picture.seed + 1 }));
    if (texts.join("\n") === prompts) return;
    prompts = texts.join("\n");
    prompt.replaceChildren(...texts.map((text, index) => h("option", { value: index }, text)));
  }

  right.value = "1";
  const drawn = compared.every(({ grids }) => grids.length) ? [choices, none, view.element] : [none];
  return { element: section(t("Pictures"), null, drawn), start: show, dispose() {} };
}

/**
 * @param {Comfy} comfy
 * @param {import("../lib/compare.js").Compared[]} compared
 */
function settingsPart(comfy, compared) {
  const read = compared.filter(({ prompt }) => prompt);
  const unread = compared.filter(({ prompt }) => !prompt).map(({ run }) => run.id);
  const rows = differingSettings(read.map(({ prompt }) => /** @type {Prompt} */ (prompt)), comfy.defaultsOf);
  const cell = (/** @type {string | null} */ value) => h("td", { title: value ?? undefined }, value ?? "–");
  const table = h(
    "div.otca-settings",
    { tabindex: "0" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("Setting")), read.map(({ run }) => h("th", { scope: "col", title: run.id }, run.id)))),
      h(
        "tbody",
        {},
        rows.map(({ node, input, values }) =>
          h("tr", {}, h("th", { scope: "row" }, node, h("span.otca-quiet", {}, ` · ${input}`)), values.map(cell)),
        ),
      ),
    ),
  );
  return section(
    t("Settings that differ"),
    unread.length ? t("No workflow can be read of {runs}.", { runs: unread.join(", ") }) : null,
    rows.length ? table : h("p.otca-note", {}, t("All settings are the same.")),
  );
}
