// @ts-check
/** What the commands and buttons of the sidebar do. Each throws an Error with a message for the user where it fails. */
import { t } from "../lib/language.js";
import { resumeOnCanvas } from "../lib/newrun.js";
import { runNameOf, uniqueName } from "../lib/runs.js";
import { readWorkflow } from "../lib/safetensors.js";
import { exportDialog, permissionsDialog, proveDialog, resumeDialog, trainDialog, wordDialog } from "./dialogs.js";
import { h } from "./dom.js";

const TEXT = {
  started: (/** @type {string} */ id) => t("{name} is training", { name: id }),
  loraLoaded: t("LoRA loaded"),
  inTerminal: t("Train it in a terminal"),
};

/**
 * Asks how to train the graph on the canvas, and starts it; `showRun(comfy, id)` then shows the run.
 *
 * @param {Comfy} comfy
 * @param {(comfy: Comfy, id: string) => void} showRun
 */
export async function train(comfy, showRun) {
  const instead = (/** @type {ExportAnswer} */ { here }) => ({ title: TEXT.inTerminal, command: here, note: t("Type this into a terminal, in the folder that has the download. The run appears here by itself.") });
  await begin(comfy, { title: t("Train headless"), route: "/otca/train", suffix: "", instead, ask: trainDialog, showRun });
}

/**
 * Asks how long to try whether the graph on the canvas learns, and starts that; `showRun(comfy, id)` then shows the run.
 *
 * @param {Comfy} comfy
 * @param {(comfy: Comfy, id: string) => void} showRun
 */
export async function prove(comfy, showRun) {
  const instead = (/** @type {ExportAnswer} */ answer) =>
    ({ title: t("Prove it in a terminal"), command: answer.prove, note: t("Type this into a terminal, in the folder that has the download. It says where its page is, and the run appears here by itself.") });
  await begin(comfy, { title: t("Prove it"), route: "/otca/prove", suffix: "-proof", instead, ask: proveDialog, showRun });
}

/**
 * @param {Comfy} comfy
 * @param {object} options
 * @param {string} options.title of what is said instead, where the page may not start it
 * @param {string} options.route that starts it
 * @param {string} options.suffix of the run's name
 * @param {(answer: ExportAnswer) => {title: string, command: string, note: string}} options.instead
 * @param {(comfy: Comfy, options: {prompt: Prompt, taken: string[], goesOn?: string, start: (settings: object) => Promise<void>}) => void} options.ask
 * @param {(comfy: Comfy, id: string) => void} options.showRun
 */
async function begin(comfy, { title, route, suffix, instead, ask, showRun }) {
  const graph = await comfy.exportedGraph();
  const [word, { runs }, comings] = await Promise.all([comfy.trainingsWord(), comfy.getJson("/otca/runs"), comfy.comingRuns()]);
  const taken = runs.map((/** @type {Run} */ run) => run.id);
  const goesOn = Object.values(comings ?? {}).find(({ iteration }) => iteration > 0)?.run;
  if (!word.given) {
    const name = uniqueName(`${runNameOf(graph.output)}${suffix}`, taken);
    const answer = await comfy.postJson("/otca/export", { prompt: graph.output, name });
    const { filename, problems } = answer;
    const file = { name: filename, save: () => save(filename, JSON.stringify(graph.output, null, 2)) };
    return wordDialog(comfy, { title, word, instead: instead(answer), file, problems });
  }
  ask(comfy, {
    prompt: graph.output,
    taken,
    goesOn,
    async start(settings) {
      const { id, told } = await comfy.postJson(route, { ...settings, prompt: graph.output, workflow: graph.workflow });
      comfy.toast("success", TEXT.started(id), told ?? undefined);
      showRun(comfy, id);
    },
  });
}

/**
 * Downloads the graph on the canvas for `otca train`, and shows the commands that start it.
 *
 * @param {Comfy} comfy
 */
export async function exportHeadless(comfy) {
  const { output } = await comfy.exportedGraph();
  const answer = await comfy.postJson("/otca/export", { prompt: output });
  const download = () => save(answer.filename, JSON.stringify(output, null, 2));
  const failed = answer.problems.some((/** @type {Problem} */ { severity }) => severity === "error");
  if (!failed) download();
  const bundle = (/** @type {boolean} */ hashes, /** @type {boolean} */ pictures) =>
    comfy.postJson("/otca/bundle", { prompt: output, hashes, with_pictures: pictures });
  exportDialog(comfy, { answer, failed, download, bundle });
}

/**
 * Shows what the open workflow asks for beyond its own data, and lets the user allow it.
 *
 * @param {Comfy} comfy
 * @param {Want[] | null} known
 */
export async function showPermissions(comfy, known = null) {
  const wants = known ?? (await comfy.workflowsWants());
  const allow = (/** @type {Want} */ { kind, remember }) => comfy.postJson("/otca/permissions/allow", { kind, what: remember });
  permissionsDialog(comfy, { wants, allow });
}

const shownWants = new Set(); // texts: an undo, or another tab, opens a workflow again

/**
 * Shows what a workflow that was just opened asks for, if that is more than is allowed and was not shown before.
 *
 * @param {Comfy} comfy
 */
export async function showNewWants(comfy) {
  const wants = await comfy.workflowsWants();
  const fresh = wants.filter((/** @type {Want} */ { allowed, text }) => allowed === false && !shownWants.has(text));
  for (const { text } of fresh) shownWants.add(text);
  if (fresh.length) await showPermissions(comfy, wants);
}

/**
 * @param {string} filename
 * @param {string} text
 */
function save(filename, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  h("a", { href: url, download: filename }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/**
 * Stops a run: on the canvas by ComfyUI's own Stop, in the background by our route.
 *
 * @param {Comfy} comfy
 * @param {RunDetails} run
 */
export async function stop(comfy, run) {
  const onCanvas = run.place === "canvas";
  const word = onCanvas ? null : await comfy.trainingsWord();
  if (word && !word.given) {
    const instead = { title: t("Stop it in a terminal"), command: run.instead.stop, note: t("The run ends after its current step and saves. So it does by Ctrl-C in the terminal where it trains.") };
    return wordDialog(comfy, { title: t("Stop"), word, instead: run.place === "remote" ? undefined : instead });
  }
  if (onCanvas) await comfy.interrupt();
  else await comfy.postJson(`/otca/runs/${encodeURIComponent(run.id)}/stop`);
  comfy.toast(
    "info",
    t("Stopping"),
    onCanvas
      ? t("The prompt that runs ends after its current step, and so does what Training Run has queued; other prompts follow.")
      : t("The run ends after its current step and saves."),
  );
}

/**
 * Resumes a run in the background; `showRun(comfy, id)` then shows it.
 *
 * @param {Comfy} comfy
 * @param {RunDetails} run
 * @param {(comfy: Comfy, id: string) => void} showRun
 */
export async function resume(comfy, run, showRun) {
  const start = async (/** @type {any} */ settings) => {
    const { id, told } = await comfy.postJson(`/otca/runs/${encodeURIComponent(run.id)}/resume`, settings);
    comfy.toast("success", TEXT.started(id), told ?? undefined);
    showRun(comfy, id);
  };
  const word = await comfy.trainingsWord();
  if (!word.given) {
    const instead = { title: TEXT.inTerminal, command: run.instead.resume, note: t("It goes on from the last checkpoint, and this page shows it. For a finished run, add --iterations and their number in all.") };
    wordDialog(comfy, { title: t("Resume headless"), word, instead });
  } else if (run.status === "finished") resumeDialog(comfy, { run, start });
  else await start({});
}

/**
 * Opens a run's workflow on the canvas, where the next prompt continues from its last checkpoint.
 *
 * @param {Comfy} comfy
 * @param {Run} run
 */
export async function continueOnCanvas(comfy, run) {
  const saved = await comfy.getJson(`/otca/runs/${encodeURIComponent(run.id)}/workflow`);
  await comfy.openWorkflow(saved, run.id);
  await resumeOnCanvas(comfy, run, saved.prompt);
}

/**
 * Puts a run's adapter into the selected LoraLoader, or into a new one. A model with two experts has two adapters, and so takes
 * two.
 *
 * @param {Comfy} comfy
 * @param {Run} run
 */
export async function loadLora(comfy, run) {
  const { lora_names: names } = await comfy.postJson(`/otca/runs/${encodeURIComponent(run.id)}/lora`);
  await comfy.refreshCombos();
  const takesLora = (/** @type {GraphNode} */ node) => node.widgets?.some((widget) => widget.name === "lora_name");
  const selected = comfy.selectedNodes().filter(takesLora);
  names.forEach((/** @type {string} */ name, /** @type {number} */ number) => {
    if (selected[number]) {
      comfy.setWidget(selected[number], "lora_name", name);
      return comfy.toast("success", TEXT.loraLoaded, t("{name} is chosen in {title}.", { name, title: selected[number].title }));
    }
    // Which of two adapters belongs to which of two models, only the user knows.
    const alone = () => ({ node: comfy.addNode("LoraLoaderModelOnly"), source: null, isUsed: false });
    const { node, source, isUsed } = names.length > 1 ? alone() : comfy.addLoraLoader();
    comfy.setWidget(node, "lora_name", name);
    const said =
      source === null
        ? t("A loader of {name} was added beside the graph. It is not connected: give it a model, and connect it to a sampler.", { name })
        : isUsed
          ? t("A loader of {name} now stands between {source} and what uses its model.", { name, source })
          : t("A loader of {name} was added behind {source}. Connect its MODEL to the sampler that is to use it.", { name, source });
    comfy.toast(isUsed ? "success" : "warn", TEXT.loraLoaded, said);
  });
}

/**
 * Opens a run's workflow in a tab of its own.
 *
 * @param {Comfy} comfy
 * @param {Run} run
 */
export async function openWorkflow(comfy, run) {
  await comfy.openWorkflow(await comfy.getJson(`/otca/runs/${encodeURIComponent(run.id)}/workflow`), run.id);
  comfy.toast("success", t("Workflow of {name} opened", { name: run.id }));
}

/**
 * Opens the workflow that a .safetensors file carries; only its header is read, and it never leaves the browser. Goes on for ever
 * where the user chooses no file.
 *
 * @param {Comfy} comfy
 */
export async function loadFromLora(comfy) {
  const input = h("input", { type: "file", accept: ".safetensors" });
  const changed = new Promise((resolve) => input.addEventListener("change", resolve));
  input.click();
  await changed;
  for (const file of input.files ?? []) {
    await comfy.openWorkflow(await readWorkflow(file), file.name.replace(/\.safetensors$/, ""));
  }
}
