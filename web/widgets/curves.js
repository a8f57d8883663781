// @ts-check
/** The Training Run's own small curves: one line a reward, below its name and its running mean. */
import { OBJECTIVES } from "../lib/color.js";
import { decimate, dotPath, extent, linePath, lonePoints, padded, runningMean, scale } from "../lib/curves.js";
import { count, significant } from "../lib/format.js";
import { t } from "../lib/language.js";
import { mergeRows, rewardPanels, series } from "../lib/runs.js";
import { h, s, setText } from "../sidebar/dom.js";

const TEXT = {
  empty: t("No iteration yet. Queue the graph: each queued prompt is one iteration."),
  title: (/** @type {string} */ run, /** @type {number} */ iterations) => `${run} · ${count(iterations, t("{count} iteration"), t("{count} iterations"))}`,
  heldOut: t("held out"),
  line: (/** @type {string} */ name, /** @type {string} */ mean) => t("{name}: running mean {mean}", { name, mean }),
};

const LINE = { width: 200, height: 26 };
const ROW_HEIGHT = 34;
const AROUND = 34; // heading and paddings
const EMPTY_HEIGHT = 56;
const BRAKE_HEIGHT = 120; // six lines that say why the run ended

/** @type {OurWidget} */
export const curvesWidget = {
  fits: (definition) => definition.name === "OTCA_TrainingRun",
  create: (node, comfy) => new Curves(node, comfy),
};

class Curves {
  /** @type {string | null} */
  run = null;
  /** @type {Row[]} */
  rows = [];
  /** @type {Change[]} */
  changes = [];
  heading = h("p.otca-curves-heading", { role: "status" }, TEXT.empty);
  brake = h("p.otca-warning", { role: "status" });
  list = h("ul.otca-curves-list");
  root = h("div.otca-curves", {}, this.heading, this.brake, this.list);

  /**
   * @param {GraphNode} node
   * @param {Comfy} comfy
   */
  constructor(node, comfy) {
    this.node = node;
    this.comfy = comfy;
    comfy.passGesturesToGraph(this.root);
    const rows = () => (this.list.children.length ? AROUND + ROW_HEIGHT * this.list.children.length : EMPTY_HEIGHT);
    const least = () => rows() + (this.brake.textContent ? BRAKE_HEIGHT : 0);
    comfy.addElement(node, "otca_curves", this.root, { least });
  }

  /**
   * An iteration was recorded: {run, iteration, brake}; brake says why the run ended there, if it did.
   *
   * @param {string} kind
   * @param {any} data
   */
  async show(kind, data) {
    if (kind !== "run") return;
    setText(this.brake, data.brake ?? "");
    const last = this.rows.at(-1)?.iteration ?? 0;
    if (data.run !== this.run || data.iteration < last) {
      Object.assign(this, { run: data.run, rows: [] });
    } else if (data.iteration === last) {
      return; // a cached node's result, sent again
    }
    const after = this.rows.at(-1)?.iteration ?? 0;
    try {
      const read = await this.comfy.getMetrics(data.run, after);
      if (data.run !== this.run) return;
      this.rows = mergeRows(this.rows, read.rows);
      this.changes = read.changes;
      this.draw();
    } catch (error) {
      setText(this.heading, error.message);
    }
  }

  draw() {
    const panels = rewardPanels(this.rows, []);
    setText(this.heading, TEXT.title(this.run ?? "", this.rows.at(-1)?.iteration ?? 0));
    this.list.replaceChildren(
      ...panels.map((panel, index) => this.entry(panel, OBJECTIVES[index % OBJECTIVES.length])),
    );
    this.comfy.growNode(this.node);
  }

  /**
   * @param {{name: string, heldOut: boolean, key: string}} panel
   * @param {string} color
   */
  entry({ name, heldOut, key }, color) {
    const xs = series(this.rows, "iteration");
    const ys = series(this.rows, key);
    const means = runningMean(ys);
    const range = extent(ys);
    const plot = s("svg.otca-curves-line", {
      viewBox: `0 0 ${LINE.width} ${LINE.height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": TEXT.line(name, significant(means.at(-1))),
    });
    if (range) {
      /** @type {[number, number]} */
      const domain = [xs[0], xs[xs.length - 1]];
      // A single point stands at the left, where a run begins.
      const toX = scale([domain[0], Math.max(domain[1], domain[0] + 1)], [2, LINE.width - 2]);
      const toY = scale(padded(range), [LINE.height - 1, 1]);
      for (const values of [ys, means]) {
        const points = decimate(xs, values, domain, LINE.width);
        const thin = values === ys ? ".otca-thin" : "";
        plot.append(s(`path.otca-line${thin}`, { d: linePath(points, toX, toY), stroke: color }));
        const dots = dotPath(lonePoints(points), toX, toY);
        if (dots) plot.append(s(`path.otca-line.otca-point${thin}`, { d: dots, stroke: color }));
      }
      for (const { iteration, lines } of this.changes) {
        const x = toX(iteration - 0.5);
        if (x > 0) plot.append(s("line.otca-change", { x1: x, x2: x, y1: 0, y2: LINE.height }, s("title", {}, lines.join("; "))));
      }
    }
    return h(
      "li",
      {},
      h(
        "p.otca-curves-name",
        { title: name },
        `${name} `,
        h("span.otca-curves-value", {}, significant(means.at(-1))),
        heldOut && h("span.otca-badge", {}, TEXT.heldOut),
      ),
      plot,
    );
  }
}
