// @ts-check
/** What moves on with every prompt, as seeds and the places of prompts do: held, let go, and gone on with. */
import { app } from "../../../scripts/app.js";
import { areHeld, heldValue, releasedValue } from "../lib/controls.js";
import { findNode, ourNodes, rootGraph, setWidget } from "./graph.js";

/**
 * ComfyUI lets new seeds jump at random; an iteration is the one before plus one, here as in the headless trainer.
 *
 * @param {GraphNode} node
 */
export function advanceByOne(node) {
  for (const { control } of controlsOf(node)) control.value = "increment";
}

/**
 * The widgets whose values move on after each prompt, each with the one that says how.
 *
 * @param {GraphNode} node
 */
function controlsOf(node) {
  return (node.widgets ?? []).flatMap((widget) =>
    (widget.linkedWidgets ?? [])
      .filter((linked) => linked.name === "control_after_generate")
      .map((control) => ({ widget, control })),
  );
}

function ourControls() {
  // An input is known by its key for as long as the page is open; its widget is made anew by undo and by a change of tabs.
  return ourNodes().flatMap(({ node, id }) =>
    controlsOf(node).map((found) => ({ ...found, node, id, key: `${rootGraph().id} ${id} ${found.widget.name}` })),
  );
}

/** Whether the next prompt samples what the last one did. */
export function samplesAreHeld() {
  return areHeld(ourControls().map(({ control }) => control.value));
}

/**
 * Keeps prompts and noise of the last prompt, or lets them move on again.
 *
 * @param {boolean} hold
 */
export function holdSamples(hold) {
  for (const { widget, control, key } of ourControls()) {
    const known = advancing.get(key);
    if (known) known.untouched = false; // a run that was trained on samples twice is ahead of its seeds
    const queued = queuedValues.get(key);
    const value = hold ? heldValue(control.value, queued ?? drawnValues.get(key), widget.value, drawnValues.get(key)) : releasedValue(queued, widget.value);
    control.value = hold ? "fixed" : "increment";
    if (value === widget.value) continue;
    widget.value = value;
    widget.callback?.(value);
  }
  rootGraph().setDirtyCanvas(true, true);
}

/**
 * Puts what moves on with every prompt to where it stands after so many iterations of a graph in API form. Seeds of other
 * nodes, as of a KSampler that shows the model before and after, stay as they are.
 *
 * @param {Prompt} prompt
 * @param {number} iterations
 */
export function advanceTo(prompt, iterations) {
  for (const { node, id, widget } of ourControls()) {
    const begun = prompt[id]?.inputs[widget.name];
    if (Number.isInteger(begun)) setWidget(node, widget.name, begun + iterations);
  }
}

/**
 * What moves on with every prompt, by workflow, node and input: its value in the file, the least that we set, the one that was seen
 * last, and whether that is the file's or ours, or a prompt of this page moved it on: the user has not set it since. It outlives the
 * nodes, which undo makes anew.
 *
 * @type {Map<string, {file: number, least: number, seen: number, untouched: boolean}>}
 */
const advancing = new Map();

/**
 * Calls back for each of our inputs that moves on by one with every prompt; `key` is its key in `advancing`.
 *
 * @param {(key: string, node: GraphNode, widget: Widget, id: string) => void} callback
 */
function forEachIncrement(callback) {
  for (const { node, id, widget, control, key } of ourControls()) if (control.value === "increment") callback(key, node, widget, id);
}

/** Takes the values of a workflow that was opened for those of its file, unless it was open before and has only been shown again. */
export function noticeOpened() {
  forEachIncrement((key, _node, { value }) => {
    const known = advancing.get(key);
    if (!known || (value === known.file && value !== known.seen)) advancing.set(key, { file: value, least: value, seen: value, untouched: true });
  });
}

/**
 * Has what moves on with every prompt go on where the run stopped, and begin as in the file where a new run begins: else an opened
 * template would repeat the prompts and the noise of the run's beginning. What the user has set stays.
 *
 * @param {Coming["at"]} at
 */
export function goOnAt(at) {
  forEachIncrement((key, node, widget, id) => {
    const known = advancing.get(key);
    if (!known) return;
    const moved = widget.value > known.seen && widget.value === queuedValues.get(key) + (movesOnBefore() ? 0 : 1);
    known.untouched &&= moved || widget.value === known.seen;
    if (moved) known.least = widget.value; // never back: prompts may wait
    known.seen = widget.value;
    if (!known.untouched) return;
    const stopped = at.find(([place, name]) => place === id && name === widget.name);
    known.seen = stopped ? Math.max(known.least, stopped[2]) : known.least;
    if (known.seen !== widget.value) setWidget(node, widget.name, known.seen);
  });
}

/**
 * Which of these inputs has the value given, and so goes on there: its name for a person, and the value.
 *
 * @param {Coming["at"]} at
 * @returns {[string, number] | null}
 */
export function goesOnAt(at) {
  for (const [id, name, value] of at) {
    const widget = findNode(id)?.widgets?.find((candidate) => candidate.name === name);
    if (widget?.value === value) return [widget.label ?? name, value];
  }
  return null;
}

/** @type {Map<string, any>} */
const queuedValues = new Map(); // by key: the value in the prompt that was queued last …
/** @type {Map<string, any>} */
const drawnValues = new Map(); // … and in the one whose samples are shown: those that were queued after it may have been cancelled

/**
 * Notices what moves on with every prompt as it was in the one whose samples are shown.
 *
 * @param {Coming["at"]} drawn
 */
export function noticeDrawn(drawn) {
  for (const [id, name, value] of drawn) drawnValues.set(`${rootGraph().id} ${id} ${name}`, value);
}

const movesOnBefore = () => app.extensionManager.setting.get("Comfy.WidgetControlMode") === "before";

/**
 * Has a widget of ours notice prompts: ComfyUI asks all widgets before and after it queues one.
 *
 * @param {Widget} ours
 */
export function noticeQueuedValues(ours) {
  const remember = () => ourControls().forEach(({ widget, key }) => queuedValues.set(key, widget.value));
  ours.beforeQueued = () => movesOnBefore() || remember();
  ours.afterQueued = () => movesOnBefore() && remember();
}
