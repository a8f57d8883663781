// @ts-check
/** What the credit heatmap says beside its picture: legend, table for screen readers, facts of a cell. */
import { OBJECTIVES } from "../lib/color.js";
import { fixed, percent, signed, significant } from "../lib/format.js";
import { isGradient, rowName, stepName } from "../lib/heatmap.js";
import { t } from "../lib/language.js";
import { h } from "../sidebar/dom.js";

const TABLE_CELLS = 4000;

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
 * @param {import("../lib/heatmap_rows.js").Section[]} sections
 * @param {Value[][]} values of their rows
 */
export function textTable(credit, view, sections, values) {
  if (values.length * credit.trained.length > TABLE_CELLS) return [];
  const ofGradient = isGradient(credit);
  const write = view === "advantage" && !ofGradient ? signed : fixed;
  const head = credit.trained.map((_, column) => h("th", { scope: "col" }, stepName(credit, column)));
  const names = sections.flatMap(({ prompt, rows }) => rows.map((row) => [rowName(row), prompt].filter(Boolean).join(", ")));
  const rows = values.map((row, index) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, names[index]),
      ...row.map((value) => h("td", {}, value === null ? t("masked") : write(value))),
    ),
  );
  const captions = ofGradient
    ? [t("Gradient g that came from each step"), t("Share w of each step")]
    : [t("Effective advantage Ã"), t("Step weight w")];
  const caption = captions[view === "advantage" ? 0 : 1];
  return [h("table", {}, h("caption", {}, caption), h("tr", {}, h("td"), ...head), ...rows)];
}

/**
 * What the rows and the ends of the colours stand for, where that does not go without saying.
 *
 * @param {object} shown
 * @param {number} shown.samples all there are
 * @param {number} shown.prompts
 * @param {boolean} shown.folded whether some row stands for several
 * @param {import("../lib/heatmap_rows.js").ColorScale} shown.scale
 * @param {string} shown.objective
 */
export function noteLines({ samples, prompts, folded, scale, objective }) {
  const { limit, beyond, largest } = scale;
  const values = { beyond, limit: significant(limit), largest: significant(largest) };
  return [
    objective && t("Of {objective} alone.", { objective }),
    folded && t("{samples} samples of {prompts} prompts: a row is the mean of several. Click it to see them.", { samples, prompts }),
    beyond === 1 && t("Colours end at {limit}. One row goes beyond, up to {largest}.", values),
    beyond > 1 && t("Colours end at {limit}. {beyond} rows go beyond, up to {largest}.", values),
  ].filter(Boolean);
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
    h("span", {}, `${meaning} `, h("i", {}, symbol), ` ${value}`),
  );
  lines.push(h("p.otca-numbers", {}, ...values));
  if (objectives.length) {
    const rows = objectives.map(({ name, advantage, coefficient, weight }, k) => {
      const figures = [advantage, coefficient, ...(weight ? [weight] : [])].map((value) => h("td", {}, value));
      return h("tr", {}, h("td", {}, swatch(k), name), ...figures);
    });
    const symbols = ["A", "c", ...(objectives[0].weight ? ["w"] : [])].map((symbol) => h("th", {}, symbol));
    const head = h("tr", {}, h("th", {}, t("objective")), ...symbols);
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
