// @ts-check
/** What the routes say of runs, in the words and series that the sidebar shows. */
import { t } from "./language.js";

/** Every status: its word, its PrimeIcon and the CSS class of its colour. */
export const STATUS = {
  queued: { word: t("queued"), icon: "pi-hourglass", tone: "running" }, // until another training ends
  running: { word: t("running"), icon: "pi-play-circle", tone: "running" }, // still: with what moves, every frame would style the page anew
  idle: { word: t("idle"), icon: "pi-clock", tone: "running" }, // on the canvas, until the next prompt is queued
  finished: { word: t("finished"), icon: "pi-check-circle", tone: "good" },
  stopped: { word: t("stopped"), icon: "pi-pause-circle", tone: "paused" },
  interrupted: { word: t("interrupted"), icon: "pi-exclamation-circle", tone: "paused" },
  failed: { word: t("failed"), icon: "pi-times-circle", tone: "bad" },
};

export const PLACE = { headless: t("headless"), canvas: t("canvas"), remote: t("elsewhere") };

/**
 * Which buttons a run offers. A run that ended can be resumed if a checkpoint was saved, or if it never left the queue; an idle
 * one continues with the next prompt that is queued.
 *
 * @param {Run} run
 * @returns {Record<string, boolean>}
 */
export function offeredActions(run) {
  const waits = run.status === "queued";
  const ended = !waits && run.status !== "running" && run.status !== "idle";
  return {
    stop: run.status === "running" || waits,
    proof: Boolean(run.proof?.page),
    resume: ended && !(run.proof && run.status === "finished") && run.place !== "remote" && (run.has_checkpoint || (run.status === "stopped" && run.iteration === 0)),
    canvas: run.status !== "running" && !waits && run.has_checkpoint,
    lora: run.has_lora,
    workflow: true,
  };
}

/**
 * Part of the training that is done, 0 … 1; a run of unknown length has no total, and a proof ends by the clock.
 *
 * @param {Run} run
 */
export function progress({ iteration, total, proof, started, updated, status }) {
  if (proof) return status === "finished" ? 1 : Math.min(1, (updated - (started ?? updated)) / (3600 * proof.hours));
  return total ? Math.min(1, iteration / total) : 0;
}

/**
 * Seconds as a person would say them.
 *
 * @param {number} seconds
 */
export function formatDuration(seconds) {
  if (seconds < 1) return t("less than a second");
  if (seconds < 90) return t("{seconds} s", { seconds: Math.round(seconds) });
  if (seconds < 90 * 60) return t("{minutes} min", { minutes: Math.round(seconds / 60) });
  if (seconds < 36 * 3600) return t("{hours} h", { hours: (seconds / 3600).toFixed(1) });
  return t("{days} days", { days: (seconds / 86400).toFixed(1) });
}

/**
 * Seconds to the end at the pace of the last ten iterations, or null where nothing is known.
 *
 * @param {Run} run
 * @param {Row[]} rows
 */
export function secondsLeft({ iteration, total, proof, started, updated }, rows) {
  if (proof) return Math.max(0, 3600 * proof.hours - (updated - (started ?? updated)));
  const recent = series(rows.slice(-10), "seconds/iteration").filter(Number.isFinite);
  if (!recent.length || !total || total <= iteration) return null;
  return (recent.reduce((sum, value) => sum + value, 0) / recent.length) * (total - iteration);
}

/**
 * `name`, or the first of name-2, name-3 … that is not taken.
 *
 * @param {string} name
 * @param {string[]} taken
 */
export function uniqueName(name, taken) {
  const used = new Set(taken);
  if (!used.has(name)) return name;
  const [, stem, number] = name.match(/^(.*?)(?:-(\d+))?$/) ?? ["", name];
  let next = number ? Number(number) + 1 : 2;
  while (used.has(`${stem}-${next}`)) next += 1;
  return `${stem}-${next}`;
}

/**
 * Rows that were read before and new ones in order of iteration; a row that was read again replaces the old one.
 *
 * @param {Row[]} before
 * @param {Row[]} read
 */
export function mergeRows(before, read) {
  if (!read.length) return before;
  if (!before.length || read[0].iteration > before[before.length - 1].iteration) return before.concat(read);
  const rows = new Map(before.concat(read).map((row) => [row.iteration, row]));
  return [...rows.values()].sort((a, b) => a.iteration - b.iteration);
}

/**
 * The run that is shown: the chosen one; until the user has chosen one that is there, the newest of those in training, or the one that
 * was trained last, such as a run on the canvas between two prompts.
 *
 * @param {Run[]} runs the newest first
 * @param {string | null} chosen
 * @returns {Run | undefined}
 */
export function shownRun(runs, chosen) {
  const found = runs.find(({ id }) => id === chosen) ?? runs.find(({ status }) => status === "running");
  return found ?? runs.toSorted((a, b) => b.updated - a.updated)[0];
}

/**
 * Whether a resumed run went back to its last checkpoint: rows beyond what it has now no longer count.
 *
 * @param {Row[]} rows
 * @param {Run} before
 * @param {Run} now
 */
export function wentBack(rows, before, now) {
  const restarted = before.started !== now.started || before.rewrites !== now.rewrites;
  return restarted || (rows.length > 0 && rows[rows.length - 1].iteration > now.iteration);
}

/**
 * The values of one metric, one a row, null where a row lacks it.
 *
 * @param {Row[]} rows
 * @param {string} key
 * @returns {any[]} numbers or null
 */
export function series(rows, key) {
  return rows.map((row) => row[key] ?? null);
}

/**
 * Names between a prefix and a suffix, in order of first appearance, in any row.
 *
 * @param {Row[]} rows
 * @param {string} prefix
 */
export function metricNames(rows, prefix, suffix = "") {
  const names = new Set();
  for (const row of rows) {
    for (const key of Object.keys(row)) {
      if (key.startsWith(prefix) && key.endsWith(suffix))
        names.add(key.slice(prefix.length, key.length - suffix.length));
    }
  }
  return [...names];
}

/**
 * The rewards of a run, trained ones first.
 *
 * @param {Row[]} rows
 * @param {Evaluation[]} evaluations
 * @returns {{name: string, heldOut: boolean, key: string}[]}
 */
export function rewardPanels(rows, evaluations) {
  const panels = new Map();
  const add = (/** @type {string} */ name, /** @type {boolean} */ heldOut) =>
    panels.has(name) || panels.set(name, { name, heldOut, key: `${heldOut ? "held_out" : "reward"}/${name}/mean` });
  // The first row names them all; looking through ten thousand rows would only find the same.
  const sample = [...rows.slice(0, 1), ...rows.slice(-1)];
  metricNames(sample, "reward/", "/mean").forEach((name) => add(name, false));
  metricNames(sample, "held_out/", "/mean").forEach((name) => add(name, true));
  for (const [name, figures] of Object.entries(evaluations[0]?.rewards ?? {})) add(name, figures.held_out);
  return [...panels.values()];
}

/**
 * Phases of an iteration in the order in which they happen, as far as the run timed them.
 *
 * @param {Row[]} rows
 */
export function phases(rows) {
  return ["rollout", "reward", "credit", "update"].filter((phase) => rows.some((row) => `seconds/${phase}` in row));
}

/**
 * Rewards whose seconds were recorded, in the order of the stack.
 *
 * @param {Row[]} rows
 */
export function timedRewards(rows) {
  return metricNames([...rows.slice(0, 1), ...rows.slice(-1)], "seconds/reward/");
}

/**
 * Numbers of the trained steps whose credit was recorded, in any row since a window moves, ascending.
 *
 * @param {Row[]} rows
 */
export function creditSteps(rows) {
  return metricNames(rows, "credit/step/")
    .map(Number)
    .sort((a, b) => a - b);
}

/**
 * "000120.png" → 120.
 *
 * @param {string} file
 */
export function sampleIteration(file) {
  return Number.parseInt(file, 10);
}

/**
 * The run_name of an exported graph's Training Run node, unless it is linked or missing.
 *
 * @param {Prompt} prompt
 */
export function runNameOf(prompt) {
  const name = Object.values(prompt).find((node) => node.class_type === "OTCA_TrainingRun")?.inputs.run_name;
  return typeof name === "string" ? name : "otca";
}

/**
 * The length of training that an exported graph asks for.
 *
 * @param {Prompt} prompt
 */
export function iterationsOf(prompt) {
  const count = Object.values(prompt).find((node) => node.class_type === "OTCA_TrainingRun")?.inputs.iterations;
  return Number.isInteger(count) ? count : 300;
}
