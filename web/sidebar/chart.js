// @ts-check
/** The frame of every chart: caption, legend, and a cursor that shows values to the pointer and to the arrow keys. */
import { nearestIndex } from "../lib/curves.js";
import { t } from "../lib/language.js";
import { h, s, setText } from "./dom.js";

const KEYS = t("arrow keys move along the iterations");

export const MARGIN = { top: 6, right: 10, bottom: 28, left: 50 };

/**
 * What a chart is called beside its drawing.
 * @typedef {{title: string, badge?: string | null, legend?: {label: string, color: string}[]}} Caption
 */

/**
 * Says what stands at a pixel, and where to mark it; `next` walks along what is drawn.
 * @typedef {{at(x: number): {x: number, text: string}, next(x: number, move: number): number}} Probe
 */

/**
 * A chart that redraws itself when its width changes.
 *
 * @template {{rest: string}} Model `rest` is the text while nobody points at the chart
 * @param {(svg: SVGSVGElement, model: Model, width: number, height: number) => Probe | null} draw null: there is nothing to draw
 * @param {Caption & {height?: number}} options
 */
export function chart(draw, { title, badge, legend = [], height = 132 }) {
  const readout = h("span.otca-chart-readout", { "aria-live": "off" });
  const svg = s("svg.otca-chart-plot", { role: "img", tabindex: "0", "aria-label": `${title}; ${KEYS}` });
  const element = h(
    "figure.otca-chart",
    {},
    h(
      "figcaption.otca-chart-caption",
      {},
      h("span.otca-chart-title", { title }, title),
      badge && h("span.otca-badge", {}, badge),
      readout,
    ),
    legend.length > 0 &&
      h(
        "div.otca-legend",
        {},
        legend.map(({ label, color }) =>
          h("span.otca-legend-entry", {}, h("span.otca-swatch", { style: `background: ${color}` }), label),
        ),
      ),
    svg,
  );
  const cursor = s("line.otca-chart-cursor");
  /** @type {Model | null} */
  let model = null;
  /** @type {(() => Model) | null} */
  let pending = null; // what is to be drawn
  let isSeen = false;
  let width = 0;
  /** @type {Probe | null} */
  let probe = null;
  /** @type {number | null} */
  let at = null; // where the user points, in pixels

  function show() {
    const mark = at === null ? null : probe?.at(at);
    setText(readout, mark ? mark.text : (model?.rest ?? ""));
    if (!mark) return cursor.remove();
    const line = { x1: mark.x, x2: mark.x, y1: MARGIN.top, y2: height - MARGIN.bottom };
    for (const [name, value] of Object.entries(line)) cursor.setAttribute(name, String(value));
    svg.append(cursor);
  }

  function redraw() {
    if (!model || width < MARGIN.left + MARGIN.right + 20) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    probe = draw(svg, model, width, height);
    show();
  }

  svg.style.height = `${height}px`;
  svg.addEventListener("pointermove", (event) => {
    // Inside a magnified graph, a pixel on the screen is not one of ours.
    const box = svg.getBoundingClientRect();
    at = ((event.clientX - box.left) / box.width) * svg.clientWidth;
    show();
  });
  for (const leaving of ["pointerleave", "blur"]) {
    svg.addEventListener(leaving, () => {
      at = null;
      show();
    });
  }
  // Read aloud to who moves along the chart; every chart's last value, at each iteration, would be noise.
  svg.addEventListener("focus", () => readout.setAttribute("aria-live", "polite"));
  svg.addEventListener("blur", () => readout.setAttribute("aria-live", "off"));
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !probe) return;
    event.preventDefault();
    event.stopPropagation();
    at = at === null ? svg.clientWidth - MARGIN.right : probe.next(at, move);
    show();
  });
  /** Draws what is new, if anybody can see it: of a long run's many charts few are in view. */
  function drawSeen() {
    if (!pending || !isSeen) return;
    model = pending();
    pending = null;
    redraw();
  }

  const observer = new ResizeObserver(() => {
    width = svg.clientWidth; // asked here alone: amid changes of the page it would have to be laid out for each chart
    redraw();
  });
  observer.observe(svg);
  const sight = new IntersectionObserver(
    (entries) => {
      isSeen = entries[entries.length - 1].isIntersecting;
      drawSeen();
    },
    // the sidebar scrolls within the page, of whose edges alone rootMargin speaks
    /** @type {IntersectionObserverInit} */ ({ rootMargin: "200px", scrollMargin: "200px" }),
  );
  sight.observe(element);

  return {
    element,
    /** @param {() => Model} next computes what is drawn, once it is seen */
    update(next) {
      pending = next;
      drawSeen();
    },
    dispose() {
      observer.disconnect();
      sight.disconnect();
    },
  };
}

/**
 * A probe that is made when somebody first points at the chart: a curve that grows is drawn more often than it is asked.
 *
 * @param {() => Probe} make
 * @returns {Probe}
 */
export function lazyProbe(make) {
  /** @type {Probe | null} */
  let made = null;
  const probe = () => (made ??= make());
  return { at: (x) => probe().at(x), next: (x, move) => probe().next(x, move) };
}

/**
 * Finds the nearest of some positions.
 *
 * @param {number[]} positions ascending
 * @param {(index: number) => string} describe
 * @returns {Probe}
 */
export function probeOf(positions, describe) {
  return {
    at(x) {
      const index = nearestIndex(positions, x);
      return { x: positions[index], text: describe(index) };
    },
    next: (x, move) => positions[Math.min(positions.length - 1, Math.max(0, nearestIndex(positions, x) + move))],
  };
}
