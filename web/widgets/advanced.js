// @ts-check
/**
 * The button that shows a node's advanced inputs, or hides them again, in ComfyUI's classic renderer. Nodes 2.0 has one of its
 * own. Both keep in `showAdvanced` of the node which it is, so that it is saved with the workflow and the same in both. What is
 * hidden keeps its value. An input that is linked is always shown: its link has to end somewhere.
 *
 * The classic renderer is told to hide a widget, since it leaves room for one that is only `advanced`. Nodes 2.0 is not: from front
 * end 1.58 on it would never show one that is hidden, whatever its own button says.
 */
import { t } from "../lib/language.js";

const TEXT = { show: t("Show advanced inputs"), };
const HEIGHT = "height without advanced inputs"; // property of a node that shows them: what it goes back to

/** @type {OurWidget} */
export const advancedWidget = {
  fits: ({ input }) =>
    [input?.required, input?.optional].some((table) => Object.values(table ?? {}).some(([, options]) => options?.advanced)),
  create: (node, comfy) => new Advanced(node, comfy),
};

class Advanced {
  /** @type {WeakMap<Widget, Widget["computeSize"]>} the sizes of widgets that are hidden now */
  sizes = new WeakMap();

  /**
   * @param {GraphNode} node
   * @param {Comfy} comfy
   */
  constructor(node, comfy) {
    this.node = node;
    this.comfy = comfy;
    this.widgets = (node.widgets ?? []).filter((widget) => widget.options?.advanced);
    // Only on the canvas: Nodes 2.0 does not draw it.
    const options = { serialize: false, canvasOnly: true };
    this.button = node.addWidget("button", TEXT.show, null, () => this.toggle(), options);
    this.button.serialize = false; // else the button's value would shift those of the saved workflow
    this.follow("onConfigure");
    this.follow("onConnectionsChange");
    this.apply();
    node.setSize([node.size[0], node.computeSize()[1]]);
  }

  /**
   * A node that is loaded, or whose links change, may have to show others than before.
   *
   * @param {"onConfigure" | "onConnectionsChange"} event
   */
  follow(event) {
    const before = this.node[event];
    this.node[event] = (/** @type {[any, ...any[]]} */ ...details) => {
      before?.apply(this.node, details);
      this.apply();
    };
  }

  toggle() {
    const { node } = this;
    const [width, height] = node.size;
    node.showAdvanced = !node.showAdvanced;
    this.apply();
    const needed = node.computeSize()[1];
    if (node.showAdvanced) {
      node.properties[HEIGHT] = String(height);
      node.setSize([width, Math.max(height, needed)]);
    } else {
      node.setSize([width, Math.max(Number(node.properties[HEIGHT] ?? height), needed)]);
      delete node.properties[HEIGHT];
    }
    node.setDirtyCanvas(true, true);
  }

  apply() {
    const always = this.comfy.alwaysShowsAdvanced();
    const own = this.comfy.showsNodes2(); // what shows and hides them
    for (const widget of this.widgets) {
      const advanced = !always && !this.isLinked(widget);
      for (const each of [widget, ...(widget.linkedWidgets ?? [])]) {
        this.hide(each, advanced && !own && !this.node.showAdvanced);
        each.advanced = advanced && own; // for the size that the node is given
      }
    }
    this.button.label = this.node.showAdvanced ? t("Hide advanced inputs") : TEXT.show;
    this.button.hidden = always;
  }

  /**
   * @param {Widget} widget
   * @param {boolean} hidden
   */
  hide(widget, hidden) {
    if (Boolean(widget.hidden) === hidden) return;
    widget.hidden = hidden;
    // Older front ends leave room for it still: nothing, without the gap of 4 to the next one.
    if (hidden) {
      this.sizes.set(widget, widget.computeSize);
      widget.computeSize = () => [0, -4];
    } else {
      widget.computeSize = this.sizes.get(widget);
    }
  }

  /** @param {Widget} widget */
  isLinked({ name }) {
    return this.node.inputs.some((input, slot) => input.widget?.name === name && this.node.isInputConnected(slot));
  }

  /**
   * A refused value is marked, so it has to be seen.
   *
   * @param {string} kind
   * @param {{inputs: string[]}} data
   */
  show(kind, data) {
    if (kind === "opened" || kind === "renderer") this.apply();
    if (kind !== "refused" || this.node.showAdvanced || this.comfy.alwaysShowsAdvanced()) return;
    const hidden = this.widgets.filter((widget) => !this.isLinked(widget));
    if (hidden.some(({ name }) => data.inputs.includes(name)) && !this.comfy.pressAdvanced(this.node)) this.toggle();
  }
}
