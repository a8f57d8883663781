// @ts-check
/** What our widgets need of a node: a place for an element, its text boxes, its outputs, and how it is drawn. */
import { app } from "../../../scripts/app.js";
import { drawn } from "./layout.js";

/**
 * Calls back with what a node returned for the page, whenever it has run.
 *
 * @param {GraphNode} node
 * @param {(output: Record<string, any>) => void} callback
 */
export function onOutput(node, callback) {
  const before = node.onExecuted;
  node.onExecuted = (output) => {
    before?.call(node, output);
    callback(output ?? {});
  };
}

/** @type {WeakMap<GraphNode, (name: string, box: HTMLInputElement) => void>} */
const textBoxes = new WeakMap();

/**
 * Calls back with the name of the widget and its box whenever somebody goes into a text box on a node, as Nodes 2.0 has them.
 *
 * @param {GraphNode} node
 * @param {(name: string, box: HTMLInputElement) => void} callback
 */
export function onTextBox(node, callback) {
  document.addEventListener("focusin", enteredTextBox); // once: it is the same function
  textBoxes.set(node, callback);
}

/** @param {FocusEvent} event */
function enteredTextBox({ target }) {
  if (!(target instanceof HTMLInputElement) || target.type !== "text") return;
  const id = target.closest("[data-node-id]")?.getAttribute("data-node-id");
  const node = id ? app.canvas.graph.getNodeById(/** @type {any} */ (id)) : null;
  const called = target.getAttribute("aria-label");
  const widget = node?.widgets?.find(({ name, label }) => name === called || label === called);
  if (node && widget) textBoxes.get(node)?.(widget.name, target);
}

/**
 * Presses the button by which Nodes 2.0 shows a node's advanced inputs. Returns whether there is one: it says what it will do, and
 * does not hear of what is set otherwise.
 *
 * @param {GraphNode} node
 */
export function pressAdvanced(node) {
  const shown = node.graph === app.canvas.graph;
  const place = shown && document.querySelector(`[data-node-id="${node.id}"] [data-testid="advanced-inputs-button"]`);
  if (place instanceof HTMLElement) place.click();
  return place instanceof HTMLElement;
}

/** Whether the user wants to see all advanced inputs of all nodes: a setting of newer ComfyUI. */
export function alwaysShowsAdvanced() {
  return app.extensionManager.setting.get("Comfy.Node.AlwaysShowAdvancedWidgets") === true;
}

const NODES_2 = "Comfy.VueNodes.Enabled";

/** Whether nodes are drawn as elements of the page, not on the canvas. */
export function showsNodes2() {
  return app.extensionManager.setting.get(NODES_2) === true;
}

/**
 * Calls back when nodes are drawn in the other way from now on.
 *
 * @param {() => void} callback
 */
export function onRenderer(callback) {
  // Some front ends tell of a setting just before they change it.
  app.ui.settings.addEventListener(`${NODES_2}.change`, () => setTimeout(callback));
}

/**
 * Puts an element on a node, below its inputs. Nothing of it is saved or queued: else it would be an input of the node, and
 * change ComfyUI's cache key.
 *
 * ComfyUI's Properties panel shows the widgets of the selected node once more. What it cannot show it lists as an empty row, and
 * writes its own width into the widget, which from then on is the width on the canvas. So ours are not listed there, and have no
 * width but the node's.
 *
 * @param {GraphNode} node
 * @param {string} name
 * @param {HTMLElement} element
 * @param {{least: () => number, most?: () => number}} height in pixels of the graph
 */
export function addElement(node, name, element, { least, most }) {
  const widget = node.addDOMWidget(name, name.toUpperCase(), element, {
    serialize: false,
    hideOnZoom: false,
    hideInPanel: true,
    getMinHeight: least,
    ...(most && { getMaxHeight: most }),
    getValue: () => "",
    setValue: () => {},
  });
  widget.serialize = false;
  element.dataset.otcaWidget = name;
  Object.defineProperty(widget, "width", { get: () => undefined, set: () => {}, configurable: true });
  return widget;
}

/**
 * Shows the elements of the nodes that are here now. Undo makes a graph's nodes anew, and Nodes 2.0 of front end 1.58 goes on to show
 * the elements of those that had their ids.
 */
export async function mountAgain() {
  if (!showsNodes2()) return;
  await drawn();
  for (const node of app.canvas.graph.nodes) {
    for (const { name, element } of node.widgets ?? []) {
      if (!element?.dataset?.otcaWidget || element.isConnected) continue;
      document.querySelector(`[data-node-id="${node.id}"] [data-otca-widget="${name}"]`)?.replaceWith(element);
    }
  }
}

/**
 * Lets the wheel zoom and the middle button move the graph where a widget would swallow them.
 *
 * @param {HTMLElement} element
 */
export function passGesturesToGraph(element) {
  const pass = (/** @type {MouseEvent} */ event) => {
    event.preventDefault();
    event.stopPropagation();
    const Same = /** @type {typeof PointerEvent} */ (event.constructor);
    app.canvas.canvas.dispatchEvent(new Same(event.type, event));
  };
  element.addEventListener("wheel", pass);
  element.addEventListener("pointerdown", (event) => event.button === 1 && pass(event));
  element.addEventListener("pointermove", (event) => event.buttons & 4 && pass(event));
  element.addEventListener("pointerup", (event) => event.button === 1 && pass(event));
}

/**
 * Makes the node as tall as its widgets need, never shorter than the user made it, and draws it again.
 *
 * @param {GraphNode} node
 */
export function growNode(node) {
  const [width, height] = node.size;
  const needed = node.computeSize()[1];
  if (needed > height) node.setSize([width, needed]);
  node.setDirtyCanvas(true, true);
}
