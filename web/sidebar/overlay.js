// @ts-check
/** Curves of several runs over each other: one colour a run, the same axes. */
import { decimate, extent, linePath, lonePoints, nearestIndex, niceTicks, padded, runningMean, scale } from "../lib/curves.js";
import { significant } from "../lib/format.js";
import { t } from "../lib/language.js";
import { MARGIN, chart } from "./chart.js";
import { axes, iterationTicks } from "./charts.js";
import { s } from "./dom.js";
const HEIGHT = 280;

/**
 * One run's curve. `dots`: its points are few, and each is an evaluation; else they are iterations, drawn thin beneath their mean.
 *
 * @typedef {{name: string, color: string, xs: number[], ys: Value[], dots: boolean, errors?: number[]}} Curve
 */

/** A chart of `model.curves`; `bySeconds` says what the x axis counts. */
export function overlayChart() {
  return chart(
    (svg, /** @type {{rest: string, curves: Curve[], bySeconds: boolean}} */ { curves, bySeconds }, width, height) => {
      const xDomain = extent(curves.flatMap(({ xs }) => [xs[0], xs[xs.length - 1]].filter(Number.isFinite)));
      const yRange = extent(curves.flatMap(({ ys, errors = [] }) => extent(ys.flatMap((y, index) => (y === null ? [] : [y - (errors[index] ?? 0), y + (errors[index] ?? 0)]))) ?? []));
      if (!xDomain || !yRange) return null;
      const shownX = xDomain[0] === xDomain[1] ? padded(xDomain) : xDomain;
      const toX = scale(shownX, [MARGIN.left, width - MARGIN.right]);
      const yDomain = padded(yRange);
      const toY = scale(yDomain, [height - MARGIN.bottom, MARGIN.top]);
      const xTicks = bySeconds ? niceTicks(...shownX, Math.max(2, Math.floor(width / 90))) : iterationTicks(xDomain, width);
      const xLabel = bySeconds ? t("seconds of training") : t("iteration");
      axes(svg, { width, height, toX, toY, xTicks, yTicks: niceTicks(...yDomain, 5), xLabel });
      const columns = width - MARGIN.left - MARGIN.right;
      const draw = (/** @type {string} */ selector, /** @type {Curve} */ { xs, color }, /** @type {Value[]} */ ys) => {
        const points = decimate(xs, ys, shownX, columns);
        svg.append(s(selector, { d: linePath(points, toX, toY), stroke: color }));
        for (const [x, y] of lonePoints(points)) svg.append(s("circle", { cx: toX(x), cy: toY(y), r: 2, fill: color }));
      };
      for (const curve of curves) if (!curve.dots) draw("path.otca-line.otca-thin", curve, curve.ys);
      for (const curve of curves) draw("path.otca-line", curve, curve.dots ? curve.ys : runningMean(curve.ys));
      for (const { xs, ys, color, errors = [] } of curves.filter(({ dots }) => dots)) {
        ys.forEach((y, index) => {
          if (y === null) return;
          const x = toX(xs[index]);
          svg.append(s("circle", { cx: x, cy: toY(y), r: 2.8, fill: color }));
          svg.append(s("line.otca-error-bar", { x1: x, x2: x, y1: toY(y - errors[index]), y2: toY(y + errors[index]), style: `stroke: ${color}` }));
        });
      }
      const span = shownX[1] - shownX[0];
      const finest = Math.max(...curves.map(({ xs }) => xs.length));
      return {
        at(pixel) {
          const x = shownX[0] + ((pixel - MARGIN.left) / columns) * span;
          const parts = curves
            .filter(({ xs }) => xs.length)
            .map(({ name, xs, ys }) => {
              const index = nearestIndex(xs, x);
              return `${name} ${significant(ys[index])}`;
            });
          const clamped = Math.min(shownX[1], Math.max(shownX[0], x));
          return { x: toX(clamped), text: `${significant(bySeconds ? clamped : Math.round(clamped), 4)}: ${parts.join(", ")}` };
        },
        next: (pixel, move) =>
          Math.min(width - MARGIN.right, Math.max(MARGIN.left, pixel + move * Math.max(1, columns / Math.max(1, finest - 1)))),
      };
    },
    { title: t("Curves of the compared runs"), height: HEIGHT },
  );
}
