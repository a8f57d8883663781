// @ts-check
/**
 * The OTCA tab of ComfyUI's sidebar: a list of runs and, below it, the chosen one. All it shows comes from the routes, so
 * closing the tab or reloading the page loses nothing.
 */
import { GrowingFigures } from "../lib/figures.js";
import { t } from "../lib/language.js";
import { beginNewRun } from "../lib/newrun.js";
import { poll } from "../lib/poll.js";
import { mergeRows, shownRun, wentBack } from "../lib/runs.js";
import * as actions from "./actions.js";
import { compareRuns } from "./compare.js";
import { proofDialog } from "./dialogs.js";
import { button, h, once, setText } from "./dom.js";
import { showFailure } from "./failure.js";
import { followRuns } from "./follow.js";
import { deleteRun } from "./keeping.js";
import { machinePart } from "./machine.js";
import { watchRemote } from "./remote.js";
import { runList } from "./runlist.js";
import { runView } from "./runview.js";

const TAB = "otca";
const POLL_MS = 2000;
const QUIET_MS = 10_000; // while no run goes on: a shell may start one
const QUICKSTART = "01 Quickstart - CPU, no download";
const RECENT = 10; // rows that are kept as they came, for the pace

const TEXT = {
  refresh: t("Read the runs again"),
  emptySteps: [
    t("Open the quickstart, or another template: Browse Templates in the menu, ComfyUI-OTCA."),
    t("Press Run: each Run is one iteration of training. Or press Train headless… to train in the background."),
    t("Watch the rewards, and which denoising steps earn the credit, here."),
  ],
  failed: "OTCA",
};

/**
 * Commands, their keys, and where the menu shows them, as fields of the extension. Front ends name their workflow menu "File".
 *
 * @param {Comfy} comfy
 */
export function sidebarCommands(comfy) {
  const guarded = (/** @type {() => unknown} */ action) => once(() => guard(comfy, action));
  return {
    commands: [
      {
        id: "OTCA.NewRun",
        label: "OTCA: New run",
        menubarLabel: "New run (OTCA)",
        icon: "pi pi-plus",
        function: guarded(() => beginNewRun(comfy)),
      },
      {
        id: "OTCA.TrainHeadless",
        label: "OTCA: Train headless…",
        menubarLabel: "Train headless (OTCA)…",
        icon: "pi pi-play",
        function: guarded(() => actions.train(comfy, showRun)),
      },
      {
        id: "OTCA.ExportHeadless",
        label: "OTCA: Export for headless training…",
        menubarLabel: "Export for headless training (OTCA)…",
        icon: "pi pi-upload",
        function: guarded(() => actions.exportHeadless(comfy)),
      },
      {
        id: "OTCA.WatchRemote",
        label: "OTCA: Watch a run that trains elsewhere…",
        menubarLabel: "Watch a run elsewhere (OTCA)…",
        icon: "pi pi-eye",
        function: guarded(() => watchRemote(comfy, (id) => showRun(comfy, id))),
      },
      {
        id: "OTCA.Permissions",
        label: "OTCA: Permissions…",
        menubarLabel: "Permissions (OTCA)…",
        icon: "pi pi-shield",
        function: guarded(() => actions.showPermissions(comfy)),
      },
      {
        id: "OTCA.LoadWorkflowFromLoRA",
        label: "OTCA: Load workflow from a LoRA file…",
        menubarLabel: "Load workflow from a LoRA file (OTCA)…",
        icon: "pi pi-folder-open",
        function: () => guard(comfy, () => actions.loadFromLora(comfy)),
      },
    ],
    // Letters that ComfyUI's own keys leave free, in all front ends that the page is tested with.
    keybindings: [
      { combo: { key: "o" }, commandId: `Workspace.ToggleSidebarTab.${TAB}` },
      { combo: { key: "t", shift: true }, commandId: "OTCA.TrainHeadless" },
      { combo: { key: "n", shift: true }, commandId: "OTCA.NewRun" },
    ],
    menuCommands: [
      {
        path: ["File"],
        commands: [
          "OTCA.NewRun",
          "OTCA.TrainHeadless",
          "OTCA.ExportHeadless",
          "OTCA.WatchRemote",
          "OTCA.Permissions",
          "OTCA.LoadWorkflowFromLoRA",
        ],
      },
    ],
  };
}

/** @type {string | null} */
let chosen = null; // id of the run that the user chose
/** @type {ReturnType<typeof sidebarPanel> | null} */
let panel = null; // the open tab
/** @type {ReturnType<typeof followRuns> | null} */
let follow = null;

/** @param {Comfy} comfy */
export function setupSidebar(comfy) {
  comfy.registerSidebar({
    id: TAB,
    icon: "pi pi-chart-line",
    title: "OTCA",
    tooltip: t("OTCA: training runs"),
    type: "custom",
    /** @param {HTMLElement} container */
    render(container) {
      if (panel && container.contains(panel.element)) return; // called again whenever the page redraws the tab
      panel?.dispose();
      panel = sidebarPanel(comfy);
      container.replaceChildren(panel.element);
      container.classList.add("otca-sidebar-container");
    },
    destroy() {
      panel?.dispose();
      panel = null;
    },
  });
  follow = followRuns(comfy, (id) => showRun(comfy, id));
  follow.begin().catch((/** @type {Error} */ error) => comfy.toast("warn", TEXT.failed, error.message));
  comfy.onNodeResult((kind) => kind === "run" && panel?.refresh());
  comfy.onReconnected(() => panel?.refresh());
}

/** A setting was changed that says what the page follows. */
export function followAgain() {
  follow?.again();
}

/**
 * Runs an action; where it fails, shows the server's message.
 *
 * @param {Comfy} comfy
 * @param {() => unknown} action
 */
async function guard(comfy, action) {
  panel?.showError("");
  try {
    await action();
  } catch (error) {
    comfy.toast("error", TEXT.failed, error.message);
    panel?.showError(error.message);
  }
}

/**
 * The run that the panel shows; `summary` is the entry of the list that `run`, `rows` and the others were read for.
 *
 * @typedef {object} Shown
 * @property {string} id
 * @property {ReturnType<typeof runView>} view
 * @property {Run | null} summary
 * @property {RunDetails | null} run
 * @property {Row[]} rows the last ones
 * @property {GrowingFigures} figures of all rows
 * @property {number} logSize bytes of the log that were read
 */

/** @param {Comfy} comfy */
function sidebarPanel(comfy) {
  const list = runList({
    choose,
    compare: (runs) => guard(comfy, () => compareRuns(comfy, runs)),
  });
  const empty = h(
    "div.otca-empty",
    {},
    h("i.pi.pi-chart-line"),
    h("h3", {}, t("No runs yet")),
    h(
      "ol",
      {},
      TEXT.emptySteps.map((step) => h("li", {}, step)),
    ),
    button("pi-folder-open", t("Open the quickstart"), () => guard(comfy, () => comfy.openTemplate(QUICKSTART))),
  );
  // Two, since the next read that succeeds clears only the second.
  const actionError = h("div.otca-error", { role: "alert" });
  const readError = h("div.otca-error", { role: "alert" });
  const runBox = h("div");
  const queued = (/** @type {string} */ action) => (/** @type {string} */ id) =>
    guard(comfy, async () => {
      await comfy.postJson(`/otca/runs/${encodeURIComponent(id)}/${action}`);
      await Promise.all([machine.refresh(), refresh()]);
    });
  const machine = machinePart(comfy, { choose, moveUp: queued("move_up"), takeOut: queued("stop"), changed: () => refresh() });
  const element = h(
    "div.otca-sidebar",
    {},
    h(
      "div.otca-toolbar",
      {},
      button("pi-play", t("Train headless…"), () => guard(comfy, () => actions.train(comfy, showRun)), { class: "otca-button otca-primary" }),
      button("pi-verified", t("Prove it…"), () => guard(comfy, () => actions.prove(comfy, showRun)), { title: t("Finds out in an hour whether the model learns on this machine, and writes one page about it") }),
      button("pi-upload", t("Export…"), () => guard(comfy, () => actions.exportHeadless(comfy))),
      button("pi-eye", t("Watch…"), () => guard(comfy, () => watchRemote(comfy, choose)), { title: t("Shows a run that trains on another machine") }),
      button("pi-plus", t("New run"), () => guard(comfy, () => beginNewRun(comfy)), { title: t("Gives the run on the canvas the next free name: it begins with a fresh adapter") }),
      h(
        "button.otca-icon-button",
        { type: "button", title: TEXT.refresh, "aria-label": TEXT.refresh, onclick: () => guard(comfy, refresh) },
        h("i.pi.pi-refresh"),
      ),
    ),
    machine.memory,
    actionError,
    readError,
    empty,
    list.element,
    machine.queue,
    runBox,
  );
  empty.hidden = true;

  /** @type {Shown | null} */
  let shown = null;
  /** @type {Run[]} */
  let runs = []; // as they were last read
  let disposed = false;
  const isSeen = () => document.visibilityState === "visible";
  const failed = (/** @type {Error} */ error) => setText(readError, error.message);
  const { refresh, end } = poll(read, { every: POLL_MS, quiet: QUIET_MS, isSeen, failed });

  /** @param {string} id */
  function choose(id) {
    chosen = id;
    showError("");
    showList();
    if (shown?.id !== id && runs.some((run) => run.id === id)) open(id); // no button acts on the run before while this one is read
    refresh();
  }

  /** @param {string} message */
  function showError(message) {
    setText(actionError, message);
  }

  function showList() {
    list.update(runs, shownRun(runs, chosen));
  }

  async function read() {
    const answer = await comfy.getJson("/otca/runs");
    if (disposed) return false;
    runs = answer.runs;
    const summary = shownRun(runs, chosen);
    follow?.follow(summary?.id);
    follow?.see(runs);
    // List and run change in one frame: a page of this size is styled and laid out anew for each. Only the first time that a run is
    // read the list does not wait for it.
    if (shown?.id !== summary?.id) showRuns();
    try {
      await readRun(summary);
    } finally {
      if (!disposed) showRuns();
    }
    if (shown) await readLog(shown);
    setText(readError, "");
    // What trains elsewhere may begin again there without a word to this page.
    return runs.some(({ status, place, proof }) => status === "running" || (status === "finished" && proof && !proof.page) || (place === "remote" && status !== "finished"));
  }

  /** The list as it was read, or what to do where there is no run. */
  function showRuns() {
    empty.hidden = runs.length > 0;
    list.element.hidden = runs.length === 0;
    showList();
  }

  /** @param {Run | undefined} summary */
  async function readRun(summary) {
    if (!summary) return closeRun();
    const current = shown?.id === summary.id ? shown : open(summary.id);
    if (current.summary && wentBack(current.rows, current.summary, summary)) {
      Object.assign(current, { rows: [], figures: new GrowingFigures(), logSize: 0 });
      current.view.clearLog();
    }
    const before = current.summary;
    if (before?.updated !== summary.updated || before?.status !== summary.status || before?.proof?.page !== summary.proof?.page) {
      const route = `/otca/runs/${encodeURIComponent(summary.id)}`;
      const after = current.rows.at(-1)?.iteration ?? 0;
      const [run, metrics] = await Promise.all([
        comfy.getJson(route),
        comfy.getMetrics(summary.id, after),
      ]);
      if (shown !== current || disposed) return;
      // Not the run, which was read later and may be newer than the rows: then the next summary shall differ from this one.
      current.summary = summary;
      current.run = run;
      current.figures.append(metrics.rows);
      current.rows = mergeRows(current.rows, metrics.rows).slice(-RECENT);
      const { rows, figures } = current;
      current.view.update({ run, rows, figures, evaluations: metrics.evaluations, changes: metrics.changes });
    }
  }

  /** @param {Shown} current */
  async function readLog(current) {
    const { id, view, logSize } = current;
    if (!view.logIsOpen()) return;
    const { text, size } = await comfy.getJson(`/otca/runs/${encodeURIComponent(id)}/log?after=${logSize}`);
    if (shown !== current) return;
    view.appendLog(text);
    current.logSize = size;
  }

  /**
   * @param {string} id
   * @returns {Shown}
   */
  function openRun(id) {
    const act = (/** @type {(run: RunDetails) => unknown} */ action) => () =>
      guard(comfy, async () => {
        if (shown?.run) await action(shown.run);
        await refresh();
      });
    const view = runView(comfy, {
      stop: act((run) => actions.stop(comfy, run)),
      resume: act((run) => actions.resume(comfy, run, showRun)),
      canvas: act((run) => actions.continueOnCanvas(comfy, run)),
      lora: act((run) => actions.loadLora(comfy, run)),
      workflow: act((run) => actions.openWorkflow(comfy, run)),
      proof: act((run) => proofDialog(comfy, run.id)),
      failure: act((run) => showFailure(comfy, run)),
      remove: act((run) => deleteRun(comfy, run, refresh)),
      noted() {
        showError("");
        refresh();
      },
      failed: (error) => showError(error.message),
    });
    view.onLogOpen(refresh);
    runBox.replaceChildren(view.element);
    return { id, view, summary: null, run: null, rows: [], figures: new GrowingFigures(), logSize: 0 };
  }

  /** @param {string} id */
  function open(id) {
    closeRun();
    return (shown = openRun(id));
  }

  function closeRun() {
    shown?.view.dispose();
    shown = null;
    runBox.replaceChildren();
  }

  refresh();
  return {
    element,
    refresh,
    showError,
    choose,
    dispose() {
      disposed = true;
      end();
      machine.dispose();
      closeRun();
    },
  };
}

/**
 * Chooses a run, and opens the tab if it is closed.
 *
 * @param {Comfy} comfy
 * @param {string} id
 */
function showRun(comfy, id) {
  chosen = id;
  if (panel) panel.choose(id);
  else comfy.openSidebar(TAB);
}
