// @ts-check
/**
 * Credit heatmap on every node that gives credit: samples × denoising steps, coloured by effective advantage or weight.
 * A DOM widget with a canvas in it, since the Vue renderer of ComfyUI draws nothing else.
 */
import { percent, signed, fixed } from "../lib/format.js";
import * as heatmap from "../lib/heatmap.js";
import { h } from "../sidebar/dom.js";
import { paint, themeOf } from "./heatmap_canvas.js";
import { Preview } from "./heatmap_preview.js";
import { factLines, legendItems, placeBeside, textTable } from "./heatmap_text.js";

const CELLS_HEIGHT = { least: 150, perRow: 3, most: 320 };
const AROUND = 68; // toolbar, legend and paddings
const PREVIEW_HEIGHT = 150;
const WIDGET_MARGIN = 10; // which ComfyUI leaves around a DOM widget
const SHARPEST = 4; // pixels a CSS pixel at most: memory grows with its square

/** @type {OurWidget} */
export const heatmapWidget = {
  fits: ({ name, output }) => output.includes("OTCA_CREDIT") || name === "OTCA_StepwiseGain", // credit and fusion in one
  create: (node, comfy) => new Heatmap(node, comfy),
};

const HOLD =
  "Keep prompts and noise: then a change of w_min or of the fusion re-runs only credit and what follows. " +
  "Each Run still updates the model, unless the update (GRPO Step, Matching Step) is bypassed.";

/** What the user chose is kept with the node, so that it is saved with the workflow. */
/** @type {Record<string, string>} */
const CHOICES = { "heatmap color": "advantage", "heatmap order": "advantage", "heatmap objective": "" };

class Heatmap {
  state = heatmap.EMPTY;
  /** @type {heatmap.Cell | null} */
  selected = null;
  /** @type {heatmap.Cell | null} */
  hovered = null;

  // What follows from the state and from the user's choices, once there is a credit.
  /** @type {heatmap.Group[]} */
  groups = [];
  /** @type {number[]} */
  samples = []; // from top to bottom
  /** @type {number[]} */
  rowsOfGroups = [];
  /** @type {ReturnType<typeof heatmap.field>} */
  field = { values: [], neutral: 0, limit: 1 };
  /** @type {Value[][]} */
  meansOf = []; // of all samples, then of each group
  /** @type {heatmap.Layout | null} */
  place = null;

  switches = [
    this.switch("heatmap color", [
      ["advantage", "Ã", "Colour: effective advantage Ã = w·z. Orange steps are reinforced, purple ones discouraged"],
      ["weight", "w", "Colour: weight w, how much of the sample's credit the step gets"],
    ]),
    this.switch("heatmap order", [
      ["advantage", "by advantage", "Rows: best fused advantage z on top, within each prompt"],
      ["sampled", "as sampled", "Rows: in the order in which they were sampled"],
    ]),
  ];
  objective = h("select.otca-heatmap-objective", {
    "aria-label": "Objective",
    title: "Objective: its own weights w and its part in Ã, or those of all together",
    onchange: () => {
      this.node.properties["heatmap objective"] = this.objective.value;
      this.refresh();
    },
  });
  canvas = h("canvas", {
    tabindex: "0",
    role: "application",
    "aria-roledescription": "heatmap",
    onpointermove: (/** @type {any} */ event) => this.hover(event),
    onpointerleave: () => this.unhover(),
    onclick: (/** @type {any} */ event) => this.click(event),
    onkeydown: (/** @type {any} */ event) => this.key(event),
    onblur: () => this.unhover(),
  });
  context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
  empty = h("p.otca-heatmap-empty", {}, "No credit yet. Queue the graph to see which steps earn it.");
  stage = h("div.otca-heatmap-stage", {}, this.canvas, this.empty);
  note = h("p.otca-heatmap-note", { role: "status" }, "");
  legend = h("ul.otca-heatmap-legend", { "aria-label": "Objectives and their share of the advantage" });
  live = h("div.otca-hidden", { "aria-live": "polite" });
  table = h("div.otca-hidden");
  tooltip = h("div.otca-tooltip", { "aria-hidden": "true" });
  hold = h("button", { type: "button", title: HOLD, onclick: () => this.toggleHold() }, "hold samples");
  holdSwitch = h("div.otca-switch", {}, this.hold);

  /**
   * @param {GraphNode} node
   * @param {Comfy} comfy
   */
  constructor(node, comfy) {
    this.node = node;
    this.comfy = comfy;
    this.preview = new Preview(comfy, (isOpen, hadFocus) => this.previewToggled(isOpen, hadFocus));
    const bar = h("div.otca-heatmap-bar", {}, ...this.switches.map(({ root }) => root), this.objective, this.holdSwitch);
    this.root = h(
      "div",
      { class: "otca-heatmap", role: "group", "aria-label": "Credit heatmap" },
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
        this.selected = null; // rows have moved
        this.refresh();
      };
      return { value, button: h("button", { type: "button", title, "aria-label": title, onclick }, label) };
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
    this.objective.replaceChildren(...["", ...names].map((name) => h("option", { value: name }, name || "all objectives")));
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
    this.showHold(); // on any occasion: the graph does not tell when a control changes
    if (kind !== "credit" && kind !== "advantages") return;
    const state = heatmap.received(this.state, kind, data);
    if (state === this.state) return;
    if (state.credit !== this.state.credit) this.preview.clear();
    this.state = state;
    this.selected = null;
    this.refresh();
  }

  /** Builds everything again but the size of the canvas: after a result or a switch. */
  refresh() {
    const { credit, advantages } = this.state;
    this.empty.hidden = credit !== null;
    this.canvas.hidden = credit === null;
    this.canvas.setAttribute("aria-label", `${heatmap.summary(this.state)} Arrow keys move, Enter shows the picture at a step.`);
    this.note.textContent = credit && !advantages ? "Weights w. Ã appears when a Fuse node has run on this credit." : "";
    this.note.hidden = !this.note.textContent;
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
    const { shown: filled } = this;
    if (filled) {
      this.groups = heatmap.groupedRows(filled, this.choice("heatmap order"));
      this.samples = this.groups.flatMap(({ samples }) => samples);
      this.rowsOfGroups = this.groups.map(({ samples }) => samples.length);
      this.field = heatmap.field(filled, this.view);
      this.meansOf = [this.samples, ...this.groups.map(({ samples }) => samples)].map((samples) =>
        heatmap.columnMeans(this.field.values, samples),
      );
    }
    this.table.replaceChildren(...(credit ? textTable(credit, this.view, this.field.values, this.samples) : []));
    this.root.style.minHeight = `${this.minHeight()}px`; // the Vue renderer asks CSS, not getMinHeight
    this.comfy.growNode(this.node);
    this.draw();
  }

  minHeight() {
    const { least, perRow, most } = CELLS_HEIGHT;
    const rows = this.state.credit?.weights.length ?? 0;
    const cells = Math.min(most, Math.max(least, rows * perRow));
    return cells + heatmap.FRAME_HEIGHT + AROUND + (this.preview.isOpen ? PREVIEW_HEIGHT : 0);
  }

  draw() {
    const { credit, advantages } = this.state;
    const { clientWidth: width, clientHeight: height } = this.stage;
    if (!credit || width === 0 || height === 0) return;
    const ratio = Math.min(SHARPEST, devicePixelRatio * Math.max(1, this.comfy.graphZoom()));
    const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) [this.canvas.width, this.canvas.height] = pixels;
    this.place = heatmap.layout({
      ...{ width, height, rowsOfGroups: this.rowsOfGroups },
      ...{ columns: credit.trained.length, shares: advantages?.shares ?? null },
    });
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const { place, selected, hovered } = this;
    paint(this.context, { ...this.picture(), credit, place, selected, hovered }, themeOf(this.root));
  }

  picture() {
    const group = this.groupOf(this.hovered ?? this.selected);
    const deviations = this.meansOf.flat().filter((mean) => mean !== null).map((mean) => mean - this.field.neutral);
    return {
      ...{ view: this.view, field: this.field, groups: this.groups, samples: this.samples },
      means: this.meansOf[group + 1],
      meansLabel: group < 0 ? "all" : `prompt ${group + 1}`,
      // One scale for all groups, so that their bars compare. A trace of room each way keeps it defined for uniform credit.
      meansLimit: { above: Math.max(1e-9, ...deviations), below: Math.max(1e-9, ...deviations.map((value) => -value)) },
    };
  }

  /** @param {heatmap.Cell | null} cell */
  groupOf(cell) {
    return cell ? this.groups.findIndex(({ samples }) => samples.includes(this.samples[cell.row])) : -1;
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
    if (target.kind === "cell") return factLines(heatmap.cellFacts(state, this.samples[target.row], target.column));
    if (target.kind === "group") {
      const { prompt, number, samples } = this.groups[target.group];
      return [h("p", {}, `prompt ${number}, ${samples.length} samples`), h("p", {}, prompt)];
    }
    if (target.kind === "share") {
      const share = advantages?.shares[target.objective] ?? 0;
      return [h("p", {}, `${advantages?.names[target.objective]}: ${percent(share)} of the advantage`)];
    }
    const { means, meansLabel } = this.picture();
    const mean = means[target.column];
    const text = this.view === "advantage" ? `mean Ã ${signed(mean, 3)}` : `mean w ${fixed(mean, 3)}`;
    return [h("p", {}, heatmap.stepName(credit, target.column)), h("p", {}, `${text} of ${meansLabel}`)];
  }

  /** @param {MouseEvent} event */
  click(event) {
    const target = this.target(event);
    if (target?.kind !== "cell") return;
    this.select({ row: target.row, column: target.column });
    this.openPreview();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (!this.state.credit || event.ctrlKey || event.metaKey || event.altKey) return;
    const columns = this.state.credit.trained.length;
    const from = this.selected ?? { row: 0, column: 0 };
    const cell = heatmap.moved(from, event.key, this.rowsOfGroups, columns);
    if (cell) {
      this.select(this.selected ? cell : from); // the first key only shows where one is
      if (this.preview.isOpen) this.openPreview();
    } else if (event.key === "Enter" || event.key === " ") {
      this.select(from);
      this.openPreview();
    } else if (event.key === "Escape" && this.preview.isOpen) {
      this.preview.close();
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
      this.live.textContent = heatmap.spoken(heatmap.cellFacts(shown, this.samples[cell.row], cell.column));
    }
    this.draw();
  }

  // ---- The picture at a step

  openPreview() {
    const { shown } = this;
    if (!shown || !this.selected) return;
    const sample = this.samples[this.selected.row];
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
    this.node.setSize([width, height + (isOpen ? PREVIEW_HEIGHT : -PREVIEW_HEIGHT)]);
    this.comfy.growNode(this.node);
    if (hadFocus) this.canvas.focus();
  }

  dispose() {
    this.observer.disconnect();
    for (const stop of this.stops) stop();
    this.tooltip.remove();
    this.preview.dispose();
  }
}
