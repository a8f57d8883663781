/** What ComfyUI's page gives to this extension, and what its server sends. Only the type checker reads this file. */

type Comfy = typeof import("./comfy.js");

// ---- ComfyUI's page, as far as comfy.js uses it ---------------------------------------------------------------------

declare module "*/scripts/app.js" {
  export const app: ComfyApp;
}

declare module "*/scripts/api.js" {
  export const api: ComfyApi;
}

interface ComfyApp {
  rootGraph?: Graph;
  graph: Graph;
  canvas: GraphCanvas;
  ui: { settings: EventTarget };
  extensionManager: ExtensionManager;
  graphToPrompt(graph?: Graph): Promise<{ output: Prompt; workflow: object }>;
  loadGraphData(workflow: object, clean: boolean, restoreView: boolean, name: string): Promise<void>;
  loadApiJson(prompt: Prompt, name: string): Promise<void>;
  refreshComboInNodes(): Promise<void>;
  queuePrompt(number: number, count: number): Promise<unknown>;
  registerExtension(extension: object): void;
}

interface ComfyApi {
  addEventListener(type: string, listener: (event: CustomEvent) => void): void;
  fetchApi(route: string, options?: RequestInit): Promise<Response>;
  apiURL(route: string): string;
  interrupt(prompt: string | null): Promise<void>;
}

interface ExtensionManager {
  registerSidebarTab?(tab: object): void;
  sidebarTab: {
    registerSidebarTab(tab: object): void;
    activeSidebarTabId: string | null;
    toggleSidebarTab(id: string): void;
  };
  setting: { get(id: string): unknown; set(id: string, value: unknown): Promise<void> };
  toast: { add(message: { severity: string; summary: string; detail: string; life: number }): void };
}

interface Graph {
  id: string | null;
  extra?: { ds?: unknown };
  nodes: GraphNode[];
  links: Record<number, { target_slot: number; origin_id: number | string; origin_slot: number }>;
  add(node: GraphNode): void;
  getNodeById(id: number): GraphNode | null;
  setDirtyCanvas(foreground: boolean, background: boolean): void;
}

interface GraphCanvas {
  canvas: HTMLCanvasElement;
  graph: Graph;
  ds: { scale: number; offset: [number, number]; visible_area: [number, number, number, number] };
  default_connection_color_byType: Record<string, string>;
  setDirty(foreground: boolean, background: boolean): void;
  selected_nodes?: Record<string, GraphNode>;
  setGraph?(graph: Graph): void;
  selectItems(items: GraphNode[]): void;
  centerOnNode(node: GraphNode): void;
  emitBeforeChange(): void;
  emitAfterChange(): void;
}

/** A node's definition as /object_info gives it. */
interface Definition {
  name: string;
  display_name?: string;
  category: string;
  output: string[];
  input?: Partial<Record<"required" | "optional", Record<string, [unknown, { advanced?: boolean; suggest?: string; control_after_generate?: boolean; otca_before?: Record<string, { values: Record<string, unknown>; inputs: string[] }>; default?: unknown }?]>>>;
}

interface NodeInput {
  link?: number | null;
  name: string;
  type: string;
  shape?: number;
  tooltip?: string;
  label?: string;
  localized_name?: string;
  widget?: { name: string };
}

interface NodeOutput {
  type: string;
}

interface GraphNode {
  id: number | string;
  type?: string;
  title: string;
  color?: string;
  size: [number, number];
  showAdvanced?: boolean;
  mode: number;
  pos: [number, number];
  properties: Record<string, string>;
  inputs: NodeInput[];
  outputs: NodeOutput[];
  widgets?: Widget[];
  graph: Graph;
  subgraph: Graph;
  isSubgraphNode?(): boolean;
  addInput(name: string, type: string, more: object): void;
  removeInput(slot: number): void;
  isInputConnected(slot: number): boolean;
  getInputNode(slot: number): GraphNode | null;
  getInputLink(slot: number): { target_slot: number; origin_id: number | string; origin_slot: number } | null;
  addWidget(type: string, name: string, value: unknown, callback: () => void, options: object): Widget;
  addDOMWidget(name: string, type: string, element: HTMLElement, options: object): Widget;
  connectSlots(output: NodeOutput, target: GraphNode, input: NodeInput): void;
  computeSize(): [number, number];
  setSize(size: [number, number]): void;
  setDirtyCanvas(foreground: boolean, background: boolean): void;
  onRemoved?(...details: unknown[]): void;
  onExecuted?(output: Record<string, any> | null): void;
  onConfigure?(...details: { size?: [number, number] }[]): void;
  onConnectionsChange?(side: number, ...details: unknown[]): void;
}

interface Widget {
  name: string;
  value: any; // as many types as ComfyUI has widgets
  label?: string;
  hidden?: boolean;
  advanced?: boolean;
  serialize?: boolean;
  width?: number;
  options?: { advanced?: boolean };
  computeSize?(width: number): [number, number];
  element?: HTMLElement;
  linkedWidgets?: Widget[];
  callback?(value: any): void;
  onClick?(details: { canvas: { prompt_box?: PromptDialog | null } }): void;
  beforeQueued?(): void;
  afterQueued?(): void;
}

/** In which a text widget of the classic renderer is typed. */
interface PromptDialog extends HTMLElement {
  close(): void;
}

/** A result that the page knows the workflow of. */
type Queued = { workflow_id?: string | null };

interface Window {
  LGraphCanvas: { link_type_colors: Record<string, string> };
  LiteGraph: { createNode(type: string): GraphNode; registered_node_types: Record<string, { nodeData?: Definition } | undefined> };
}

/** A widget of ours, and which nodes it is put on. */
interface OurWidget {
  fits(definition: Definition): boolean;
  create(node: GraphNode, comfy: Comfy): Shown;
}

/** `show` gets the results of its own node and those that name the node as their `credit_node`. */
interface Shown {
  show(kind: string, data: any): void;
  dispose?(): void;
}

// ---- What our server sends ------------------------------------------------------------------------------------------

/** What a node lacks of packages, and the line that installs it. */
interface Missing {
  node: string;
  text: string;
  command: string;
}

/** A graph in ComfyUI's API format. */
type Prompt = Record<string, { class_type: string; inputs: Record<string, any>; _meta?: { title?: string } }>;

/** A workflow in the format of the canvas, or in ComfyUI's API format. */
type SavedGraph = { workflow: object; prompt?: Prompt; note?: string } | { workflow?: undefined; prompt: Prompt; note?: string };

/** null stands for what is not finite: JSON has no NaN. B samples, T' trained steps, K objectives. */
type Value = number | null;

interface Credit {
  run?: string | null; // that the samples belong to
  method?: string;
  weights: Value[][]; // [B][T']
  delta: Value[][]; // [B][T']
  objectives?: string[]; // [K], where they have weights of their own
  by_objective?: Value[][][]; // [K][B][T'], those weights
  trained: number[]; // [T']
  sigmas: number[] | null; // [T+1]
  groups: number[]; // [B]
  prompts: string[]; // of each group
  node: string;
  made_by: string;
  workflow_id?: string | null;
}

interface Advantages {
  watched?: string[]; // rewards that an update along gradients does not follow
  advantage: Value[]; // [B]
  step_advantage: Value[][]; // [B][T']
  by_objective?: Value[][][]; // [K][B][T'], each objective's part in it
  objectives: Value[][]; // [B][K]
  coefficients: Value[][]; // [B][K]
  shares: number[]; // [K]
  names: string[]; // [K]
  valid: boolean[]; // [B]
}

interface Scores {
  run?: string | null; // that the samples belong to
  names: string[];
  held_out_names: string[];
  meanings?: string[]; // [K + H], what a score is: see MEANINGS in web/lib/scores.js
  values: Value[][]; // [B][K]
  held_out: Value[][]; // [B][H]
  advantages: Value[][]; // [B][K + H]
  groups: number[]; // [B]
  prompts: string[]; // of each group
  correlation: Value[][]; // [K + H][K + H]
  thumbnails: PictureFile | null;
  thumbnail_columns: number;
  places?: number[] | null; // [B], of a ranking
  totals?: Value[] | null; // [B], the sums that it is by
  files?: string[]; // [B], of a ranking of a folder
  said?: string[]; // what was left out, and what was saved
  beside?: (number | null)[]; // of each group: where in the thumbnails the picture is that was edited
}

/**
 * Which run a Training Run would go on with; `other`, where that is a new one: a run that could be continued, and its iteration; `still`: with a learning rate of 0;
 * `unwatched`: titles of judges that are the model's own text encoder while no other reward is held out.
 */
type Coming = {
  run: string;
  iteration: number;
  other: [string, number] | null;
  at: [node: string, input: string, value: number][]; // where it goes on: what moves on with every prompt
  still?: boolean;
  unwatched?: string[];
  problem?: string; // instead of all that: what keeps it from a run
};

/** Whether what a Make Trainable trains fits here, in GB: page/machine.py. */
type Light = {
  state: "fits" | "tight" | "does not fit" | "missing" | "unknown";
  needs: number;
  phase: string;
  has: number;
  device: string; // "": none but the CPU
  ram: number;
  ram_has: number;
  streamed: number;
  missing: string[];
  text: string;
  fix: string[]; // the changes that make it fit, in words
  after: number;
  settings: { node: string; input: string; value: any }[]; // the same as values
};

/** A picture that a node wrote, as ComfyUI's /view takes it. */
type PictureFile = { filename: string; subfolder: string; type: string };

interface Run {
  id: string;
  status: "queued" | "running" | "idle" | "finished" | "stopped" | "interrupted" | "failed";
  place: "headless" | "canvas" | "remote";
  remote?: string | null; // the address of the machine that a copy is of
  iteration: number;
  total: number | null;
  started: number | null;
  updated: number;
  rewrites: number;
  has_checkpoint: boolean;
  has_lora: boolean;
  error?: string | null;
  failed_at?: { node: string; title: string } | null; // the node that raised the error
  warning?: string | null;
  spent?: string | null; // what a run says whose budget is used up
  score: number | null; // evaluation/sum of the last evaluation
  notes: string;
  proof?: { hours: number; page: boolean } | null; // of one that `otca prove` makes; `page`: it is written
}

/** Bytes of a device; `ours` of those that are used, null where that is not known. Main memory has no name. */
type Memory = { name: string; used: number; total: number; ours: number | null };

/** Trainings that wait, in order, and for whom; `guest`: or for the pictures of a prompt. */
type Queue = { at_work: string[]; guest: boolean; waiting: { id: string; iterations: number }[] };

/** Two pictures of a prompt, without and with what a run had learned by that iteration. */
type Pair = { name: string; prompt: string; seed: number; iteration: number | null };

/** Such pictures that are being made. */
interface PairWork {
  prompt: string;
  seed: number;
  state: "waits" | "loads" | "makes" | "failed";
  done: number;
  calls: number;
  error: string | null;
}

/** What is read of the run that is shown. */
interface RunDetails extends Run {
  samples: string[];
  pictures: string[];
  instead: { resume: string; stop: string }; // lines for a terminal, where the page may not do it
}

/** Whether the page may start and stop processes, and the two ways by which the user allows it. */
interface Word {
  given: boolean;
  command: string; // to type once
  variable: string; // NAME=VALUE, to start ComfyUI with
}

/** Figures of a run, a column each, and its evaluations. */
interface Figures {
  iterations: number[];
  columns: Record<string, Value[]>;
  names: string[]; // of all its figures
  evaluations: Evaluation[];
}

/** Left, top, width, height in pixels. */
type Box = [number, number, number, number];

/** One picture in a grid of samples. */
type Picture = { prompt: string; seed: number; box: Box };

/** An evaluation's grid of samples: a file of the run, and where in it each picture is. */
interface Grid {
  iteration: number;
  file: string;
  size: [number, number];
  pictures: Picture[];
}

/** What is about to be deleted. */
interface Removal {
  folder: string;
  bytes: number;
  files: number;
  begun_with: string[]; // runs that begin with its adapter
}

/** What a curve is drawn of; NaN and null are what is not known. */
type Values = Value[] | Float64Array;
type Numbers = number[] | Float64Array;

/** A line of metrics.jsonl. */
type Row = { iteration: number } & Record<string, Value>;

interface Evaluation {
  iteration: number;
  rewards: Record<string, { mean: Value; std: Value; standard_error: Value; held_out: boolean; rise?: [Value, Value] }>;
  since?: number; // of the last one: the first evaluation that it can be compared with, since which is each `rise` ± its error
}

/** Values that were changed from this iteration on, a line each. */
type Change = { iteration: number; lines: string[] };

interface RunData {
  run: RunDetails;
  rows: Row[]; // the last ones
  figures: import("./lib/figures.js").GrowingFigures; // of all
  evaluations: Evaluation[];
  changes: Change[];
}

interface Problem {
  node_id: string | null;
  title: string | null;
  input: string | null;
  message: string;
  fix: string;
  severity: "error" | "warning";
}

/** What a workflow asks for beyond its own data. */
interface Want {
  kind: string;
  text: string;
  allowed: boolean | null; // null: known only when the graph runs
  remember: string | null; // what a click allows from then on
  fix: string;
}

/** Where the panel of votes asks, and how: a route to an answer, or to the address of a picture. */
interface VoteServer {
  getJson(route: string): Promise<any>;
  postJson(route: string, body: object): Promise<any>;
  routeUrl(route: string): string;
}

/** A group of pictures of one prompt that is to be voted on. */
interface VoteQuestion {
  id: string;
  prompt: string;
  pictures: { video: boolean }[];
  answered: boolean;
  learned?: string;
  source?: boolean; // whether there is a picture that was edited
}

interface ExportAnswer {
  filename: string;
  problems: Problem[];
  commands: { title: string; lines: string[]; note?: string }[];
  here: string; // the command on this machine
  prove: string; // the one that proves it here
}

/** A bundle that was written into ComfyUI's output folder. */
interface BundleAnswer {
  name: string;
  path: string;
  bytes: number;
  models: { path: string; where: string; bytes: number | null }[];
  model_bytes: number;
  estimate: string[];
  notes: string[];
}

/** Where the gallery asks, and how: as the panel of votes does. */
type GalleryServer = VoteServer;

/** What the gallery knows of a picture. */
interface Known {
  name: string;
  folder: string;
  changed: number; // seconds since 1970
  size: number; // bytes
  width: number;
  height: number;
  animated: boolean;
  prompt: string;
  negative: string;
  seed: string;
  model: string;
  loras: string[];
  about: string; // its graph in a few words
  note: string; // what could not be read
  said: import("./lib/opinions.js").Said;
  taste?: number | null; // what the learned taste says, in [0, 1]
  old?: boolean; // it may have changed since
}

// ---- Elements -------------------------------------------------------------------------------------------------------

/** The element that h("button.otca-button") makes. */
type HtmlOf<S extends string> = S extends `${infer Tag}.${string}`
  ? HtmlOf<Tag>
  : S extends keyof HTMLElementTagNameMap
    ? HTMLElementTagNameMap[S]
    : HTMLElement;

type SvgOf<S extends string> = S extends `${infer Tag}.${string}`
  ? SvgOf<Tag>
  : S extends keyof SVGElementTagNameMap
    ? SVGElementTagNameMap[S]
    : SVGElement;

type Child = Node | string | number | null | undefined | false | Child[];

/** An element, and what shows other data in it. */
interface View<T> {
  element: HTMLElement;
  update(data: T): void;
}

/** Where a line goes through; null lifts the pen. */
type Point = [number, number] | null;
