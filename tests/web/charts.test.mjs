import assert from "node:assert/strict";
import test, { before } from "node:test";

import { lineChart, stepHeatmap } from "../../web/sidebar/charts.js";
import { openPage } from "./page.mjs";

before(openPage);

/** A chart of some width with a model in it, and its parts. */
function shown(chart, model) {
  const [svg] = chart.element.all("otca-chart-plot");
  const [readout] = chart.element.all("otca-chart-readout");
  svg.clientWidth = 400;
  svg.resized();
  chart.update(() => model);
  const press = (key) => svg.dispatchEvent(Object.assign(new Event("keydown", { cancelable: true }), { key }));
  return { svg, readout, press };
}

const line = (ys, rest) => ({ xs: ys.map((_, index) => index + 1), lines: [{ name: "", ys, color: "red" }], rest });

test("a chart's last value is read aloud only where the focus is", () => {
  const chart = lineChart({ title: "reward" });
  const { svg, readout } = shown(chart, line([1, 2], "2"));
  assert.equal(readout.textContent, "2");
  assert.equal(readout.getAttribute("aria-live"), "off");
  svg.focus();
  assert.equal(readout.getAttribute("aria-live"), "polite");
  svg.dispatchEvent(new Event("blur"));
  assert.equal(readout.getAttribute("aria-live"), "off");
});

test("iterations whose credit was not recorded say so", () => {
  const chart = stepHeatmap({ title: "credit", steps: 2, rowLabel: "step" });
  const rows = [
    { step: 3, ys: [1.5, null] },
    { step: 7, ys: [0.5, null] },
  ];
  const { readout, press } = shown(chart, { xs: [1, 2], rows, rest: "" });
  press("ArrowRight");
  assert.equal(readout.textContent, "it. 2: not recorded");
  press("ArrowLeft");
  assert.equal(readout.textContent, "it. 1: most 1.5 (step 3), least 0.5 (step 7)");
});

test("a chart that nobody sees computes nothing, and shows the latest once it is seen", () => {
  const chart = lineChart({ title: "reward" });
  const { readout } = shown(chart, line([1, 2], "2"));
  const computed = [];
  const update = (value) => chart.update(() => (computed.push(value), line([1, value], String(value))));
  chart.element.seen(false);
  update(3);
  update(4);
  assert.deepEqual(computed, []);
  assert.equal(readout.textContent, "2");
  chart.element.seen(true);
  assert.deepEqual(computed, [4]);
  assert.equal(readout.textContent, "4");
  chart.element.seen(true);
  assert.deepEqual(computed, [4], "nothing is new");
});
