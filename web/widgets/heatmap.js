/**
 * Credit heatmap on every node that gives credit: samples × denoising steps, coloured by effective advantage or weight.
 * A DOM widget with a canvas in it, since the Vue renderer of ComfyUI draws nothing else.
 */
import { OBJECTIVES } from "../lib/color.js";
import { percent, signed, fixed } from "../lib/format.js";
import * as heatmap from "../lib/heatmap.js";
import { h } from "../sidebar/dom.js";
import { paint, themeOf } from "./heatmap_canvas.js";

const CELLS_HEIGHT = { least: 150, perRow: 3, most: 320 };
const AROUND = 68; // toolbar, legend and paddings
const PREVIEW_HEIGHT = 150;
const WIDGET_MARGIN = 10; // which ComfyUI leaves around a DOM widget
const SHARPEST = 4; // pixels a CSS pixel at most: memory grows with its square
const TABLE_ROWS = 200;

export const heatmapWidget = {
  fits: ({ name, output }) => output.includes("OTCA_CREDIT") || name === "OTCA_StepwiseGain", // credit and fusion in one
  create: (node, comfy) => new Heatmap(node, comfy),
};

const HOLD =
  "Keep prompts and noise: then a change of w_min or of the fusion re-runs only credit and what follows. " +
  "Each Run still updates the model, unless GRPO Step and the nodes after it are muted.";

/** What the user chose is kept with the node, so that it is saved with the workflow. */
const CHOICES = { "heatmap color": "advantage", "heatmap order": "advantage" };

class Heatmap {
  constructor(node, comfy) {
    this.node = node;
    this.comfy = comfy;
    this.state = heatmap.EMPTY;
    this.selected = null;
    this.hovered = null;
    this.previews = new Map(); // route → object URL
    this.build();
    const options = {
      serialize: false,
      hideOnZoom: false,
      getMinHeight: () => this.minHeight() + 2 * WIDGET_MARGIN,
      getValue: () => "",
      setValue: () => {},
    };
    const widget = node.addDOMWidget("otca_heatmap", "OTCA_HEATMAP", this.root, options);
    widget.serialize = false; // else it would be an input of the node, and change ComfyUI's cache key
    comfy.noticeQueuedValues(widget);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.stage);
    this.stops = [comfy.onZoom(() => this.draw()), comfy.onTheme(() => this.draw())];
    if (node.size[0] < 320) node.setSize([320, node.size[1]]);
    this.refresh();
  }

  build() {
    this.switches = [
      this.switch("heatmap color", [
        ["advantage", "Ã", "Colour: effective advantage Ã = w·z. Orange steps are reinforced, purple ones discouraged"],
        ["weight", "w", "Colour: weight w, how much of the sample's credit the step gets"],
      ]),
      this.switch("heatmap order", [
        ["advantage", "by advantage", "Rows: best fused advantage z on top, within each prompt"],
        ["sampled", "as sampled", "Rows: in the order in which they were sampled"],
      ]),
    ];
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "heatmap",
      onpointermove: (event) => this.hover(event),
      onpointerleave: () => this.unhover(),
      onclick: (event) => this.click(event),
      onkeydown: (event) => this.key(event),
      onblur: () => this.unhover(),
    });
    this.empty = h("p.otca-heatmap-empty", {}, "No credit yet. Queue the graph to see which steps earn it.");
    this.stage = h("div.otca-heatmap-stage", {}, this.canvas, this.empty);
    this.note = h("p.otca-heatmap-note", { role: "status" }, "");
    this.legend = h("ul.otca-heatmap-legend", { "aria-label": "Objectives and their share of the advantage" });
    this.preview = h("figure.otca-heatmap-preview", { hidden: true });
    this.live = h("div.otca-hidden", { "aria-live": "polite" });
    this.table = h("div.otca-hidden");
    this.tooltip = h("div.otca-tooltip", { "aria-hidden": "true" });
    this.hold = h("button", { type: "button", title: HOLD, onclick: () => this.toggleHold() }, "hold samples");
    this.holdSwitch = h("div.otca-switch", {}, this.hold);
    const bar = h("div.otca-heatmap-bar", {}, ...this.switches.map(({ root }) => root), this.holdSwitch);
    this.root = h(
      "div",
      { class: "otca-heatmap", role: "group", "aria-label": "Credit heatmap" },
      ...[bar, this.note, this.stage, this.legend, this.preview, this.live, this.table],
    );
    this.comfy.passGesturesToGraph(this.root);
  }

  /** Buttons of which one is pressed. */
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
    this.hold.setAttribute("aria-pressed", this.comfy.samplesAreHeld());
    this.holdSwitch.hidden = this.state.credit === null;
  }

  choice(name) {
    return this.node.properties?.[name] ?? CHOICES[name];
  }

  get view() {
    return heatmap.shownView(this.state, this.choice("heatmap color"));
  }

  /** A result of this node, or of a fuse node that used its credit. */
  show(kind, data) {
    this.showHold(); // on any occasion: the graph does not tell when a control changes
    if (kind !== "credit" && kind !== "advantages") return;
    const state = heatmap.received(this.state, kind, data);
    if (state === this.state) return;
    if (state.credit !== this.state.credit) this.forgetPreviews();
    this.state = state;
    this.selected = null;
    this.refresh();
  }

  /** Everything anew but the size of the canvas: after a result or a switch. */
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
        button.setAttribute("aria-pressed", value === (advantages ? shown : name === "heatmap color" ? "weight" : "sampled"));
        button.disabled = value === "advantage" && !advantages;
      }
    }
    this.showHold();
    this.legend.replaceChildren(...this.legendItems());
    if (credit) {
      this.groups = heatmap.groupedRows(this.state, this.choice("heatmap order"));
      this.samples = this.groups.flatMap(({ samples }) => samples);
      this.rowsOfGroups = this.groups.map(({ samples }) => samples.length);
      this.field = heatmap.field(this.state, this.view);
      this.meansOf = [this.samples, ...this.groups.map(({ samples }) => samples)].map((samples) =>
        heatmap.columnMeans(this.field.values, samples),
      );
    }
    this.table.replaceChildren(...this.textTable());
    this.root.style.minHeight = `${this.minHeight()}px`; // the Vue renderer asks CSS, not getMinHeight
    this.comfy.growNode(this.node);
    this.draw();
  }

  minHeight() {
    const { least, perRow, most } = CELLS_HEIGHT;
    const rows = this.state.credit?.weights.length ?? 0;
    const cells = Math.min(most, Math.max(least, rows * perRow));
    return cells + heatmap.FRAME_HEIGHT + AROUND + (this.preview.hidden ? 0 : PREVIEW_HEIGHT);
  }

  legendItems() {
    const { advantages } = this.state;
    return (advantages?.names ?? []).map((name, k) => {
      const swatch = h("span.otca-swatch", { style: `background: ${OBJECTIVES[k % OBJECTIVES.length]}` });
      return h("li", {}, swatch, `${name} `, h("b", {}, percent(advantages.shares[k])));
    });
  }

  textTable() {
    const { credit } = this.state;
    if (!credit || this.samples.length > TABLE_ROWS) return [];
    const write = this.view === "advantage" ? signed : fixed;
    const head = credit.trained.map((_, column) => h("th", { scope: "col" }, heatmap.stepName(credit, column)));
    const rows = this.samples.map((sample) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, `sample ${sample}, ${credit.prompts[credit.groups[sample]] ?? ""}`),
        ...this.field.values[sample].map((value) => h("td", {}, value === null ? "masked" : write(value))),
      ),
    );
    const caption = this.view === "advantage" ? "Effective advantage Ã" : "Step weight w";
    return [h("table", {}, h("caption", {}, caption), h("tr", {}, h("td"), ...head), ...rows)];
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.stage;
    if (!this.state.credit || width === 0 || height === 0) return;
    const ratio = Math.min(SHARPEST, devicePixelRatio * Math.max(1, this.comfy.graphZoom()));
    const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) [this.canvas.width, this.canvas.height] = pixels;
    const { credit, advantages } = this.state;
    this.place = heatmap.layout({
      ...{ width, height, rowsOfGroups: this.rowsOfGroups },
      ...{ columns: credit.trained.length, shares: advantages?.shares ?? null },
    });
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(context, { ...this.picture(), place: this.place, selected: this.selected, hovered: this.hovered }, themeOf(this.root));
  }

  picture() {
    const group = this.groupOf(this.hovered ?? this.selected);
    const deviations = this.meansOf.flat().filter((mean) => mean !== null).map((mean) => mean - this.field.neutral);
    return {
      ...{ credit: this.state.credit, view: this.view, field: this.field, groups: this.groups, samples: this.samples },
      means: this.meansOf[group + 1],
      meansLabel: group < 0 ? "all" : `prompt ${group + 1}`,
      // One scale for all groups, so that their bars compare. A trace of room each way keeps it defined for uniform credit.
      meansLimit: { above: Math.max(1e-9, ...deviations), below: Math.max(1e-9, ...deviations.map((value) => -value)) },
    };
  }

  groupOf(cell) {
    return cell ? this.groups.findIndex(({ samples }) => samples.includes(this.samples[cell.row])) : -1;
  }

  // ---- Pointer and keys

  /** The event's place in the canvas's own pixels; the graph's zoom scales it on the screen. */
  target(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = box.width / this.canvas.offsetWidth;
    return heatmap.hit(this.place, (event.clientX - box.left) / scale, (event.clientY - box.top) / scale);
  }

  hover(event) {
    const target = this.target(event);
    const cell = target?.kind === "cell" ? target : null;
    if (cell?.row !== this.hovered?.row || cell?.column !== this.hovered?.column) {
      this.hovered = cell;
      this.draw();
    }
    this.canvas.style.cursor = cell ? "pointer" : "default";
    if (!target) return this.tooltip.remove();
    this.tooltip.replaceChildren(...this.tooltipLines(target));
    document.body.append(this.tooltip);
    placeBeside(this.tooltip, event.clientX, event.clientY);
  }

  unhover() {
    this.tooltip.remove();
    if (!this.hovered) return;
    this.hovered = null;
    this.draw();
  }

  tooltipLines(target) {
    const { credit, advantages } = this.state;
    if (target.kind === "cell") return factLines(heatmap.cellFacts(this.state, this.samples[target.row], target.column));
    if (target.kind === "group") {
      const { prompt, number, samples } = this.groups[target.group];
      return [h("p", {}, `prompt ${number}, ${samples.length} samples`), h("p", {}, prompt)];
    }
    if (target.kind === "share") {
      const name = advantages.names[target.objective];
      return [h("p", {}, `${name}: ${percent(advantages.shares[target.objective])} of the advantage`)];
    }
    const { means, meansLabel } = this.picture();
    const mean = means[target.column];
    const text = this.view === "advantage" ? `mean Ã ${signed(mean, 3)}` : `mean w ${fixed(mean, 3)}`;
    return [h("p", {}, heatmap.stepName(credit, target.column)), h("p", {}, `${text} of ${meansLabel}`)];
  }

  click(event) {
    const target = this.target(event);
    if (target?.kind !== "cell") return;
    this.select({ row: target.row, column: target.column });
    this.openPreview();
  }

  key(event) {
    if (!this.state.credit || event.ctrlKey || event.metaKey || event.altKey) return;
    const columns = this.state.credit.trained.length;
    const from = this.selected ?? { row: 0, column: 0 };
    const cell = heatmap.moved(from, event.key, this.rowsOfGroups, columns);
    if (cell) {
      this.select(this.selected ? cell : from); // the first key only shows where one is
      if (!this.preview.hidden) this.openPreview();
    } else if (event.key === "Enter" || event.key === " ") {
      this.select(from);
      this.openPreview();
    } else if (event.key === "Escape" && !this.preview.hidden) {
      this.closePreview();
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

  select(cell) {
    this.selected = cell;
    this.live.textContent = cell ? heatmap.spoken(heatmap.cellFacts(this.state, this.samples[cell.row], cell.column)) : "";
    this.draw();
  }

  // ---- The picture at a step

  async openPreview() {
    const { credit } = this.state;
    const sample = this.samples[this.selected.row];
    const step = credit.trained[this.selected.column];
    const workflow = credit.workflow_id && { workflow: credit.workflow_id };
    const cell = { node: credit.node, sample, step, made_by: credit.made_by, ...workflow };
    const route = `/otca/preview?${new URLSearchParams(cell)}`;
    const facts = heatmap.cellFacts(this.state, sample, this.selected.column);
    const frame = h("div.otca-heatmap-picture");
    const show = (...children) => frame.replaceChildren(...children);
    const close = h("button", { type: "button", "aria-label": "Close the preview", onclick: () => this.closePreview() }, "✕");
    const caption = h("figcaption", { title: facts.prompt }, ...factLines(facts));
    this.preview.replaceChildren(frame, caption, close);
    this.setPreview(true);
    this.loading?.abort();
    this.loading = new AbortController();
    const { signal } = this.loading;
    show(h("p", { role: "status" }, "Decoding…"));
    try {
      const url = this.previews.get(route) ?? (await this.comfy.getPicture(route, signal));
      if (signal.aborted) {
        if (!this.previews.has(route)) URL.revokeObjectURL(url); // of a credit that is no more
        return;
      }
      this.previews.set(route, url);
      show(h("img", { src: url, alt: `x̂0, where ${facts.place} is heading`, title: "x̂0: the picture that the model aims at from here" }));
    } catch (error) {
      if (!signal.aborted) show(h("p", { role: "alert" }, `⚠ ${error.message}`));
    }
  }

  closePreview() {
    this.loading?.abort();
    const held = this.preview.contains(document.activeElement);
    this.setPreview(false);
    if (held) this.canvas.focus();
  }

  /** The node grows by the preview and shrinks by it again. */
  setPreview(open) {
    if (this.preview.hidden !== open) return;
    this.preview.hidden = !open;
    this.root.style.minHeight = `${this.minHeight()}px`;
    const [width, height] = this.node.size;
    this.node.setSize([width, height + (open ? PREVIEW_HEIGHT : -PREVIEW_HEIGHT)]);
    this.comfy.growNode(this.node);
  }

  forgetPreviews() {
    for (const url of this.previews.values()) URL.revokeObjectURL(url);
    this.previews.clear();
    this.closePreview();
  }

  dispose() {
    this.observer.disconnect();
    for (const stop of this.stops) stop();
    this.tooltip.remove();
    this.loading?.abort();
    for (const url of this.previews.values()) URL.revokeObjectURL(url);
  }
}

/** Facts of a cell as elements: for the tooltip and for the preview's caption. */
function factLines({ prompt, place, numbers, objectives, note }) {
  const lines = [h("p.otca-prompt", {}, prompt), h("p", {}, place)];
  const values = numbers.map(({ symbol, meaning, value }) =>
    h("span", { title: meaning }, h("i", {}, symbol), ` ${value}`),
  );
  lines.push(h("p.otca-numbers", {}, ...values));
  if (objectives.length) {
    const rows = objectives.map(({ name, advantage, coefficient }, k) => {
      const swatch = h("span.otca-swatch", { style: `background: ${OBJECTIVES[k % OBJECTIVES.length]}` });
      return h("tr", {}, h("td", {}, swatch, name), h("td", {}, advantage), h("td", {}, coefficient));
    });
    const head = h("tr", {}, h("th", {}, "objective"), h("th", {}, "A"), h("th", {}, "c"));
    lines.push(h("table", {}, head, ...rows));
  }
  if (note) lines.push(h("p", {}, note));
  return lines;
}

/** Near a point of the window, on the side where there is room. */
function placeBeside(box, x, y) {
  const gap = 14;
  const { offsetWidth: width, offsetHeight: height } = box;
  const left = x + gap + width > innerWidth ? x - gap - width : x + gap;
  const top = Math.min(y + gap, innerHeight - height - 4);
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, top)}px`;
}
