// @ts-check
/** What the credit heatmap says beside its picture: legend, table for screen readers, facts of a cell. */
import { OBJECTIVES } from "../lib/color.js";
import { fixed, percent, signed } from "../lib/format.js";
import { stepName } from "../lib/heatmap.js";
import { h } from "../sidebar/dom.js";

const TABLE_ROWS = 200;

/**
 * Objectives with their colours and shares.
 *
 * @param {Advantages | null} advantages
 */
export function legendItems(advantages) {
  if (!advantages) return [];
  return advantages.names.map((name, k) => {
    return h("li", {}, swatch(k), `${name} `, h("b", {}, percent(advantages.shares[k])));
  });
}

/**
 * The coloured values as a table, unless it would be too long to listen to.
 *
 * @param {Credit} credit
 * @param {import("../lib/heatmap.js").Coloring} view
 * @param {Value[][]} values
 * @param {number[]} samples from top to bottom
 */
export function textTable(credit, view, values, samples) {
  if (samples.length > TABLE_ROWS) return [];
  const write = view === "advantage" ? signed : fixed;
  const head = credit.trained.map((_, column) => h("th", { scope: "col" }, stepName(credit, column)));
  const rows = samples.map((sample) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, `sample ${sample}, ${credit.prompts[credit.groups[sample]] ?? ""}`),
      ...values[sample].map((value) => h("td", {}, value === null ? "masked" : write(value))),
    ),
  );
  const caption = view === "advantage" ? "Effective advantage Ã" : "Step weight w";
  return [h("table", {}, h("caption", {}, caption), h("tr", {}, h("td"), ...head), ...rows)];
}

/**
 * Facts of a cell as elements: for the tooltip and for the preview's caption.
 *
 * @param {import("../lib/heatmap.js").Facts} facts
 */
export function factLines({ prompt, place, numbers, objectives, note }) {
  /** @type {HTMLElement[]} */
  const lines = [h("p.otca-prompt", {}, prompt), h("p", {}, place)];
  const values = numbers.map(({ symbol, meaning, value }) =>
    h("span", { title: meaning }, h("i", {}, symbol), ` ${value}`),
  );
  lines.push(h("p.otca-numbers", {}, ...values));
  if (objectives.length) {
    const rows = objectives.map(({ name, advantage, coefficient, weight }, k) => {
      const figures = [advantage, coefficient, ...(weight ? [weight] : [])].map((value) => h("td", {}, value));
      return h("tr", {}, h("td", {}, swatch(k), name), ...figures);
    });
    const symbols = ["A", "c", ...(objectives[0].weight ? ["w"] : [])].map((symbol) => h("th", {}, symbol));
    const head = h("tr", {}, h("th", {}, "objective"), ...symbols);
    lines.push(h("table", {}, head, ...rows));
  }
  if (note) lines.push(h("p", {}, note));
  return lines;
}

/**
 * Moves a box near a point of the window, to the side where there is room.
 *
 * @param {HTMLElement} box
 * @param {number} x
 * @param {number} y
 */
export function placeBeside(box, x, y) {
  const gap = 14;
  const { offsetWidth: width, offsetHeight: height } = box;
  const left = x + gap + width > innerWidth ? x - gap - width : x + gap;
  const top = Math.min(y + gap, innerHeight - height - 4);
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, top)}px`;
}

/** @param {number} objective */
function swatch(objective) {
  return h("span.otca-swatch", { style: `background: ${OBJECTIVES[objective % OBJECTIVES.length]}` });
}
