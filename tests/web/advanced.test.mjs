import assert from "node:assert/strict";
import test from "node:test";

import { advancedWidget } from "../../web/widgets/advanced.js";

const ROW = 20;

/** A node with a seed and an advanced one, each with its control, and an advanced number; as tall as what it shows. */
function made({ always = false, linked = null, nodes2 = false } = {}) {
  const widget = (name, advanced, linkedWidgets) => ({ name, value: 1, options: { advanced }, linkedWidgets });
  const control = { name: "control_after_generate", value: "increment" };
  const node = {
    size: [300, 6 * ROW],
    properties: {},
    inputs: [{ name: "number", link: linked, widget: { name: "number" } }],
    widgets: [widget("plain", undefined), widget("number", true), widget("seed", true, [control]), control],
    addWidget(type, name, value, callback, options) {
      this.widgets.push({ type, name, value, callback, options });
      return this.widgets.at(-1);
    },
    computeSize() {
      return [300, this.widgets.filter((each) => !each.hidden && !(each.advanced && !this.showAdvanced)).length * ROW];
    },
    isInputConnected(slot) {
      return this.inputs[slot].link != null;
    },
    setSize(size) {
      this.size = size;
    },
    setDirtyCanvas() {},
  };
  const presses = []; // of the button that Nodes 2.0 has
  const page = { nodes2 };
  const ours = advancedWidget.create(node, {
    alwaysShowsAdvanced: () => always,
    showsNodes2: () => page.nodes2,
    pressAdvanced: (pressed) => page.nodes2 && presses.push(pressed) > 0,
  });
  const button = node.widgets.at(-1);
  const shown = () => node.widgets.filter(({ hidden }) => !hidden).map(({ name }) => name);
  const refuse = (...inputs) => ours.show("refused", { inputs });
  return { node, button, shown, ours, page, press: () => button.callback(), presses, refuse };
}

test("a new node hides its advanced inputs with their controls, and is as tall as what is left", () => {
  const { node, button, shown } = made();
  assert.deepEqual(shown(), ["plain", button.name]);
  assert.deepEqual(node.size, [300, 2 * ROW]);
});

test("the button shows them and says how to hide them; hidden again, the node is as tall as the user had it", () => {
  const { node, button, shown, press } = made();
  node.size = [320, 77];
  press();
  assert.equal(shown().length, 5);
  assert.deepEqual([node.showAdvanced, button.label], [true, "Hide advanced inputs"]);
  assert.deepEqual(node.size, [320, 5 * ROW]);
  press();
  assert.deepEqual(shown(), ["plain", button.name]);
  assert.deepEqual([node.showAdvanced, button.label], [false, "Show advanced inputs"]);
  assert.deepEqual(node.size, [320, 77]);
  assert.deepEqual(node.properties, {});
});

test("values stay, and the button is no part of the workflow", () => {
  const { node, button, press } = made();
  const values = () => node.widgets.map(({ value }) => value);
  const before = values();
  press();
  assert.deepEqual(values(), before);
  assert.deepEqual([button.serialize, button.options.serialize], [false, false]);
});

test("a workflow that was saved with them shows them", () => {
  const { node, shown } = made();
  node.showAdvanced = true;
  node.onConfigure({});
  assert.equal(shown().length, 5);
});

test("an input that gets a link is shown, and hidden again without it", () => {
  const { node, shown } = made();
  node.inputs[0].link = 3;
  node.onConnectionsChange(1);
  assert.ok(shown().includes("number"));
  node.inputs[0].link = null;
  node.onConnectionsChange(1);
  assert.ok(!shown().includes("number"));
});

test("what else listens to the node goes on to hear of it", () => {
  const node = made().node;
  const heard = [];
  node.onConfigure = (details) => heard.push(details);
  advancedWidget.create(node, { alwaysShowsAdvanced: () => false, showsNodes2: () => false });
  node.onConfigure("workflow");
  assert.deepEqual(heard, ["workflow"]);
});

test("who always wants to see advanced inputs sees them, without a button", () => {
  const { button, shown } = made({ always: true });
  assert.ok(!shown().includes(button.name));
  assert.equal(shown().length, 4);
});

test("in Nodes 2.0 nothing is hidden, so that its own button can show it, and the size is that of what is shown", () => {
  const { node, ours, page } = made({ nodes2: true });
  assert.ok(node.widgets.every(({ hidden }) => !hidden));
  assert.deepEqual(node.size, [300, 2 * ROW]);
  page.nodes2 = false;
  ours.show("renderer");
  assert.equal(node.widgets.filter(({ hidden }) => hidden).length, 3);
  assert.ok(node.widgets.every(({ advanced }) => !advanced), "the classic renderer leaves room for what is advanced");
});

test("what is hidden leaves no room in front ends that ask only for sizes, and has its own size again", () => {
  const { node, press } = made();
  const [, number, seed, control] = node.widgets;
  for (const widget of [number, seed, control]) assert.deepEqual(widget.computeSize(300), [0, -4]);
  node.onConfigure({}); // hidden once more
  press();
  for (const widget of [number, seed, control]) assert.equal(widget.computeSize, undefined);
});

test("only nodes that have advanced inputs get the button", () => {
  const fits = (options) => advancedWidget.fits({ input: { required: { a: ["INT", {}] }, optional: { b: ["INT", options] } } });
  assert.deepEqual([fits({ advanced: true }), fits({}), advancedWidget.fits({})], [true, false, false]);
});

test("a refused value of an advanced input shows them all, once", () => {
  const { node, shown, refuse } = made();
  refuse("plain");
  assert.ok(!node.showAdvanced);
  refuse("plain", "number");
  assert.ok(node.showAdvanced && shown().includes("number"));
  refuse("number");
  assert.ok(node.showAdvanced, "a second refusal does not hide them again");
});

test("in Nodes 2.0 its own button is pressed, which then says what it does next", () => {
  const { node, presses, refuse } = made({ nodes2: true });
  refuse("number");
  assert.deepEqual(presses, [node]);
});

test("nothing has to be shown that is shown", () => {
  for (const how of [{ always: true }, { linked: 3 }]) {
    const { node, presses, refuse } = made({ ...how, nodes2: true });
    refuse("number");
    assert.deepEqual([node.showAdvanced, presses], [undefined, []]);
  }
});
