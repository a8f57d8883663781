// @ts-check
/**
 * Charts over the iterations of a run, as SVG that follows ComfyUI's colours: lines with evaluation dots, stacked bars,
 * and a step × iteration heatmap.
 */
import { sequential } from "../lib/color.js";
import {
  binMeans,
  decimate,
  extent,
  linePath,
  lonePoints,
  niceTicks,
  padded,
  scale,
  tickLabel,
  wholeTicks,
} from "../lib/curves.js";
import { significant } from "../lib/format.js";
import { t } from "../lib/language.js";
import { MARGIN, chart, lazyProbe, probeOf } from "./chart.js";
import { h, s } from "./dom.js";

const TEXT = {
  iteration: t("iteration"),
  iterations: (/** @type {number} */ from, /** @type {number} */ to) => t("it. {iterations}", { iterations: from === to ? from : `${from}–${to}` }),
  evaluation: (/** @type {{mean: number, error: number}} */ { mean, error }) => t("eval. {mean} ± {error}", { mean: significant(mean), error: significant(error, 2) }),
  step: (/** @type {number} */ step) => t("step {step}", { step }),
};

/** @param {Value} value a figure; NaN in a column of numbers is what is not known */
const known = (value) => (Number.isFinite(value) ? value : null);

const DOT_ROOM = 7; // pixels for each evaluation's dot

/** @typedef {ReturnType<typeof import("../lib/curves.js").errorBars>} Dots */

/**
 * Lines of `model.lines` [{name, ys, color, thin}] over `model.xs`, evaluations as dots with error bars, and a dotted line
 * before each iteration of `model.marks` [{iteration, lines}], the first one with a changed value.
 *
 * @param {import("./chart.js").Caption} options
 */
export function lineChart(options) {
  /** @typedef {{name: string, ys: Values, color: string, thin?: boolean}} Line */
  /** @typedef {{rest: string, xs: Numbers, lines: Line[], dots?: Dots, marks?: Change[]}} Model */
  return chart((svg, /** @type {Model} */ model, width, height) => {
    const { xs, lines, dots = [], marks = [] } = model;
    const xDomain = extent([...xs.slice(0, 1), ...xs.slice(-1), ...dots.map((dot) => dot.iteration)]);
    let low = Infinity;
    let high = -Infinity;
    for (const values of [...lines.map((line) => line.ys), dots.map((dot) => dot.low), dots.map((dot) => dot.high)]) {
      const range = extent(values);
      if (range) [low, high] = [Math.min(low, range[0]), Math.max(high, range[1])];
    }
    if (!xDomain || low > high) return null;
    const toX = scale(xDomain[0] === xDomain[1] ? padded(xDomain) : xDomain, [MARGIN.left, width - MARGIN.right]);
    const yDomain = padded([low, high]);
    const toY = scale(yDomain, [height - MARGIN.bottom, MARGIN.top]);
    axes(svg, { width, height, toX, toY, xTicks: iterationTicks(xDomain, width), yTicks: niceTicks(...yDomain, 4) });

    const plotWidth = width - MARGIN.left - MARGIN.right;
    for (const { ys, color, thin } of lines) {
      const points = decimate(xs, ys, xDomain, plotWidth);
      svg.append(
        s(thin ? "path.otca-line.otca-thin" : "path.otca-line", { d: linePath(points, toX, toY), stroke: color }),
      );
      for (const [x, y] of lonePoints(points)) svg.append(s("circle", { cx: toX(x), cy: toY(y), r: 2, fill: color }));
    }
    const dense = dots.length * DOT_ROOM > plotWidth;
    if (dense) {
      // Dots that touch each other would hide the curve: a line says the same.
      const means = decimate(dots.map(({ iteration }) => iteration), dots.map(({ mean }) => mean), xDomain, plotWidth);
      svg.append(s("path.otca-line.otca-evaluated", { d: linePath(means, toX, toY) }));
    }
    for (const { iteration, mean, low: from, high: to } of dense ? [] : dots) {
      const x = toX(iteration);
      svg.append(
        s("line.otca-error-bar", { x1: x, x2: x, y1: toY(from), y2: toY(to) }),
        s("circle.otca-dot", { cx: x, cy: toY(mean), r: 2.8 }),
      );
    }

    for (const { iteration } of marks) {
      const x = toX(iteration - 0.5);
      if (x >= MARGIN.left) svg.append(s("line.otca-change", { x1: x, x2: x, y1: MARGIN.top, y2: height - MARGIN.bottom }));
    }

    return lazyProbe(() => lineProbe(model, toX));
  }, options);
}

/**
 * What stands at each iteration of a line chart.
 *
 * @param {{xs: Numbers, lines: {name: string, ys: Values}[], dots?: Dots, marks?: Change[]}} model
 * @param {(value: number) => number} toX
 */
function lineProbe({ xs, lines, dots = [], marks = [] }, toX) {
  // Evaluations lie between iterations too: one was made before the first.
  const stops = [...new Set([...xs, ...dots.map((dot) => dot.iteration)])].sort((a, b) => a - b);
  return probeOf(stops.map(toX), (index) => {
    const row = xs.indexOf(stops[index]);
    const dot = dots.find(({ iteration }) => iteration === stops[index]);
    const values = row < 0 ? [] : lines.map(({ ys, name }) => [name, significant(known(ys[row]))].filter(Boolean).join(" "));
    const mark = marks.find(({ iteration }) => iteration === stops[index]);
    return [
      `${TEXT.iterations(stops[index], stops[index])}: ${values.join(", ")}`,
      dot && TEXT.evaluation(dot),
      mark && t("changed: {changes}", { changes: mark.lines.join("; ") }),
    ]
      .filter(Boolean)
      .join(" · ");
  });
}

/**
 * Stacked bars: `model.parts` [{name, ys, color}] over `model.xs`, each bar the mean of a stretch of iterations.
 *
 * @param {import("./chart.js").Caption} options
 */
export function stackedBars(options) {
  /** @typedef {{rest: string, xs: Numbers, parts: {name: string, ys: Values, color: string}[], unit: string}} Model */
  return chart((svg, /** @type {Model} */ { xs, parts, unit }, width, height) => {
    const columns = Math.floor((width - MARGIN.left - MARGIN.right) / 5);
    const bins = parts.map(({ ys }) => binMeans(xs, ys, columns));
    const { edges } = bins[0];
    const totals = edges.slice(1).map((_, bin) => bins.reduce((sum, { means }) => sum + (means[bin] ?? 0), 0));
    const toX = scale([edges[0], edges[edges.length - 1]], [MARGIN.left, width - MARGIN.right]);
    const toY = scale([0, Math.max(...totals) * 1.05 || 1], [height - MARGIN.bottom, MARGIN.top]);
    axes(svg, {
      width,
      height,
      toX,
      toY,
      xTicks: iterationTicks([xs[0], xs[xs.length - 1]], width),
      yTicks: niceTicks(0, Math.max(...totals) * 1.05 || 1, 4),
    });
    totals.forEach((_, bin) => {
      const x = toX(edges[bin]);
      const barWidth = Math.max(0.5, toX(edges[bin + 1]) - x - 1);
      let base = 0;
      parts.forEach(({ color }, part) => {
        const value = bins[part].means[bin] ?? 0;
        const y = toY(base + value);
        svg.append(s("rect", { x, width: barWidth, y, height: Math.max(0, toY(base) - y), fill: color }));
        base += value;
      });
    });
    return probeOf(
      edges.slice(1).map((edge, bin) => (toX(edges[bin]) + toX(edge)) / 2),
      (bin) => {
        const values = parts.map(({ name }, part) => `${name} ${significant(bins[part].means[bin])}`);
        return `${stretch(edges, bin)}: ${values.join(", ")} ${unit}`;
      },
    );
  }, options);
}

/**
 * `model.rows` [{step, ys}] over `model.xs` in viridis, with a bar that says what a colour means.
 *
 * @param {import("./chart.js").Caption & {steps: number, rowLabel: string}} options
 */
export function stepHeatmap({ steps, rowLabel, ...options }) {
  /** @typedef {{rest: string, xs: Numbers, rows: {step: number, ys: Values}[]}} Model */
  const height = MARGIN.top + MARGIN.bottom + Math.min(220, Math.max(56, steps * 15));
  const right = MARGIN.right + 50; // room for the colour bar and its numbers
  return chart(
    (svg, /** @type {Model} */ { xs, rows }, width) => {
      const plot = { left: MARGIN.left, right: width - right, top: MARGIN.top, bottom: height - MARGIN.bottom };
      const bins = rows.map(({ ys }) => binMeans(xs, ys, Math.floor(plot.right - plot.left)));
      const { edges } = bins[0];
      const range = extent(bins.flatMap(({ means }) => means));
      if (!range) return null;
      const toShade = scale(range[0] === range[1] ? padded(range) : range, [0, 1]);
      const toX = scale([edges[0], edges[edges.length - 1]], [plot.left, plot.right]);
      const toY = scale([0, rows.length], [plot.top, plot.bottom]);

      const cells = picture(edges.length - 1, rows.length, (bin, row) => {
        const value = bins[row].means[bin];
        return value === null ? null : sequential(toShade(value), 1);
      });
      const image = (/** @type {string} */ href, /** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ wide, /** @type {number} */ high) =>
        s("image.otca-cells", { href, x, y, width: wide, height: high, preserveAspectRatio: "none" });
      svg.append(image(cells, plot.left, plot.top, plot.right - plot.left, plot.bottom - plot.top));

      const every = Math.ceil(rows.length / ((plot.bottom - plot.top) / 13));
      rows.forEach(({ step }, row) => {
        if (row % every === 0) svg.append(label(plot.left - 5, toY(row + 0.5), step, "end"));
      });
      iterationLabels(svg, iterationTicks([xs[0], xs[xs.length - 1]], plot.right), toX, plot.right, plot.bottom + 9);
      svg.append(
        label((plot.left + plot.right) / 2, height - 6, TEXT.iteration, "middle"),
        s(
          "text.otca-axis-label",
          {
            transform: `translate(9 ${(plot.top + plot.bottom) / 2}) rotate(-90)`,
            "text-anchor": "middle",
            "dominant-baseline": "middle",
          },
          rowLabel,
        ),
      );

      const barX = plot.right + 10;
      svg.append(
        image(
          picture(1, 64, (_, row) => sequential(63 - row, 63)),
          barX,
          plot.top,
          9,
          plot.bottom - plot.top,
        ),
      );
      const toBar = scale(range[0] === range[1] ? padded(range) : range, [plot.bottom, plot.top]);
      for (const value of [range[0], (range[0] + range[1]) / 2, range[1]]) {
        svg.append(
          label(
            barX + 13,
            Math.min(plot.bottom - 4, Math.max(plot.top + 4, toBar(value))),
            significant(value),
            "start",
          ),
        );
      }

      return probeOf(
        edges.slice(1).map((edge, bin) => (toX(edges[bin]) + toX(edge)) / 2),
        (bin) => {
          const values = rows
            .map(({ step }, row) => /** @type {[number, number]} */ ([step, bins[row].means[bin]]))
            .filter(([, value]) => value !== null);
          if (!values.length) return `${stretch(edges, bin)}: ${t("not recorded")}`;
          const [best, most] = values.reduce((a, b) => (b[1] > a[1] ? b : a));
          const [worst, least] = values.reduce((a, b) => (b[1] < a[1] ? b : a));
          const range = { most: significant(most), best: TEXT.step(best), least: significant(least), worst: TEXT.step(worst) };
          return `${stretch(edges, bin)}: ${t("most {most} ({best}), least {least} ({worst})", range)}`;
        },
      );
    },
    { ...options, height },
  );
}

/**
 * The whole iterations that a bin covers.
 *
 * @param {number[]} edges
 * @param {number} bin
 */
function stretch(edges, bin) {
  const from = Math.ceil(edges[bin]);
  return TEXT.iterations(from, Math.max(from, Math.ceil(edges[bin + 1]) - 1));
}

/**
 * @param {[number, number]} range
 * @param {number} width
 */
export function iterationTicks([first, last], width) {
  return wholeTicks(first, last, Math.max(2, Math.floor(width / 80)));
}

/**
 * @param {SVGSVGElement} svg
 * @param {object} frame
 * @param {number} frame.width
 * @param {number} frame.height
 * @param {(value: number) => number} frame.toX
 * @param {(value: number) => number} frame.toY
 * @param {number[]} frame.xTicks
 * @param {number[]} frame.yTicks
 * @param {string} [frame.xLabel]
 */
export function axes(svg, { width, height, toX, toY, xTicks, yTicks, xLabel = TEXT.iteration }) {
  for (const tick of yTicks) {
    const y = toY(tick);
    svg.append(
      s("line.otca-grid", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
      label(MARGIN.left - 5, y, tickLabel(tick), "end"),
    );
  }
  iterationLabels(svg, xTicks, toX, width - MARGIN.right, height - MARGIN.bottom + 9);
  svg.append(label((MARGIN.left + width - MARGIN.right) / 2, height - 6, xLabel, "middle"));
}

/**
 * Numbers below the plot; one that would be cut off at its right end is moved in.
 *
 * @param {SVGSVGElement} svg
 * @param {number[]} ticks
 * @param {(value: number) => number} toX
 * @param {number} right
 * @param {number} y
 */
function iterationLabels(svg, ticks, toX, right, y) {
  for (const tick of ticks) {
    const text = tickLabel(tick);
    svg.append(label(Math.min(toX(tick), right + MARGIN.right - 1 - text.length * 3.2), y, text, "middle"));
  }
}

/**
 * @param {number} x
 * @param {number} y
 * @param {string | number} text
 * @param {string} anchor
 */
function label(x, y, text, anchor) {
  return s("text.otca-axis-label", { x, y, "text-anchor": anchor, "dominant-baseline": "middle" }, String(text));
}

/**
 * A data URL of columns × rows pixels; those without a colour stay transparent.
 *
 * @param {number} columns
 * @param {number} rows
 * @param {(column: number, row: number) => string | null} colorAt
 */
function picture(columns, rows, colorAt) {
  const canvas = h("canvas", { width: columns, height: rows });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const color = colorAt(column, row);
      if (!color) continue;
      context.fillStyle = color;
      context.fillRect(column, row, 1, 1);
    }
  }
  return canvas.toDataURL();
}
