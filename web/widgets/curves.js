// @ts-check
/** What Training Run shows of its run: which one goes on, a curve and an evaluation a reward, pictures before and after. */
import { OBJECTIVES } from "../lib/color.js";
import { decimate, dotPath, errorBars, extent, linePath, lonePoints, niceTicks, padded, runningMean, scale, tickLabel } from "../lib/curves.js";
import { count, significant } from "../lib/format.js";
import { t } from "../lib/language.js";
import { agreement, learned, secondsToCome } from "../lib/learned.js";
import { beginFrom, resumeOnCanvas } from "../lib/newrun.js";
import { formatDuration, mergeRows, rewardPanels, series } from "../lib/runs.js";
import { h, s, setText } from "../sidebar/dom.js";
import { stripView } from "./strip.js";

const TEXT = {
  empty: t("No iteration yet. Press Run: each Run is one iteration. The first one takes longer, since it loads all models."),
  goesOnAt: (/** @type {string} */ run, /** @type {number} */ iteration, /** @type {string} */ input, /** @type {number} */ value) => t("The next Run continues {run} ({iteration}), at {input} {value}.", { run, iteration, input, value }),
  goOn: (/** @type {string} */ run, /** @type {number} */ iteration) => t("Continue {run} ({iteration})", { run, iteration }),
  agreement: t("agreement"),
};

const LINE = { width: 200, height: 64 };
const ROW_HEIGHT = 118; // name, rise, LINE.height, iterations
const AROUND = 100; // headings, legend and paddings
const SIDES = 40;
const WIDE = 440; // from here on two curves stand beside each other
const EMPTY_HEIGHT = 84;
const TICKS = 2;
const BRAKE_HEIGHT = 120; // six lines that say why the run ended
const WARNING_HEIGHT = 84; // four lines
const QUESTION_HEIGHT = 52; // a line more, and two buttons

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
  /** @type {Evaluation[]} */
  evaluations = [];
  pictured = 0; // of them, those whose pictures are shown
  /** @type {number[]} */
  took = []; // seconds of each prompt since the page was loaded, evaluations included
  began = 0; // when the prompt that runs was begun; 0: none runs
  waiting = 0; // prompts, the one that runs included
  heading = h("p.otca-curves-heading", { role: "status" }, TEXT.empty);
  brake = h("p.otca-warning", { role: "status" });
  unwatched = h("p.otca-warning", { role: "status" });
  coming = h("span");
  goOn = h("button.otca-button", { type: "button", onclick: () => this.answer((other) => this.continueOther(other)) });
  beginFrom = h("button.otca-button", { type: "button", onclick: () => this.answer(([id]) => beginFrom(this.comfy, id, this.next)) });
  question = h("span.otca-curves-question", { hidden: true }, this.goOn, this.beginFrom);
  next = ""; // the run that the next prompt would begin
  nothing = h("p.otca-curves-nothing", { role: "alert", hidden: true });
  list = h("ul.otca-curves-list");
  legend = h("p.otca-curves-legend", { hidden: true }, t("Line: the mean of each iteration's pictures. Dots: evaluations on the same prompts and seeds, ± standard error by prompt."));
  /** @type {Coming["other"]} */
  other = null;

  /**
   * @param {GraphNode} node
   * @param {Comfy} comfy
   */
  constructor(node, comfy) {
    this.node = node;
    this.comfy = comfy;
    this.strip = stripView(comfy);
    const coming = h("p.otca-curves-coming", { role: "status" }, this.coming, this.question);
    this.root = h("div.otca-curves", {}, this.heading, this.brake, this.unwatched, coming, this.nothing, this.list, this.legend, this.strip.element);
    comfy.passGesturesToGraph(this.root);
    comfy.addElement(node, "otca_curves", this.root, { least: () => this.least() });
  }

  least() {
    const count = this.list.children.length;
    const warning = this.unwatched.textContent ? WARNING_HEIGHT : 0;
    const question = this.question.hidden ? 0 : QUESTION_HEIGHT;
    if (!count) return EMPTY_HEIGHT + warning + question;
    const rows = Math.ceil(count / (this.node.size[0] < WIDE ? 1 : 2));
    const brake = this.brake.textContent ? BRAKE_HEIGHT : 0;
    return AROUND + ROW_HEIGHT * rows + brake + warning + question + this.strip.height();
  }

  /**
   * An iteration was recorded: {run, iteration, brake}, where brake says why the run ended there; a prompt began; it has nothing to do; the queue's length has changed: {waiting};
   * which run would go on: Coming.
   *
   * @param {string} kind
   * @param {any} data
   */
  show(kind, data) {
    if (kind === "started") {
      this.began = performance.now();
      this.nothing.hidden = true;
      if (!this.rows.length) setText(this.heading, t("The first iteration is at work. It takes longer: it loads all models, and may evaluate before training."));
    }
    if (kind === "cached") {
      this.nothing.hidden = false;
      setText(
        this.nothing,
        `${t("This Run had nothing to do: nothing has changed since the last one, so nothing was trained.")} ${this.comfy.samplesAreHeld() ? t("Fix: switch off hold samples.") : t("Fix: let the seed of SDE Sampler move on (control after generate: increment), or change a value.")}`,
      );
    }
    if (kind === "queue") {
      this.waiting = data.waiting;
      this.coming.hidden = data.waiting > 0; // it was said of the first of those that wait
      if (this.rows.length) this.entitle();
      else if (!data.waiting) setText(this.heading, TEXT.empty);
    }
    if (kind === "coming") this.foresee(data);
    if (kind === "run") return this.recorded(data);
  }

  /** @param {{run: string, iteration: number, brake?: string | null}} data */
  async recorded(data) {
    setText(this.brake, data.brake ?? "");
    const last = this.rows.at(-1)?.iteration ?? 0;
    if (data.run !== this.run || data.iteration < last) {
      Object.assign(this, { run: data.run, rows: [], took: [], pictured: 0 });
    } else if (data.iteration === last) {
      return; // a cached node's result, sent again
    }
    if (this.began) this.took.push((performance.now() - this.began) / 1000);
    this.began = 0;
    const after = this.rows.at(-1)?.iteration ?? 0;
    try {
      const read = await this.comfy.getMetrics(data.run, after);
      if (data.run !== this.run) return;
      this.rows = mergeRows(this.rows, read.rows);
      this.changes = read.changes;
      this.evaluations = read.evaluations;
      this.draw();
      if (this.evaluations.length !== this.pictured) await this.showPictures(data.run);
    } catch (error) {
      setText(this.heading, error.message);
    }
  }

  /** @param {string} run */
  async showPictures(run) {
    const { grids } = await this.comfy.getJson(`/otca/runs/${encodeURIComponent(run)}/samples`);
    if (run !== this.run) return;
    this.strip.update(run, grids, this.evaluations.at(-1)?.since, this.node.size[0] - SIDES);
    this.pictured = this.evaluations.length;
    this.comfy.growNode(this.node);
  }

  /** @param {Partial<Coming>} coming none of it: this node is not in what is queued */
  foresee({ run, iteration = 0, other = null, at = [], still, unwatched = [], problem }) {
    if (problem || !run) {
      this.question.hidden = true;
      return setText(this.coming, problem ?? (this.node.mode ? t("Muted or bypassed: no Run is recorded.") : ""));
    }
    const where = this.comfy.goesOnAt(at);
    const goesOn = where ? TEXT.goesOnAt(run, iteration, ...where) : t("The next Run continues {run} ({iteration}).", { run, iteration });
    const next = iteration
      ? goesOn
      : [other && t("{run} was trained by another method.", { run: other[0] }), t("The next Run begins a new run: {run}.", { run })]
          .filter(Boolean)
          .join(" ");
    setText(this.coming, still ? `${t("The learning rate is 0: nothing is trained.")} ${next}` : next);
    const warning = unwatched.length ? t("{judges} is asked with the text encoder of the model that is trained, and no other reward is held out. Fix: hold another reward out, so that it shows what the judge does not see.", { judges: unwatched.join(", ") }) : "";
    if (this.unwatched.textContent !== warning) {
      setText(this.unwatched, warning);
      this.comfy.growNode(this.node);
    }
    Object.assign(this, { other, next: run });
    if (this.question.hidden === Boolean(other)) {
      this.question.hidden = !other;
      this.comfy.growNode(this.node);
    }
    if (other) setText(this.goOn, TEXT.goOn(...other));
    setText(this.beginFrom, t("Begin {name} from it", { name: run }));
    if (iteration) this.recorded({ run, iteration }); // shown even where this page has not seen it trained
    else if (this.run && this.run !== run && !this.waiting) this.clear();
  }

  /** The run that comes has no iteration yet: what is shown is another's. */
  clear() {
    Object.assign(this, { run: null, rows: [], changes: [], evaluations: [], took: [], pictured: 0 });
    setText(this.heading, TEXT.empty);
    setText(this.brake, "");
    this.list.replaceChildren();
    this.legend.hidden = true;
    this.strip.element.hidden = true;
    this.comfy.growNode(this.node);
  }

  /** @param {[string, number]} other */
  async continueOther([id, iteration]) {
    const { prompt } = await this.comfy.getJson(`/otca/runs/${encodeURIComponent(id)}/workflow`);
    await resumeOnCanvas(this.comfy, { id, iteration }, prompt);
  }

  /** @param {(other: [string, number]) => Promise<void>} action */
  async answer(action) {
    try {
      if (this.other) await action(this.other);
    } catch (error) {
      this.comfy.toast("error", t("Resume on canvas"), error.message);
    }
  }

  entitle() {
    const left = secondsToCome(this.took, this.waiting);
    const title = (`${(this.run ?? "")} · ${count(this.rows.at(-1)?.iteration ?? 0, t("{count} iteration"), t("{count} iterations"))}`);
    setText(this.heading, [title, left !== null && t("about {time} left", { time: formatDuration(left) })].filter(Boolean).join(" · "));
  }

  draw() {
    const panels = rewardPanels(this.rows, this.evaluations);
    const agreed = this.rows.flatMap((row) => {
      const measured = agreement(row);
      return measured ? [{ iteration: row.iteration, measured }] : [];
    });
    const last = agreed.at(-1);
    const evaluations = agreed.map(({ iteration, measured }) => ({ iteration, rewards: { [TEXT.agreement]: { std: null, held_out: true, ...measured } } }));
    this.entitle();
    this.list.replaceChildren(
      ...panels.map((panel, index) => this.entry({ ...panel, evaluations: this.evaluations }, OBJECTIVES[index % OBJECTIVES.length])),
    );
    if (last) this.list.append(this.entry({ name: TEXT.agreement, heldOut: true, key: "", evaluations, words: last.measured.words }, OBJECTIVES[panels.length % OBJECTIVES.length]));
    this.legend.hidden = !panels.length && !last;
    this.comfy.growNode(this.node);
  }

  /**
   * @param {{name: string, heldOut: boolean, key: string, evaluations: Evaluation[], words?: string | null}} panel `words`: in place of the latest value
   * @param {string} color
   */
  entry({ name, heldOut, key, evaluations, words }, color) {
    const xs = series(this.rows, "iteration");
    const ys = series(this.rows, key);
    const means = runningMean(ys);
    const evaluated = errorBars(evaluations, name);
    const latest = significant(ys.some(Number.isFinite) ? means.at(-1) : evaluated.at(-1)?.mean);
    const range = extent([...ys, ...evaluated.flatMap(({ low, high }) => [low, high])]);
    const axis = h("div.otca-curves-axis", { "aria-hidden": "true" });
    const iterations = h("p.otca-curves-iterations", { "aria-hidden": "true" });
    const plot = s("svg.otca-curves-line", {
      viewBox: `0 0 ${LINE.width} ${LINE.height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": t("{name}: running mean {mean}", { name, mean: latest }),
    });
    if (range) {
      /** @type {[number, number]} */
      const domain = [Math.min(xs[0], evaluated[0]?.iteration ?? xs[0]), xs[xs.length - 1]];
      const ends = domain[0] === domain[1] ? [domain[0]] : domain;
      iterations.append(...ends.map((iteration, at) => h("span", {}, at ? String(iteration) : `${t("iteration")} ${iteration}`)));
      // A single point stands at the left, where a run begins.
      const toX = scale([domain[0], Math.max(domain[1], domain[0] + 1)], [3, LINE.width - 3]);
      const shown = padded(range);
      const toY = scale(shown, [LINE.height - 1, 1]);
      const few = niceTicks(...shown, TICKS);
      const ticks = few.length > 1 ? few : niceTicks(...shown, 2 * TICKS);
      for (const tick of ticks.filter((_, index) => index % Math.ceil(ticks.length / (TICKS + 1)) === 0)) {
        const y = toY(tick);
        plot.append(s("line.otca-grid", { x1: 0, x2: LINE.width, y1: y, y2: y }));
        axis.append(h("span", { style: `top: ${(100 * y) / LINE.height}%` }, tickLabel(tick)));
      }
      for (const values of [ys, means]) {
        const points = decimate(xs, values, domain, LINE.width);
        const thin = values === ys ? ".otca-thin" : "";
        plot.append(s(`path.otca-line${thin}`, { d: linePath(points, toX, toY), stroke: color }));
        const dots = dotPath(lonePoints(points), toX, toY);
        if (dots) plot.append(s(`path.otca-line.otca-point${thin}`, { d: dots, stroke: color }));
      }
      for (const { iteration, low, high } of evaluated) {
        const x = toX(iteration);
        plot.append(s("line.otca-error-bar", { x1: x, x2: x, y1: toY(low), y2: toY(high) }));
      }
      const dots = evaluated.map(({ iteration, mean }) => /** @type {[number, number]} */ ([iteration, mean]));
      if (dots.length) plot.append(s("path.otca-evaluation", { d: dotPath(dots, toX, toY) }));
      for (const { iteration, lines } of this.changes) {
        const x = toX(iteration - 0.5);
        if (x > 0) plot.append(s("line.otca-change", { x1: x, x2: x, y1: 0, y2: LINE.height }, s("title", {}, lines.join("; "))));
      }
    }
    const progress = learned(evaluations, name);
    return h(
      "li",
      {},
      h(
        "p.otca-curves-name",
        { title: name },
        `${name} `,
        h("span.otca-curves-value", {}, words ?? progress?.ends ?? latest),
        heldOut && h("span.otca-badge", {}, t("held out")),
      ),
      progress && h("p.otca-curves-name.otca-curves-rise", { "data-tone": progress.tone, title: progress.inPoints ? t("A point is a hundredth: 3 points are 0.03.") : "" }, progress.rise),
      h("div.otca-curves-plot", {}, axis, plot),
      iterations,
    );
  }
}
