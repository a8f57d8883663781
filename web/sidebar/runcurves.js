// @ts-check
/** All charts of a run: rewards, credit, training and times over its iterations. */
import { OBJECTIVES } from "../lib/color.js";
import { errorBars, joined, runningMean } from "../lib/curves.js";
import { significant } from "../lib/format.js";
import { t } from "../lib/language.js";
import { agreement, learned } from "../lib/learned.js";
import { creditSteps, phases, rewardPanels, timedRewards } from "../lib/runs.js";
import { lineChart, stackedBars, stepHeatmap } from "./charts.js";
import { h, section } from "./dom.js";

/** Small charts beside those of the rewards: title and metrics. `ifAny`: there is none where the metric was always zero. */
/** @type {{title: string, lines: Record<string, string>, ifAny?: boolean, model?: (data: RunData) => object}[]} `model`: of what is measured now and then */
const TRAINING_CHARTS = [
  { title: t("Agrees with held-out opinions"), lines: { "opinions/agreement": "" }, model: agreementModel },
  { title: t("Clip fraction"), lines: { "clip/high": t("above"), "clip/low": t("below") } },
  { title: t("Clip fraction"), lines: { "matching/clip_high": t("above"), "matching/clip_low": t("below") } },
  { title: t("Error of the matched velocity"), lines: { "matching/residual": "" } },
  { title: t("Share of the old policy that stays"), lines: { "old_policy/decay": "" }, ifAny: true },
  { title: t("Gradient norm"), lines: { gradient_norm: "" } },
  { title: t("Zero fraction of z"), lines: { "z/zero_fraction": "" } },
  { title: t("KL to the untrained model"), lines: { "kl/reference": "" }, ifAny: true },
  { title: t("Steps longer than the untrained model's"), lines: { "norm/growth": "" }, ifAny: true },
  { title: t("How different a prompt's pictures are"), lines: { diversity: "" } },
  { title: t("KL to the sampling policy"), lines: { "kl/approx": "" }, ifAny: true },
];

/** @param {string} key of a metric: the name of its chart and line, if it has one */
export function chartName(key) {
  const chart = TRAINING_CHARTS.find(({ lines }) => key in lines);
  return chart && [chart.title, chart.lines[key]].filter(Boolean).join(", ");
}

/** @param {RunData["figures"]} figures */
function trainingCharts(figures) {
  return TRAINING_CHARTS.map((chart) => {
    const recorded = (/** @type {string} */ key) => (chart.ifAny ? figures.isEverNonzero(key) : figures.names.includes(key));
    return { ...chart, keys: Object.keys(chart.lines).filter(recorded) };
  }).filter(({ keys }) => keys.length);
}

/** @type {Record<string, string>} */
const PHASES = { rollout: t("rollout"), reward: t("reward"), credit: t("credit"), update: t("update") };

/** @type {Record<string, string>} */
const PHASE_COLORS = { rollout: OBJECTIVES[4], reward: OBJECTIVES[1], credit: OBJECTIVES[3], update: OBJECTIVES[2] };

/**
 * Everything drawn over the iterations. Which charts there are depends on the metrics, so they come with the first row.
 *
 * @param {HTMLElement} samples what stands below the rewards: how the pictures look matters more than how the training goes
 */
export function curveSections(samples) {
  const element = h("div");
  /** @type {{drawn: {element: HTMLElement, update(model: () => any): void, dispose(): void}, model: (data: RunData) => any}[]} */
  let charts = [];
  let layout = "";

  /**
   * @param {Row} all a row with every figure that any has
   * @param {RunData} data
   */
  function build(all, { evaluations, figures }) {
    const rewards = rewardPanels([all], evaluations).map((panel, index) => {
      const color = OBJECTIVES[index % OBJECTIVES.length];
      const drawn = lineChart({ title: panel.name, badge: panel.heldOut ? t("held out") : null });
      return { drawn, model: rewardModel(panel, color) };
    });
    const training = trainingCharts(figures).map(({ title, keys, lines, model }) => {
      const colors = [OBJECTIVES[4], OBJECTIVES[5]];
      const legend = keys.length > 1 ? keys.map((key, index) => ({ label: lines[key], color: colors[index] })) : [];
      return { drawn: lineChart({ title, legend }), model: model ?? trainingModel(keys, lines, colors) };
    });
    const time = secondsCharts(all);
    const steps = creditSteps([all]);
    const credit = !isWeighted(figures, steps) ? null : {
      drawn: stepHeatmap({ title: t("Credit of each step"), steps: steps.length, rowLabel: t("step") }),
      model: (/** @type {RunData} */ { figures }) => ({
        xs: figures.column("iteration"),
        rows: steps.map((step) => ({ step, ys: figures.column(`credit/step/${step}`) })),
        rest: "",
      }),
    };
    charts.forEach(({ drawn }) => drawn.dispose());
    charts = [...rewards, ...(credit ? [credit] : []), ...training, ...time];
    const grid = (/** @type {{drawn: {element: HTMLElement}}[]} */ entries) =>
      h(
        "div.otca-chart-grid",
        {},
        entries.map(({ drawn }) => drawn.element),
      );
    element.replaceChildren(
      rewards.length
        ? section(t("Rewards"), t("Thin: each iteration. Thick: running mean. Dots: evaluation ± standard error."), grid(rewards))
        : "",
      samples,
    );
    if (credit) element.append(h("section.otca-section", {}, credit.drawn.element, h("p.otca-note", {}, t("Mean weight of each trained denoising step; 1 is what uniform weighting would give."))));
    if (training.length) element.append(section(t("Training"), null, grid(training)));
    element.append(...time.map(({ drawn }) => h("section.otca-section", {}, drawn.element)));
  }

  return {
    element,
    /** @param {RunData} data */
    update(data) {
      const { figures } = data;
      if (!figures.length && !data.evaluations.length) {
        layout = "";
        element.replaceChildren(h("p.otca-note", {}, t("No iteration is finished yet. Curves appear with the first one.")), samples);
        return;
      }
      const all = /** @type {Row} */ (Object.fromEntries(figures.names.map((name) => [name, 1])));
      const wanted = JSON.stringify([
        rewardPanels([all], data.evaluations),
        trainingCharts(figures).map(({ keys }) => keys),
        phases([all]),
        timedRewards([all]),
        isWeighted(figures, creditSteps([all])),
      ]);
      if (wanted !== layout) build(all, data);
      layout = wanted;
      for (const { drawn, model } of charts) drawn.update(() => model(data));
    },
    dispose: () => charts.forEach(({ drawn }) => drawn.dispose()),
  };
}

/**
 * Whether the steps ever weighed unlike: of pictures that were there already all count alike.
 *
 * @param {RunData["figures"]} figures
 * @param {number[]} steps
 */
const isWeighted = (figures, steps) => steps.some((step) => figures.column(`credit/step/${step}`).some((weight) => Math.abs(weight - 1) > 1e-6));

/**
 * Where the time goes: the phases, and the rewards if there are several.
 *
 * @param {Row} all
 */
function secondsCharts(all) {
  const rewards = timedRewards([all]);
  const shownName = (/** @type {string} */ prefix, /** @type {string} */ name) => (prefix === "seconds/" ? PHASES[name] : name);
  const colors = rewards.map((_, index) => OBJECTIVES[index % OBJECTIVES.length]);
  return [
    { title: t("Seconds per phase"), prefix: "seconds/", names: phases([all]), colorOf: (/** @type {string} */ name) => PHASE_COLORS[name] },
    {
      title: t("Seconds per reward"),
      prefix: "seconds/reward/",
      names: rewards.length > 1 ? rewards : [],
      colorOf: (/** @type {string} */ name) => colors[rewards.indexOf(name)],
    },
  ]
    .filter(({ names }) => names.length)
    .map(({ title, prefix, names, colorOf }) => ({
      drawn: stackedBars({ title, legend: names.map((name) => ({ label: shownName(prefix, name), color: colorOf(name) })) }),
      model: (/** @type {RunData} */ { figures }) => ({
        xs: figures.column("iteration"),
        parts: names.map((name) => ({ name: shownName(prefix, name), ys: figures.column(prefix + name), color: colorOf(name) })),
        unit: "s",
        rest: "",
      }),
    }));
}

/**
 * What a reward's chart draws: single iterations, their running mean, evaluations.
 *
 * @param {{name: string, key: string}} panel
 * @param {string} color
 */
function rewardModel({ name, key }, color) {
  return (/** @type {RunData} */ { figures, evaluations, changes = [] }) => {
    const ys = figures.column(key);
    const mean = runningMean(ys);
    return {
      xs: figures.column("iteration"),
      lines: [
        { name: "", ys, color, thin: true },
        { name: t("mean"), ys: mean, color },
      ],
      dots: errorBars(evaluations, name),
      marks: changes,
      rest: learned(evaluations, name)?.ends ?? significant(mean.filter(Number.isFinite).at(-1)), // the dots are to be judged by
    };
  };
}

const AGREEMENT = ["iteration", "opinions/agreement", "opinions/agreement_error", "opinions/held_out"];

/** @param {RunData} data */
function agreementModel({ figures }) {
  const columns = AGREEMENT.map((name) => figures.column(name));
  const measured = [...columns[0]].flatMap((iteration, row) => {
    const agreed = agreement(Object.fromEntries(AGREEMENT.map((name, at) => [name, columns[at][row]])));
    return agreed ? [{ iteration, ...agreed }] : [];
  });
  const dots = measured.map(({ iteration, mean, standard_error: error }) => ({ iteration, mean, error: error ?? 0, low: mean - (error ?? 0), high: mean + (error ?? 0) }));
  const last = measured.at(-1);
  return { xs: dots.map(({ iteration }) => iteration), lines: [], dots, rest: last?.words ?? significant(last?.mean) };
}

/**
 * @param {string[]} keys of the metrics
 * @param {Record<string, string>} names of the lines, by key
 * @param {string[]} colors
 */
function trainingModel(keys, names, colors) {
  return (/** @type {RunData} */ { figures }) => {
    const [xs, ...values] = joined(figures.column("iteration"), keys.map((key) => figures.column(key)));
    const means = values.map(runningMean);
    return {
      xs,
      lines: [
        ...values.map((ys, index) => ({ name: names[keys[index]], ys, color: colors[index], thin: true })),
        ...means.map((ys, index) => ({ name: t("{line} mean", { line: names[keys[index]] }).trim(), ys, color: colors[index] })),
      ],
      rest: means.map((mean) => significant(mean.at(-1))).join(" · "),
    };
  };
}
