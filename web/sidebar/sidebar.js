/**
 * The OTCA tab of ComfyUI's sidebar: a list of runs and, below it, the chosen one. All it shows comes from the routes, so
 * closing the tab or reloading the page loses nothing.
 */
import { beginNewRun, resumeOnCanvas } from "../lib/newrun.js";
import { poll } from "../lib/poll.js";
import { PLACE, mergeRows, shownRun, wentBack } from "../lib/runs.js";
import { readWorkflow } from "../lib/safetensors.js";
import { exportDialog, permissionsDialog, resumeDialog, trainDialog } from "./dialogs.js";
import { button, h, keyedChildren, setText } from "./dom.js";
import { progressBar, runView, statusBadge } from "./runview.js";

const TAB = "otca";
const POLL_MS = 2000;

const TEXT = {
  title: "OTCA",
  tooltip: "OTCA: training runs",
  train: "Train headless…",
  export: "Export…",
  newRun: "New run",
  newRunTitle: "Gives the run on the canvas the next free name: it begins with a fresh adapter",
  refresh: "Read the runs again",
  runs: "Runs",
  iterations: ({ iteration, total }) => (total ? `${iteration} / ${total}` : String(iteration)),
  emptyTitle: "No runs yet",
  emptySteps: [
    "Open the OTCA quickstart: Browse Templates in the menu, ComfyUI-OTCA.",
    "Queue it: each queued prompt is one iteration of training. Or press Train headless… to train in the background.",
    "Watch the rewards, and which denoising steps earn the credit, here.",
  ],
  failed: "OTCA",
  started: (id) => `${id} is training`,
  stopping: "Stopping",
  stoppingDetail: "The run ends after its current step and saves.",
  stoppingPrompt: "The prompt that runs ends after its current step. Those still queued follow.",
  loraLoaded: "LoRA loaded",
  loraIn: (name, title) => `${name} is chosen in ${title}.`,
  loraAdded: (name) => `A LoraLoader with ${name} was added. Connect its model.`,
  opened: (id) => `Workflow of ${id} opened`,
};

/** Commands and where the menu shows them, as fields of the extension. Front ends name their workflow menu "File". */
export function sidebarCommands(comfy) {
  const guarded = (action) => () => guard(comfy, action);
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
        function: guarded(() => train(comfy)),
      },
      {
        id: "OTCA.ExportHeadless",
        label: "OTCA: Export for headless training…",
        menubarLabel: "Export for headless training (OTCA)…",
        icon: "pi pi-upload",
        function: guarded(() => exportHeadless(comfy)),
      },
      {
        id: "OTCA.Permissions",
        label: "OTCA: Permissions…",
        menubarLabel: "Permissions (OTCA)…",
        icon: "pi pi-shield",
        function: guarded(() => showPermissions(comfy)),
      },
      {
        id: "OTCA.LoadWorkflowFromLoRA",
        label: "OTCA: Load workflow from a LoRA file…",
        menubarLabel: "Load workflow from a LoRA file (OTCA)…",
        icon: "pi pi-folder-open",
        function: guarded(() => loadFromLora(comfy)),
      },
    ],
    menuCommands: [
      {
        path: ["File"],
        commands: [
          "OTCA.NewRun",
          "OTCA.TrainHeadless",
          "OTCA.ExportHeadless",
          "OTCA.Permissions",
          "OTCA.LoadWorkflowFromLoRA",
        ],
      },
    ],
  };
}

let chosen = null; // the run that the user chose
let panel = null; // the open tab

export function setupSidebar(comfy) {
  comfy.registerSidebar({
    id: TAB,
    icon: "pi pi-chart-line",
    title: TEXT.title,
    tooltip: TEXT.tooltip,
    type: "custom",
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
  comfy.onNodeResult((kind) => kind === "run" && panel?.refresh());
  comfy.onReconnected(() => panel?.refresh());
}

/** Runs an action; what goes wrong is shown with the server's message. */
async function guard(comfy, action) {
  panel?.showError("");
  try {
    await action();
  } catch (error) {
    comfy.toast("error", TEXT.failed, error.message);
    panel?.showError(error.message);
  }
}

function sidebarPanel(comfy) {
  const list = h("ul.otca-runs", { "aria-label": TEXT.runs });
  const empty = h(
    "div.otca-empty",
    {},
    h("i.pi.pi-chart-line"),
    h("h3", {}, TEXT.emptyTitle),
    h(
      "ol",
      {},
      TEXT.emptySteps.map((step) => h("li", {}, step)),
    ),
  );
  // Apart, since the next read that succeeds ends only the latter.
  const actionError = h("div.otca-error", { role: "alert" });
  const readError = h("div.otca-error", { role: "alert" });
  const place = h("div");
  const element = h(
    "div.otca-sidebar",
    {},
    h(
      "div.otca-toolbar",
      {},
      button("pi-play", TEXT.train, () => guard(comfy, () => train(comfy)), { class: "otca-button otca-primary" }),
      button("pi-upload", TEXT.export, () => guard(comfy, () => exportHeadless(comfy))),
      button("pi-plus", TEXT.newRun, () => guard(comfy, () => beginNewRun(comfy)), { title: TEXT.newRunTitle }),
      h(
        "button.otca-icon-button",
        { type: "button", title: TEXT.refresh, "aria-label": TEXT.refresh, onclick: () => guard(comfy, refresh) },
        h("i.pi.pi-refresh"),
      ),
    ),
    actionError,
    readError,
    empty,
    list,
    place,
  );
  empty.hidden = true;

  let shown = null; // {id, view, summary, run, rows, evaluations, logSize}
  let known = []; // the runs as they were last read
  let disposed = false;
  const isSeen = () => document.visibilityState === "visible";
  const failed = (error) => setText(readError, error.message);
  const { refresh, end } = poll(read, { every: POLL_MS, isSeen, failed });
  const updateEntries = keyedChildren(
    list,
    ({ run }) => run.id,
    () => runEntry(choose),
  );

  function choose(id) {
    chosen = id;
    showError("");
    showList();
    refresh();
  }

  function showError(message) {
    setText(actionError, message);
  }

  function showList() {
    const current = shownRun(known, chosen);
    updateEntries(known.map((run) => ({ run, current: run === current })));
  }

  async function read() {
    const { runs } = await comfy.getJson("/otca/runs");
    if (disposed) return false;
    known = runs;
    empty.hidden = runs.length > 0;
    list.hidden = runs.length === 0;
    showList();
    await readRun(shownRun(runs, chosen));
    setText(readError, "");
    return runs.some((run) => run.status === "running");
  }

  async function readRun(summary) {
    if (shown && shown.id !== summary?.id) closeRun();
    if (!summary) return;
    if (!shown) openRun(summary.id);
    if (shown.summary && wentBack(shown.rows, shown.summary, summary)) {
      Object.assign(shown, { rows: [], logSize: 0 });
      shown.view.clearLog();
    }
    if (shown.summary?.updated !== summary.updated || shown.summary?.status !== summary.status) {
      const route = `/otca/runs/${encodeURIComponent(summary.id)}`;
      const after = shown.rows.at(-1)?.iteration ?? 0;
      const [run, metrics] = await Promise.all([
        comfy.getJson(route),
        comfy.getMetrics(summary.id, after),
      ]);
      if (shown?.id !== run.id || disposed) return;
      // The summary: what was read after it may be newer than the rows, and the next one shall show that.
      Object.assign(shown, { summary, run });
      shown.rows = mergeRows(shown.rows, metrics.rows);
      Object.assign(shown, { evaluations: metrics.evaluations, changes: metrics.changes });
      shown.view.update(shown);
    }
    await readLog();
  }

  async function readLog() {
    const { id, view, logSize } = shown;
    if (!view.logIsOpen()) return;
    const { text, size } = await comfy.getJson(`/otca/runs/${encodeURIComponent(id)}/log?after=${logSize}`);
    if (shown?.id !== id) return;
    view.appendLog(text);
    shown.logSize = size;
  }

  function openRun(id) {
    const act = (action) => () =>
      guard(comfy, async () => {
        await action(shown.run);
        await refresh();
      });
    const view = runView(comfy, {
      stop: act((run) => stop(comfy, run)),
      resume: act((run) => resume(comfy, run)),
      canvas: act((run) => goOnOnCanvas(comfy, run)),
      lora: act((run) => loadLora(comfy, run)),
      workflow: act((run) => openWorkflow(comfy, run)),
    });
    view.onLogOpen(refresh);
    shown = { id, view, summary: null, run: null, rows: [], evaluations: [], changes: [], logSize: 0 };
    place.replaceChildren(view.element);
  }

  function closeRun() {
    shown?.view.dispose();
    shown = null;
    place.replaceChildren();
  }

  document.addEventListener("visibilitychange", refresh);
  refresh();
  return {
    element,
    refresh,
    showError,
    choose,
    dispose() {
      disposed = true;
      end();
      document.removeEventListener("visibilitychange", refresh);
      closeRun();
    },
  };
}

/** An entry of the list: {element, update({run, current})}. */
function runEntry(choose) {
  const title = h("span.otca-run-title");
  const badge = statusBadge();
  const place = h("span.otca-quiet");
  const bar = progressBar();
  const entry = h("button.otca-run-entry", { type: "button" }, title, badge.element, place, bar.element);
  entry.addEventListener("click", () => choose(entry.dataset.run));
  return {
    element: h("li", {}, entry),
    update({ run, current }) {
      entry.setAttribute("aria-current", current);
      entry.dataset.run = title.title = run.id;
      setText(title, run.id);
      badge.update(run);
      setText(place, `${PLACE[run.place]} · ${TEXT.iterations(run)}`);
      bar.update(run);
    },
  };
}

async function train(comfy) {
  const graph = await comfy.exportedGraph();
  const { runs } = await comfy.getJson("/otca/runs");
  trainDialog(comfy, {
    prompt: graph.output,
    taken: runs.map((run) => run.id),
    async start(settings) {
      const { id } = await comfy.postJson("/otca/train", {
        ...settings,
        prompt: graph.output,
        workflow: graph.workflow,
      });
      comfy.toast("success", TEXT.started(id));
      showRun(comfy, id);
    },
  });
}

/** Chooses a run, and opens the tab if it is closed. */
function showRun(comfy, id) {
  chosen = id;
  if (panel) panel.choose(id);
  else comfy.openSidebar(TAB);
}

async function exportHeadless(comfy) {
  const { output } = await comfy.exportedGraph();
  const answer = await comfy.postJson("/otca/export", { prompt: output });
  const download = () => save(answer.filename, JSON.stringify(output, null, 2));
  const failed = answer.problems.some(({ severity }) => severity === "error");
  if (!failed) download();
  exportDialog(comfy, { answer, failed, download });
}

async function showPermissions(comfy, given = null) {
  const wants = given ?? (await comfy.workflowsWants());
  const allow = ({ kind, remember }) => comfy.postJson("/otca/permissions/allow", { kind, what: remember });
  permissionsDialog(comfy, { wants, allow });
}

const saidWants = new Set(); // an undo, or another tab, opens a workflow again

/** Has the user told what a workflow that was just opened asks for, if that is more than is allowed and was not said before. */
export async function tellOfWants(comfy) {
  const wants = await comfy.workflowsWants();
  const fresh = wants.filter(({ allowed, text }) => allowed === false && !saidWants.has(text));
  for (const { text } of fresh) saidWants.add(text);
  if (fresh.length) await showPermissions(comfy, wants);
}

function save(filename, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  h("a", { href: url, download: filename }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

async function stop(comfy, run) {
  const onCanvas = run.place === "canvas";
  if (onCanvas) await comfy.interrupt();
  else await comfy.postJson(`/otca/runs/${encodeURIComponent(run.id)}/stop`);
  comfy.toast("info", TEXT.stopping, onCanvas ? TEXT.stoppingPrompt : TEXT.stoppingDetail);
}

async function resume(comfy, run) {
  const start = async (settings) => {
    const { id, told } = await comfy.postJson(`/otca/runs/${encodeURIComponent(run.id)}/resume`, settings);
    comfy.toast("success", TEXT.started(id), told ?? undefined);
    showRun(comfy, id);
  };
  if (run.status === "finished") resumeDialog(comfy, { run, start });
  else await start({});
}

/** Opens a run's workflow on the canvas, where the next prompt goes on from its last checkpoint. */
async function goOnOnCanvas(comfy, run) {
  const saved = await comfy.getJson(`/otca/runs/${encodeURIComponent(run.id)}/workflow`);
  await comfy.openWorkflow(saved, run.id);
  await resumeOnCanvas(comfy, run, saved.prompt);
}

/**
 * Puts a run's adapter into the selected LoraLoader, or into a new one in the middle of what is seen. A model with two
 * experts has two adapters, and so takes two.
 */
async function loadLora(comfy, run) {
  const { lora_names: names } = await comfy.postJson(`/otca/runs/${encodeURIComponent(run.id)}/lora`);
  await comfy.refreshCombos();
  const takesLora = (node) => node.widgets?.some((widget) => widget.name === "lora_name");
  const selected = comfy.selectedNodes().filter(takesLora);
  names.forEach((name, number) => {
    const node = selected[number] ?? comfy.addNode("LoraLoader", number);
    comfy.setWidget(node, "lora_name", name);
    comfy.toast("success", TEXT.loraLoaded, selected[number] ? TEXT.loraIn(name, node.title) : TEXT.loraAdded(name));
  });
}

async function openWorkflow(comfy, run) {
  await comfy.openWorkflow(await comfy.getJson(`/otca/runs/${encodeURIComponent(run.id)}/workflow`), run.id);
  comfy.toast("success", TEXT.opened(run.id));
}

/** Opens the workflow that a .safetensors file carries; only its header is read, and it never leaves the browser. */
function loadFromLora(comfy) {
  const input = h("input", { type: "file", accept: ".safetensors" });
  input.addEventListener("change", () => {
    const [file] = input.files;
    guard(comfy, async () => comfy.openWorkflow(await readWorkflow(file), file.name.replace(/\.safetensors$/, "")));
  });
  input.click();
}
