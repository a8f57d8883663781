// @ts-check
/**
 * Lists for text boxes of our nodes whose input says by `suggest` what the server knows for it: runs, files, devices … In ComfyUI's
 * classic renderer the box is in the dialog that a click on the widget opens; Nodes 2.0 has it on the node.
 */
import { Combobox } from "./combobox.js";

const BY_GRAPH = ["layers", "metrics"]; // kinds that follow from the graph, which is sent along

/** @typedef {{name: string, kind: string}} Suggested */

/** @type {OurWidget} */
export const suggestWidget = {
  fits: (definition) => suggested(definition).length > 0,
  create: (node, comfy) => {
    const inputs = suggested(/** @type {Definition} */ (comfy.nodeDefinition(node)));
    for (const input of inputs) {
      const widget = node.widgets?.find(({ name }) => name === input.name);
      if (widget) offerInDialog(widget, (box, close) => combobox(box, node, input, comfy, close));
    }
    comfy.onTextBox(node, (name, box) => {
      const input = inputs.find((each) => each.name === name);
      if (input) combobox(box, node, input, comfy);
    });
    return { show() {} };
  },
};

/**
 * The inputs of a node that have suggestions.
 *
 * @param {Definition} definition
 * @returns {Suggested[]}
 */
function suggested({ input }) {
  const tables = [input?.required, input?.optional].map((table) => Object.entries(table ?? {}));
  return tables.flat().flatMap(([name, [, options]]) =>
    options?.suggest ? [{ name, kind: options.suggest }] : [],
  );
}

/**
 * Has the dialog in which a text widget of the classic renderer is typed get a list.
 *
 * @param {Widget} widget
 * @param {(box: HTMLInputElement, close: () => void) => Combobox} offer
 */
function offerInDialog(widget, offer) {
  const { onClick } = widget;
  if (!onClick) return; // a front end that draws text widgets otherwise
  widget.onClick = (details) => {
    onClick.call(widget, details);
    const dialog = details.canvas.prompt_box;
    const box = /** @type {HTMLInputElement | null | undefined} */ (dialog?.querySelector("input.value"));
    if (!dialog || !box) return;
    const offered = offer(box, () => dialog.querySelector("button")?.click());
    const { close } = dialog;
    dialog.close = () => {
      offered.close();
      close.call(dialog);
    };
    box.focus();
    offered.open();
  };
}

/** @type {WeakMap<HTMLInputElement, Combobox>} */
const made = new WeakMap();

/**
 * The list of a box, which gets one once.
 *
 * @param {HTMLInputElement} box
 * @param {GraphNode} node
 * @param {Suggested} input
 * @param {Comfy} comfy
 * @param {() => void} [close] ends typing, where the box is in a dialog
 */
function combobox(box, node, { name, kind }, comfy, close) {
  const known = made.get(box);
  if (known) return known;
  const label = node.widgets?.find((widget) => widget.name === name)?.label ?? name;
  const load = () => (BY_GRAPH.includes(kind) ? comfy.suggestionsByGraph(kind, node) : comfy.suggestions(kind));
  const chosen = (/** @type {import("./combobox.js").Offer} */ { several }) => several || close?.();
  const one = new Combobox(box, { label, load, chosen });
  made.set(box, one);
  return one;
}
