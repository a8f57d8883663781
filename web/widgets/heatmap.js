// @ts-check
/**
 * Credit heatmap on every node that gives credit: samples × denoising steps, coloured by effective advantage or weight.
 * A DOM widget with a canvas in it, since the Vue renderer of ComfyUI draws nothing else.
 */
import { percent, signed, fixed } from "../lib/format.js";
import * as heatmap from "../lib/heatmap.js";
import { READABLE, colorScale, openedBy, rowAt, sectionsOf } from "../lib/heatmap_rows.js";
import { t } from "../lib/language.js";
import { h } from "../sidebar/dom.js";
import { paint, themeOf } from "./heatmap_canvas.js";
import { Preview } from "./heatmap_preview.js";
import { factLines, legendItems, noteLines, placeBeside, textTable } from "./heatmap_text.js";

const CELLS_HEIGHT = { least: 150, perRow: READABLE, most: 320 };
const AROUND = 68; // toolbar, legend and paddings
const NOTE_HEIGHT = 34; // of two lines
const PREVIEW_HEIGHT = 194;
const HEIGHT = "height without the preview"; // property of a node that shows it: what it goes back to
const WIDGET_MARGIN = 10; // which ComfyUI leaves around a DOM widget
const SHARPEST = 4; // pixels a CSS pixel at most: memory grows with its square

const GRADIENT_NODE = "OTCA_RewardGradientStep"; // whose update says where its gradient came from

/** @type {OurWidget} */
export const heatmapWidget = {
  // Stepwise Gain is credit and fusion in one.
  fits: ({ name, output }) => output.includes("OTCA_CREDIT") || name === "OTCA_StepwiseGain" || name === GRADIENT_NODE,
  create: (node, comfy) => new Heatmap(node, comfy),
};

const OF_CREDIT = {
  name: t("Credit heatmap"),
  empty: t("No credit yet. Queue the graph to see which steps earn it."),
  symbol: "Ã",
  advantage: t("Colour: effective advantage Ã = w·z. Orange steps are reinforced, purple ones discouraged"),
  weight: t("Colour: weight w, how much of the sample's credit the step gets"),
  sorted: t("Rows: best fused advantage z on top, within each prompt"),
  shares: t("Objectives and their share of the advantage"),
  hold: t("Keep prompts and noise: then a change of the smallest weight (w_min) or of the fusion re-runs only credit and what follows. Each Run still updates the model, unless the step (GRPO Step, Matching Step, Reward Gradient Step) is bypassed."),
};
const OF_GRADIENT = {
  name: t("Gradient heatmap"),
  empty: t("Nothing yet. Queue the graph to see which steps the rewards' gradient comes from."),
  symbol: "g",
  advantage: t("Colour: gradient g. The more orange a step, the more of the rewards' gradient came from it"),
  weight: t("Colour: share w, the step's part of its sample's gradient. An even share is 1"),
  sorted: t("Rows: largest gradient on top, within each prompt"),
  shares: t("Rewards and their share of the gradient"),
  hold: t("Keep prompts and noise, so that a Run differs from the one before only by what you changed. Each Run still updates the model."),
};

/** What the user chose is kept with the node, so that it is saved with the workflow. */
/** @type {Record<string, string>} */
const CHOICES = { "heatmap color": "advantage", "heatmap order": "advantage", "heatmap objective": "" };

class Heatmap {
  state = heatmap.EMPTY;
  /** @type {heatmap.Cell | null} */
  selected = null;
  /** @type {heatmap.Cell | null} */
  hovered = null;

  /** @type {number[][]} */
  opened = []; // samples that the user asked to see one by one, the last at the end

  // What follows from the state, from the user's choices and from the room there is, once there is a credit.
  /** @type {import("../lib/heatmap_rows.js").Section[]} */
  sections = []; // from top to bottom
  /** @type {ReturnType<typeof heatmap.field>} */
  field = { values: [], neutral: 0 };
  /** @type {Value[][]} */
  rows = []; // their values
  scale = { limit: 1, beyond: 0, largest: 0 };
  /** @type {Value[][]} */
  meansOf = []; // of all samples that are shown, then of each section
  /** @type {heatmap.Layout | null} */
  place = null;

  objective = h("select.otca-heatmap-objective", {
    "aria-label": t("Objective"),
    title: t("Objective: its own weights w and its part in Ã, or those of all together"),
    onchange: () => {
      this.node.properties["heatmap objective"] = this.objective.value;
      this.refresh();
    },
  });
  canvas = h("canvas", {
    tabindex: "0",
    role: "application",
    "aria-roledescription": t("heatmap"),
    onpointermove: (/** @type {any} */ event) => this.hover(event),
    onpointerleave: () => this.unhover(),
    onclick: (/** @type {any} */ event) => this.click(event),
    onkeydown: (/** @type {any} */ event) => this.key(event),
    onblur: () => this.unhover(),
  });
  context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
  empty = h("p.otca-heatmap-empty");
  stage = h("div.otca-heatmap-stage", {}, this.canvas, this.empty);
  note = h("p.otca-heatmap-note");
  legend = h("ul.otca-heatmap-legend");
  live = h("div.otca-hidden", { "aria-live": "polite" });
  table = h("div.otca-hidden");
  tooltip = h("div.otca-tooltip", { "aria-hidden": "true" });
  hold = h("button", { type: "button", onclick: () => this.toggleHold() }, t("hold samples"));
  holdSwitch = h("div.otca-switch", {}, this.hold);
  /** @type {Credit | null} */
  coming = null;
  back = h("button", { type: "button", onclick: () => this.fold() }, t("back to the means"));
  backSwitch = h("div.otca-switch", {}, this.back);

  /**
   * @param {GraphNode} node
   * @param {Comfy} comfy
   */
  constructor(node, comfy) {
    this.node = node;
    this.comfy = comfy;
    const says = comfy.nodeDefinition(node)?.name === GRADIENT_NODE ? OF_GRADIENT : OF_CREDIT;
    this.switches = [
      this.switch("heatmap color", [
        ["advantage", says.symbol, says.advantage],
        ["weight", "w", says.weight],
      ]),
      this.switch("heatmap order", [
        ["advantage", t("sorted"), says.sorted],
        ["sampled", t("as sampled"), t("Rows: in the order in which they were sampled")],
      ]),
    ];
    this.empty.textContent = says.empty;
    this.hold.title = says.hold;
    this.legend.setAttribute("aria-label", says.shares);
    this.preview = new Preview(comfy, (isOpen, hadFocus) => this.previewToggled(isOpen, hadFocus));
    const bar = h("div.otca-heatmap-bar", {}, ...this.switches.map(({ root }) => root), this.objective, this.holdSwitch, this.backSwitch);
    this.root = h(
      "div",
      { class: "otca-heatmap", role: "group", "aria-label": says.name },
      ...[bar, this.note, this.stage, this.legend, this.preview.element, this.live, this.table],
    );
    comfy.passGesturesToGraph(this.root);
    const widget = comfy.addElement(node, "otca_heatmap", this.root, { least: () => this.minHeight() + 2 * WIDGET_MARGIN });
    comfy.noticeQueuedValues(widget);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.stage);
    this.stops = [comfy.onZoom(() => this.draw()), comfy.onTheme(() => this.draw())];
    if (node.size[0] < 320) node.setSize([320, node.size[1]]);
    this.refresh();
  }

  /**
   * Buttons of which one is pressed.
   *
   * @param {string} name
   * @param {[value: string, label: string, title: string][]} choices
   */
  switch(name, choices) {
    const buttons = choices.map(([value, label, title]) => {
      const onclick = () => {
        this.node.properties[name] = value;
        this.refresh();
      };
      const spoken = title.includes(label) && title; // of a symbol, what it means
      return { value, button: h("button", { type: "button", title, "aria-label": spoken, onclick }, label) };
    });
    const root = h("div.otca-switch", { role: "group" }, ...buttons.map(({ button }) => button));
    return { name, buttons, root };
  }

  toggleHold() {
    this.comfy.holdSamples(!this.comfy.samplesAreHeld());
    this.showHold();
  }

  /** Read from the graph, where the user may have set the controls one by one. */
  showHold() {
    this.hold.setAttribute("aria-pressed", String(this.comfy.samplesAreHeld()));
    this.holdSwitch.hidden = this.state.credit === null;
  }

  /**
   * @param {string} name
   * @returns {any} one of the switch's values
   */
  choice(name) {
    return this.node.properties?.[name] ?? CHOICES[name];
  }

  /** What is shown: of one objective, where it is chosen and has weights of its own. */
  get shown() {
    const { credit, advantages } = this.state;
    return credit && heatmap.ofObjective({ credit, advantages }, this.choice("heatmap objective"));
  }

  showObjectives() {
    const names = this.state.credit?.objectives ?? [];
    this.objective.hidden = names.length === 0;
    this.objective.replaceChildren(...["", ...names].map((name) => h("option", { value: name }, name || t("all objectives"))));
    const chosen = this.choice("heatmap objective");
    this.objective.value = names.includes(chosen) ? chosen : "";
  }

  get view() {
    return heatmap.shownView(this.state, this.choice("heatmap color"));
  }

  /**
   * A result of this node, or of a fuse node that used its credit.
   *
   * @param {string} kind
   * @param {any} data
   */
  show(kind, data) {
    if (kind === "opened") this.restoreHeight();
    this.showHold(); // on any occasion: the graph does not tell when a control changes
    if (kind === "credit" && this.state.advantages && heatmap.haveSameCells(data, this.state.credit)) {
      this.coming = data; // shown with its advantages, which come next: else every iteration would show other colours first
    } else if (kind === "credit" || kind === "advantages") {
      if (this.coming && kind === "advantages") this.receive("credit", this.coming);
      this.receive(kind, data);
    } else if (kind === "queue" && this.coming) {
      this.receive("credit", this.coming); // it was the end of the prompt, and nothing was made of it
    }
  }

  /**
   * @param {"credit" | "advantages"} kind
   * @param {any} data
   */
  receive(kind, data) {
    this.coming = null;
    const state = heatmap.received(this.state, kind, data);
    if (state === this.state) return;
    this.unhover(); // what the tooltip says was of the iteration before
    const before = this.state.credit;
    this.state = state;
    if (state.credit !== before) {
      this.preview.forget();
      if (!heatmap.haveSameCells(state.credit, before)) {
        this.opened = [];
        this.selected = null;
        this.preview.close();
      }
    }
    this.refresh();
    if (this.preview.isOpen) this.openPreview(); // of the same sample in the new iteration
  }

  /** Builds everything again but the size of the canvas: after a result, a switch or a click that shows other rows. */
  refresh() {
    const { credit, advantages } = this.state;
    const chosen = this.selected && this.sampleAt(this.selected);
    this.empty.hidden = credit !== null;
    this.canvas.hidden = credit === null;
    this.canvas.setAttribute("aria-label", `${heatmap.summary(this.state)} ${t("Arrow keys move, Enter shows the picture at a step.")}`);
    for (const { name, buttons, root } of this.switches) {
      root.hidden = credit === null;
      const shown = name === "heatmap color" ? this.view : this.choice(name);
      for (const { value, button } of buttons) {
        const pressed = advantages ? shown : name === "heatmap color" ? "weight" : "sampled";
        button.setAttribute("aria-pressed", String(value === pressed));
        button.disabled = value === "advantage" && !advantages;
      }
    }
    this.showHold();
    this.legend.replaceChildren(...legendItems(advantages));
    this.showObjectives();
    if (this.shown) this.arrange(this.shown);
    this.selected = chosen === null || !this.selected ? null : this.cellOf(chosen, this.selected.column);
    this.showNote();
    this.backSwitch.hidden = this.opened.length === 0;
    this.root.style.minHeight = `${this.minHeight()}px`; // the Vue renderer asks CSS, not getMinHeight
    this.comfy.growNode(this.node);
    this.draw();
  }

  /**
   * Decides on the rows, for the room that there is.
   *
   * @param {heatmap.Filled} filled
   */
  arrange(filled) {
    const { advantages } = filled;
    this.room = this.cellsHeight();
    this.field = heatmap.field(filled, this.view);
    this.sections = sectionsOf(heatmap.groupedRows(filled, this.choice("heatmap order")), this.room, {
      open: this.opened.at(-1) ?? null,
      advantage: this.view === "advantage" && advantages && !heatmap.isGradient(filled.credit) ? (sample) => advantages.advantage[sample] : null,
    });
    const mean = (/** @type {number[]} */ samples) => heatmap.columnMeans(this.field.values, samples);
    this.rows = this.sections.flatMap(({ rows }) => rows.map(({ samples }) => mean(samples)));
    this.scale = colorScale(this.rows, this.view === "weight" ? 2 * this.field.neutral : 0);
    this.meansOf = [this.sections.flatMap(({ samples }) => samples), ...this.sections.map(({ samples }) => samples)].map(mean);
    this.table.replaceChildren(...textTable(filled.credit, this.view, this.sections, this.rows));
  }

  get isFolded() {
    return this.sections.some(({ rows }) => rows.some(({ samples }) => samples.length > 1));
  }

  /** Of the stage as it is; before it is on the page, of the one that the node has room for. */
  cellsHeight() {
    const { least, perRow, most } = CELLS_HEIGHT;
    const samples = this.state.credit?.weights.length ?? 0;
    const needed = Math.min(most, Math.max(least, samples * perRow));
    return Math.max(needed, this.stage.clientHeight - heatmap.FRAME_HEIGHT);
  }

  showNote() {
    const { credit, advantages } = this.state;
    const lines = [];
    if (credit?.run) lines.push(`${credit.run}.`);
    if (heatmap.isGradient(credit)) lines.push(t("Orange: where the gradient came from."));
    if (advantages?.watched?.length) {
      lines.push(t("Only watched, not trained on: {names}.", { names: advantages.watched.join(", ") }));
    }
    if (credit && !advantages) lines.push(t("Weights w. Ã appears when a Fuse node has run on this credit."));
    if (credit) {
      const { length: samples } = credit.groups;
      const objective = credit.objectives?.includes(this.choice("heatmap objective")) ? this.choice("heatmap objective") : "";
      const prompts = new Set(credit.groups).size;
      lines.push(...noteLines({ samples, prompts, folded: this.isFolded, scale: this.scale, objective }));
    }
    this.note.textContent = lines.join(" ");
    this.note.hidden = lines.length === 0;
  }

  minHeight() {
    const { least, perRow, most } = CELLS_HEIGHT;
    const samples = this.state.credit?.weights.length ?? 0;
    const cells = Math.min(most, Math.max(least, samples * perRow));
    const more = (this.note.textContent ? NOTE_HEIGHT : 0) + (this.preview.isOpen ? PREVIEW_HEIGHT : 0);
    return cells + heatmap.FRAME_HEIGHT + AROUND + more;
  }

  draw() {
    const { credit, advantages } = this.state;
    const { clientWidth: width, clientHeight: height } = this.stage;
    if (!credit || width === 0 || height === 0) return;
    if (this.room !== this.cellsHeight()) return this.refresh(); // more rows fit, or fewer
    const ratio = Math.min(SHARPEST, devicePixelRatio * Math.max(1, this.comfy.graphZoom()));
    const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) [this.canvas.width, this.canvas.height] = pixels;
    this.place = heatmap.layout({
      ...{ width, height, rowsOfGroups: this.rowsOfSections },
      ...{ columns: credit.trained.length, shares: advantages?.shares ?? null },
    });
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const { place, selected, hovered } = this;
    paint(this.context, { ...this.picture(), credit, place, selected, hovered }, themeOf(this.root));
  }

  get rowsOfSections() {
    return this.sections.map(({ rows }) => rows.length);
  }

  picture() {
    const cell = this.hovered ?? this.selected;
    const section = cell ? this.sections.indexOf(this.at(cell)[0]) : -1;
    const { number, last } = this.sections[section] ?? {};
    const { view, scale, sections, rows } = this;
    const { neutral } = this.field;
    const deviations = this.meansOf.flat().filter((mean) => mean !== null).map((mean) => mean - neutral);
    return {
      ...{ view, neutral, scale, sections, rows },
      means: this.meansOf[section + 1],
      meansLabel: number === undefined ? null : number === last ? String(number) : `${number}–${last}`,
      // One scale for all sections, so that their bars compare. A trace of room each way keeps it defined for uniform credit.
      meansLimit: { above: Math.max(1e-9, ...deviations), below: Math.max(1e-9, ...deviations.map((value) => -value)) },
    };
  }

  /** @param {heatmap.Cell} cell */
  at({ row }) {
    return rowAt(this.sections, row);
  }

  /**
   * A sample of a cell's row; null where there is no such row any more.
   *
   * @param {heatmap.Cell} cell
   */
  sampleAt(cell) {
    return cell.row < this.rows.length ? this.at(cell)[1].samples[0] : null;
  }

  /**
   * @param {number} sample
   * @param {number} column
   * @returns {heatmap.Cell | null}
   */
  cellOf(sample, column) {
    const row = this.sections.flatMap(({ rows }) => rows).findIndex(({ samples }) => samples.includes(sample));
    return row < 0 ? null : { row, column };
  }

  /**
   * @param {heatmap.Filled} filled
   * @param {heatmap.Cell} cell
   */
  facts(filled, cell) {
    const [section, row] = this.at(cell);
    if (row.samples.length === 1) return heatmap.cellFacts(filled, row.samples[0], cell.column);
    return heatmap.rowFacts(filled, section, row, cell.column);
  }

  // ---- Pointer and keys

  /**
   * What lies below the pointer. The graph's zoom scales the canvas on the screen.
   *
   * @param {MouseEvent} event
   */
  target(event) {
    if (!this.place) return null;
    const box = this.canvas.getBoundingClientRect();
    const scale = box.width / this.canvas.offsetWidth;
    return heatmap.hit(this.place, (event.clientX - box.left) / scale, (event.clientY - box.top) / scale);
  }

  /** @param {MouseEvent} event */
  hover(event) {
    const target = this.target(event);
    const cell = target?.kind === "cell" ? target : null;
    if (cell?.row !== this.hovered?.row || cell?.column !== this.hovered?.column) {
      this.hovered = cell;
      this.draw();
    }
    this.canvas.style.cursor = cell ? "pointer" : "default";
    const { shown } = this;
    if (!target || !shown) return this.tooltip.remove();
    this.tooltip.replaceChildren(...this.tooltipLines(target, shown));
    document.body.append(this.tooltip);
    placeBeside(this.tooltip, event.clientX, event.clientY);
  }

  unhover() {
    this.tooltip.remove();
    if (!this.hovered) return;
    this.hovered = null;
    this.draw();
  }

  /**
   * @param {heatmap.Target} target
   * @param {heatmap.Filled} state
   */
  tooltipLines(target, state) {
    const { credit, advantages } = state;
    if (target.kind === "cell") return factLines(this.facts(state, target));
    if (target.kind === "group") {
      const { prompt, number, last, samples } = this.sections[target.group];
      const which = number === last ? t("prompt {number}", { number }) : t("prompts {numbers}", { numbers: `${number}–${last}` });
      return [h("p", {}, `${which}, ${t("{count} samples", { count: samples.length })}`), h("p", {}, prompt)];
    }
    if (target.kind === "share") {
      const share = advantages?.shares[target.objective] ?? 0;
      const name = advantages?.names[target.objective] ?? "";
      const values = { name, share: percent(share) };
      const text = heatmap.isGradient(credit) ? t("{name}: {share} of the gradient", values) : t("{name}: {share} of the advantage", values);
      return [h("p", {}, text)];
    }
    const { means, meansLabel } = this.picture();
    const mean = means[target.column];
    const arrived = heatmap.isGradient(credit) ? `g ${fixed(mean, 3)}` : `Ã ${signed(mean, 3)}`;
    const figure = this.view === "advantage" ? arrived : `w ${fixed(mean, 3)}`;
    const text = heatmap.meanOf(meansLabel, figure);
    return [h("p", {}, heatmap.stepName(credit, target.column)), h("p", {}, text)];
  }

  /** @param {MouseEvent} event */
  click(event) {
    const target = this.target(event);
    if (target?.kind !== "cell") return;
    this.act({ row: target.row, column: target.column });
  }

  /**
   * Shows the samples of a row that stands for several; of one sample, the picture at the step.
   *
   * @param {heatmap.Cell} cell
   */
  act(cell) {
    if (this.at(cell)[1].samples.length === 1) {
      this.select(cell);
      return this.openPreview();
    }
    const samples = openedBy(this.sections, cell.row);
    this.opened.push(samples);
    this.hovered = null;
    this.tooltip.remove();
    this.preview.close();
    this.refresh();
    const first = this.sections.flatMap(({ samples: order }) => order).find((sample) => samples.includes(sample));
    if (first !== undefined) this.select(this.cellOf(first, cell.column));
  }

  /** Back to the means. */
  fold() {
    this.opened.pop();
    this.preview.close();
    this.refresh();
    this.canvas.focus();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (!this.state.credit || event.ctrlKey || event.metaKey || event.altKey) return;
    const columns = this.state.credit.trained.length;
    const from = this.selected ?? { row: 0, column: 0 };
    const cell = heatmap.moved(from, event.key, this.rowsOfSections, columns);
    if (cell) {
      this.select(this.selected ? cell : from); // the first key only shows where one is
      if (this.preview.isOpen) this.openPreview();
    } else if (event.key === "Enter" || event.key === " ") {
      this.act(from);
    } else if (event.key === "Escape" && this.preview.isOpen) {
      this.preview.close();
    } else if (event.key === "Escape" && this.opened.length) {
      this.fold();
    } else if (event.key === "Escape" && this.selected) {
      this.select(null);
    } else {
      return;
    }
    this.unhover(); // where the pointer rests is no longer of interest
    // ComfyUI would move or deselect the node.
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {heatmap.Cell | null} cell */
  select(cell) {
    const { shown } = this;
    this.selected = shown && cell;
    this.live.textContent = "";
    if (shown && cell) {
      this.live.textContent = heatmap.spoken(this.facts(shown, cell));
    }
    this.draw();
  }

  // ---- The picture at a step

  openPreview() {
    const { shown } = this;
    const [sample, ...more] = this.selected ? this.at(this.selected)[1].samples : [];
    if (!shown || !this.selected || more.length) return this.preview.close();
    const step = shown.credit.trained[this.selected.column];
    this.preview.open(shown.credit, sample, step, heatmap.cellFacts(shown, sample, this.selected.column));
  }

  /**
   * The node grows by the preview and shrinks by it again.
   *
   * @param {boolean} isOpen
   * @param {boolean} hadFocus
   */
  previewToggled(isOpen, hadFocus) {
    this.root.style.minHeight = `${this.minHeight()}px`;
    const [width, height] = this.node.size;
    if (isOpen) {
      this.node.properties[HEIGHT] = String(height);
      this.node.setSize([width, height + PREVIEW_HEIGHT]);
    }
    this.restoreHeight();
    this.comfy.growNode(this.node);
    if (hadFocus) this.canvas.focus();
  }

  /** A node that is saved, or left, while its preview is open is opened without it: it has the height of before again. */
  restoreHeight() {
    const { properties, size } = this.node;
    if (this.preview.isOpen || !properties[HEIGHT]) return;
    this.node.setSize([size[0], Number(properties[HEIGHT])]);
    delete properties[HEIGHT];
  }

  dispose() {
    this.observer.disconnect();
    for (const stop of this.stops) stop();
    this.tooltip.remove();
    this.preview.dispose();
  }
}
