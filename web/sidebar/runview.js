/**
 * One run, all of it: state and buttons, curves, credit, pictures, log. Built once a run is chosen, then updated by what
 * the routes say.
 */
import { OBJECTIVES } from "../lib/color.js";
import { errorBars, runningMean } from "../lib/curves.js";
import { significant } from "../lib/format.js";
import {
  PLACE,
  STATUS,
  creditSteps,
  formatDuration,
  offeredActions,
  phases,
  progress,
  rewardPanels,
  sampleIteration,
  secondsLeft,
  series,
  timedRewards,
} from "../lib/runs.js";
import { lineChart, stackedBars, stepHeatmap } from "./charts.js";
import { pictureDialog } from "./dialogs.js";
import { button, h, setText } from "./dom.js";

const TEXT = {
  stop: "Stop",
  resume: "Resume",
  goOn: "Train on…",
  canvas: "Resume on canvas",
  lora: "Load the LoRA",
  workflow: "Open workflow",
  progress: ({ iteration, total }) => (total ? `iteration ${iteration} of ${total}` : `iteration ${iteration}`),
  each: (seconds) => `${significant(seconds, 2)} s each`,
  left: (seconds) => `about ${formatDuration(seconds)} left`,
  noRows: "No iteration is finished yet. Curves appear with the first one.",
  rewards: "Rewards",
  rewardsNote: "Thin: each iteration. Thick: running mean. Dots: evaluation ± standard error.",
  heldOut: "held out",
  training: "Training",
  time: "Seconds per phase",
  rewardTime: "Seconds per reward",
  credit: "Credit of each step",
  creditNote: "Mean weight of each trained denoising step; 1 is what uniform weighting would give.",
  step: "step",
  samples: "Samples",
  changes: "Changed while it trained",
  change: ({ iteration, lines }) => `from iteration ${iteration} on: ${lines.join("; ")}`,
  samplesAt: (iteration) => (iteration === 0 ? "before training" : `iteration ${iteration}`),
  slider: "Iteration of the pictures",
  beforeAfter: "Before and after",
  beforeAfterTitle: "The evaluation's pictures before training and now, one above the other",
  enlarge: (caption) => `Samples, ${caption}: enlarge`,
  noSamples: "Pictures appear with the first evaluation.",
  log: "Log of the trainer",
  emptyLog: "The log is empty.",
};

/** Small charts beside the rewards': title and the metrics that it draws. Of a KL that never was anything but zero there is none. */
const TRAINING_CHARTS = [
  { title: "Clip fraction", lines: { "clip/high": "above", "clip/low": "below" } },
  { title: "Gradient norm", lines: { gradient_norm: "" } },
  { title: "Zero fraction of z", lines: { "z/zero_fraction": "" } },
  { title: "KL to the untrained model", lines: { "kl/reference": "" }, ifAny: true },
  { title: "KL to the sampling policy", lines: { "kl/approx": "" }, ifAny: true },
];

function trainingCharts(rows) {
  return TRAINING_CHARTS.map((chart) => {
    const recorded = (key) => rows.some((row) => (chart.ifAny ? row[key] : key in row));
    return { ...chart, keys: Object.keys(chart.lines).filter(recorded) };
  }).filter(({ keys }) => keys.length);
}

const PHASE_COLORS = { rollout: OBJECTIVES[4], reward: OBJECTIVES[1], credit: OBJECTIVES[3], update: OBJECTIVES[2] };

const LONGEST_LOG = 200_000; // characters that stay in the page

/**
 * @param actions {stop, resume, canvas, lora, workflow}: what the buttons call
 * @returns {element, update({run, rows, evaluations}), appendLog(text), logIsOpen(), dispose()}
 */
export function runView(comfy, actions) {
  const head = runHead(actions);
  const curves = curveSections();
  const changes = changesSection();
  const samples = samplesSection(comfy);
  const log = logSection();
  return {
    element: h("div.otca-run", {}, head.element, curves.element, changes.element, samples.element, log.element),
    update(data) {
      head.update(data);
      curves.update(data);
      changes.update(data.changes);
      samples.update(data.run);
    },
    appendLog: log.append,
    clearLog: log.clear,
    onLogOpen: log.onOpen,
    logIsOpen: log.isOpen,
    dispose: curves.dispose,
  };
}

/** A run's state as icon, word and colour: {element, update(run)}. */
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

/** {element, update(run)} */
export function progressBar() {
  const done = h("div.otca-progress-done");
  const element = h("div.otca-progress", { role: "progressbar", "aria-valuemin": 0 }, done);
  return {
    element,
    update(run) {
      element.setAttribute("aria-valuemax", run.total ?? run.iteration);
      element.setAttribute("aria-valuenow", run.iteration);
      element.setAttribute("aria-label", TEXT.progress(run));
      done.style.width = `${100 * progress(run)}%`;
    },
  };
}

function runHead(actions) {
  const name = h("h2.otca-run-name");
  const badge = statusBadge();
  const runPlace = h("span");
  const bar = progressBar();
  const state = h("div.otca-run-state", {}, badge.element, runPlace, bar.element);
  const pace = h("div.otca-quiet");
  const error = h("div.otca-error", { role: "alert" });
  const warning = h("div.otca-warning", { role: "status" });
  const buttons = {
    stop: button("pi-stop-circle", TEXT.stop, () => actions.stop()),
    resume: button("pi-play", TEXT.resume, () => actions.resume()),
    canvas: button("pi-pencil", TEXT.canvas, () => actions.canvas()),
    lora: button("pi-bolt", TEXT.lora, () => actions.lora()),
    workflow: button("pi-folder-open", TEXT.workflow, () => actions.workflow()),
  };
  for (const element of [state, ...Object.values(buttons)]) element.hidden = true; // until the run is known
  return {
    element: h(
      "header.otca-run-head",
      {},
      [name, state, pace, error, warning],
      h("div.otca-buttons", {}, Object.values(buttons)),
    ),
    update({ run, rows }) {
      setText(name, run.id);
      badge.update(run);
      setText(runPlace, PLACE[run.place]);
      bar.update(run);
      state.hidden = false;
      // On the canvas, how long it takes is up to whoever queues.
      const left = run.status === "running" && run.place === "headless" ? secondsLeft(run, rows) : null;
      const each = rows.at(-1)?.["seconds/iteration"];
      setText(pace, [TEXT.progress(run), each && TEXT.each(each), left && TEXT.left(left)].filter(Boolean).join(" · "));
      setText(error, run.error ?? "");
      setText(warning, run.warning ?? "");
      const offered = offeredActions(run);
      for (const [action, element] of Object.entries(buttons)) element.hidden = !offered[action];
      setText(buttons.resume.lastChild, run.status === "finished" ? TEXT.goOn : TEXT.resume);
    },
  };
}

/** Everything drawn over the iterations. Which charts there are depends on the metrics, so they come with the first row. */
function curveSections() {
  const element = h("div");
  let charts = [];
  let layout = "";

  function build({ rows, evaluations }) {
    const rewards = rewardPanels(rows, evaluations).map((panel, index) => {
      const color = OBJECTIVES[index % OBJECTIVES.length];
      const drawn = lineChart({ title: panel.name, badge: panel.heldOut ? TEXT.heldOut : null });
      return { drawn, model: rewardModel(panel, color) };
    });
    const training = trainingCharts(rows).map(({ title, keys, lines }) => {
      const colors = [OBJECTIVES[4], OBJECTIVES[5]];
      const legend = keys.length > 1 ? keys.map((key, index) => ({ label: lines[key], color: colors[index] })) : [];
      return { drawn: lineChart({ title, legend }), model: trainingModel(keys, lines, colors) };
    });
    const time = secondsCharts(rows);
    const steps = creditSteps(rows);
    const credit = steps.length > 0 && {
      drawn: stepHeatmap({ title: TEXT.credit, steps: steps.length, rowLabel: TEXT.step }),
      model: (data) => ({
        xs: series(data.rows, "iteration"),
        rows: steps.map((step) => ({ step, ys: series(data.rows, `credit/step/${step}`) })),
        rest: "",
      }),
    };
    charts.forEach(({ drawn }) => drawn.dispose());
    charts = [...rewards, credit, ...training, ...time].filter(Boolean);
    const grid = (entries) =>
      h(
        "div.otca-chart-grid",
        {},
        entries.map(({ drawn }) => drawn.element),
      );
    element.replaceChildren(
      ...[
        section(TEXT.rewards, TEXT.rewardsNote, grid(rewards)),
        credit && h("section.otca-section", {}, credit.drawn.element, h("p.otca-note", {}, TEXT.creditNote)),
        training.length > 0 && section(TEXT.training, null, grid(training)),
        ...time.map(({ drawn }) => h("section.otca-section", {}, drawn.element)),
      ].filter(Boolean),
    );
  }

  return {
    element,
    update(data) {
      if (!data.rows.length && !data.evaluations.length) {
        layout = "";
        element.replaceChildren(h("p.otca-note", {}, TEXT.noRows));
        return;
      }
      const wanted = JSON.stringify([
        rewardPanels(data.rows, data.evaluations),
        trainingCharts(data.rows).map(({ keys }) => keys),
        phases(data.rows),
        timedRewards(data.rows),
        creditSteps(data.rows),
      ]);
      if (wanted !== layout) build(data);
      layout = wanted;
      for (const { drawn, model } of charts) drawn.update(model(data));
    },
    dispose: () => charts.forEach(({ drawn }) => drawn.dispose()),
  };
}

/** Where the time goes: the phases, and the rewards if there are several. */
function secondsCharts(rows) {
  const rewards = timedRewards(rows);
  const colors = rewards.map((_, index) => OBJECTIVES[index % OBJECTIVES.length]);
  return [
    { title: TEXT.time, prefix: "seconds/", names: phases(rows), colorOf: (name) => PHASE_COLORS[name] },
    {
      title: TEXT.rewardTime,
      prefix: "seconds/reward/",
      names: rewards.length > 1 ? rewards : [],
      colorOf: (name) => colors[rewards.indexOf(name)],
    },
  ]
    .filter(({ names }) => names.length)
    .map(({ title, prefix, names, colorOf }) => ({
      drawn: stackedBars({ title, legend: names.map((name) => ({ label: name, color: colorOf(name) })) }),
      model: (data) => ({
        xs: series(data.rows, "iteration"),
        parts: names.map((name) => ({ name, ys: series(data.rows, prefix + name), color: colorOf(name) })),
        unit: "s",
        rest: "",
      }),
    }));
}

/** What a reward's chart draws: single iterations, their running mean, evaluations. */
export function rewardModel({ name, key }, color) {
  return ({ rows, evaluations, changes = [] }) => {
    const ys = series(rows, key);
    const mean = runningMean(ys);
    return {
      xs: series(rows, "iteration"),
      lines: [
        { name: "", ys, color, thin: true },
        { name: "mean", ys: mean, color },
      ],
      dots: errorBars(evaluations, name),
      marks: changes,
      rest: significant(mean.at(-1)),
    };
  };
}

function trainingModel(keys, names, colors) {
  return ({ rows }) => {
    const values = keys.map((key) => series(rows, key));
    const means = values.map(runningMean);
    return {
      xs: series(rows, "iteration"),
      lines: [
        ...values.map((ys, index) => ({ name: names[keys[index]], ys, color: colors[index], thin: true })),
        ...means.map((ys, index) => ({ name: `${names[keys[index]]} mean`.trim(), ys, color: colors[index] })),
      ],
      rest: means.map((mean) => significant(mean.at(-1))).join(" · "),
    };
  };
}

function section(title, note, ...content) {
  return h("section.otca-section", {}, h("h3.otca-heading", {}, title), content, note && h("p.otca-note", {}, note));
}

/** Values that were changed while the run trained; nothing where there were none. */
function changesSection() {
  const list = h("ul.otca-changes");
  const element = section(TEXT.changes, null, list);
  element.hidden = true;
  return {
    element,
    update(changes = []) {
      element.hidden = changes.length === 0;
      list.replaceChildren(...changes.map((change) => h("li", {}, TEXT.change(change))));
    },
  };
}

/** The evaluation's grids, one an evaluation, chosen by a slider. */
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
    "aria-label": TEXT.slider,
    oninput: () => show(),
  });
  const beforeAfter = button(
    "pi-images",
    TEXT.beforeAfter,
    () => pictureDialog(pictureUrl("samples.png"), TEXT.beforeAfter),
    {
      title: TEXT.beforeAfterTitle,
    },
  );
  const empty = h("p.otca-note", {}, TEXT.noSamples);
  const content = h("div", {}, h("div.otca-row", {}, slider, caption), enlarge);
  let run = null;
  let followsLatest = true;

  // The trainer draws samples.png anew under its old name.
  const pictureUrl = (name) =>
    comfy.routeUrl(`/otca/runs/${encodeURIComponent(run.id)}/pictures/${name}?at=${run.updated}`);

  function show() {
    const file = run.samples[Number(slider.value)];
    followsLatest = Number(slider.value) === run.samples.length - 1;
    const text = TEXT.samplesAt(sampleIteration(file));
    const source = comfy.routeUrl(`/otca/runs/${encodeURIComponent(run.id)}/pictures/samples-${file}`);
    setText(caption, text);
    slider.setAttribute("aria-valuetext", text);
    enlarge.setAttribute("aria-label", TEXT.enlarge(text));
    if (image.getAttribute("src") !== source) image.setAttribute("src", source);
  }

  return {
    element: section(TEXT.samples, null, empty, content, h("div.otca-buttons", {}, beforeAfter)),
    update(next) {
      run = next;
      empty.hidden = run.samples.length > 0;
      content.hidden = run.samples.length === 0;
      beforeAfter.hidden = !run.pictures.includes("samples.png");
      if (!run.samples.length) return;
      slider.max = run.samples.length - 1;
      if (followsLatest) slider.value = slider.max;
      show();
    },
  };
}

/** The log's tail. It stays at its end unless the user scrolled up to read. */
function logSection() {
  const text = h("pre.otca-log", { tabindex: "0" }, TEXT.emptyLog);
  const details = h("details.otca-section", {}, h("summary.otca-heading", {}, TEXT.log), text);
  let content = "";
  return {
    element: details,
    isOpen: () => details.open,
    onOpen: (callback) => details.addEventListener("toggle", () => details.open && callback()),
    clear() {
      content = "";
      setText(text, TEXT.emptyLog);
    },
    append(more) {
      if (!more) return;
      const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 8;
      content = (content + more).slice(-LONGEST_LOG);
      setText(text, content);
      if (atEnd) text.scrollTop = text.scrollHeight;
    },
  };
}
