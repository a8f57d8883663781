// @ts-check
/** What several runs have in common, and what differs: curves, pictures and settings, as the comparison shows them. */

/**
 * A run that is compared, as far as it was read. `prompt`: its workflow, null where it cannot be read.
 *
 * @typedef {object} Compared
 * @property {Run} run
 * @property {string[]} names of its figures
 * @property {Evaluation[]} evaluations
 * @property {Grid[]} grids
 * @property {Prompt | null} prompt
 */

const EVALUATION = "evaluation/";

/**
 * Figures that all runs have, the ones to judge by first: {key, label, kind}. A reward's mean on the fixed prompts is called
 * evaluation/NAME; kind is "evaluation", "reward", "held_out" or "other".
 *
 * @param {Pick<Compared, "names" | "evaluations">[]} runs
 * @returns {{key: string, label: string, kind: string}[]}
 */
export function sharedMetrics(runs) {
  const evaluated = runs.map(({ evaluations }) => new Set(evaluations.flatMap(({ rewards }) => Object.keys(rewards))));
  const metrics = inAll(evaluated).map((name) => ({ key: EVALUATION + name, label: name, kind: "evaluation" }));
  for (const key of inAll(runs.map(({ names }) => new Set(names)))) {
    const [, kind, name] = key.match(/^(reward|held_out)\/(.+)\/mean$/) ?? ["", "other", key];
    metrics.push({ key, label: name, kind });
  }
  const order = ["evaluation", "reward", "held_out", "other"];
  return metrics.sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind) || a.label.localeCompare(b.label, undefined, { numeric: true }));
}

/** @param {string} key whether it is a figure of evaluations, and not of iterations */
export function isEvaluated(key) {
  return key.startsWith(EVALUATION);
}

/**
 * @param {Set<string>[]} sets
 * @returns {string[]}
 */
function inAll([first, ...others]) {
  return [...(first ?? [])].filter((name) => others.every((other) => other.has(name)));
}

/**
 * One run's curve of a figure: where its points are, and how high. By seconds: those that its iterations took, without pauses.
 *
 * @param {Figures} figures with "seconds/iteration", and the figure unless evaluations have it
 * @param {string} key
 * @param {boolean} bySeconds
 * @returns {{xs: number[], ys: Value[], errors?: number[]}} `errors`: standard errors of evaluations
 */
export function curveOf({ iterations, columns, evaluations }, key, bySeconds) {
  const seconds = bySeconds ? sums(columns["seconds/iteration"] ?? iterations.map(() => null)) : [];
  if (!isEvaluated(key)) return { xs: bySeconds ? seconds : iterations, ys: columns[key] ?? iterations.map(() => null) };
  const name = key.slice(EVALUATION.length);
  const rows = evaluations.filter(({ rewards }) => name in rewards);
  let done = 0; // iterations until the evaluation
  const xs = rows.map(({ iteration }) => {
    if (!bySeconds) return iteration;
    while (done < iterations.length && iterations[done] <= iteration) done += 1;
    return done ? seconds[done - 1] : 0;
  });
  return { xs, ys: rows.map(({ rewards }) => rewards[name].mean), errors: rows.map(({ rewards }) => rewards[name].standard_error ?? 0) };
}

/** @param {Value[]} values */
function sums(values) {
  let total = 0;
  return values.map((value) => (total += value ?? 0));
}

/**
 * Prompts and seeds of which every run has a picture, in the first run's order.
 *
 * @param {{pictures: Picture[]}[]} grids one of each run
 * @returns {{prompt: string, seed: number, boxes: Box[]}[]}
 */
export function sharedPictures(grids) {
  const [first, ...others] = grids.map(({ pictures }) => new Map(pictures.map((picture) => [pictureKey(picture), picture])));
  return [...(first ?? [])].flatMap(([key, picture]) => {
    const found = [picture, ...others.map((other) => other.get(key))];
    return found.every(Boolean)
      ? [{ prompt: picture.prompt, seed: picture.seed, boxes: found.map((one) => /** @type {Picture} */ (one).box) }]
      : [];
  });
}

/** @param {Picture} picture */
function pictureKey({ prompt, seed }) {
  return `${seed} ${prompt}`;
}

/**
 * Iterations of which every run has pictures, ascending.
 *
 * @param {Grid[][]} grids of each run
 */
export function sharedIterations(grids) {
  return inAll(grids.map((own) => new Set(own.map(({ iteration }) => String(iteration)))))
    .map(Number)
    .sort((a, b) => a - b);
}

const NAME_OF_THE_RUN = "run_name"; // differs always, and heads the columns

/**
 * Inputs that are not the same in all runs: {node, input, values}, a text for each run, null where it has no such input. Nodes
 * are matched by class and title, several of these by their order; a link is what it leads to.
 *
 * @param {Prompt[]} prompts
 * @returns {{node: string, input: string, values: (string | null)[]}[]}
 * @param {(kind: string) => Record<string, unknown>} [defaultsOf] what a node's class has where a graph says nothing
 */
export function differingSettings(prompts, defaultsOf = () => ({})) {
  const tables = prompts.map((prompt) => settingsOf(prompt, defaultsOf));
  const rows = new Map(tables.flatMap((table) => [...table].map(([key, { node, input }]) => [key, { node, input }])));
  return [...rows].flatMap(([key, { node, input }]) => {
    const values = tables.map((table) => table.get(key)?.text ?? null);
    return values.every((value) => value === values[0]) ? [] : [{ node, input, values }];
  });
}

/**
 * @param {Prompt} prompt
 * @param {(kind: string) => Record<string, unknown>} defaultsOf
 * @returns {Map<string, {node: string, input: string, text: string}>}
 */
function settingsOf(prompt, defaultsOf) {
  const names = namesOf(prompt);
  const settings = new Map();
  for (const [id, { class_type: kind, inputs }] of Object.entries(prompt)) {
    const node = names.get(id) ?? "";
    for (const [input, value] of Object.entries({ ...defaultsOf(kind), ...inputs })) {
      if (kind === "OTCA_TrainingRun" && input === NAME_OF_THE_RUN) continue;
      settings.set(`${kind}\n${node}\n${input}`, { node, input, text: valueText(value, names) });
    }
  }
  return settings;
}

/**
 * What each node is called; of several with one title the second is "Title (2)".
 *
 * @param {Prompt} prompt
 */
function namesOf(prompt) {
  const counts = new Map();
  const ids = Object.keys(prompt).sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  return new Map(
    ids.map((id) => {
      const title = prompt[id]._meta?.title ?? prompt[id].class_type;
      const count = (counts.get(title) ?? 0) + 1;
      counts.set(title, count);
      return [id, count > 1 ? `${title} (${count})` : title];
    }),
  );
}

/**
 * @param {unknown} value
 * @param {Map<string, string>} names
 */
function valueText(value, names) {
  const isLink = Array.isArray(value) && value.length === 2 && names.has(String(value[0])) && Number.isInteger(value[1]);
  if (isLink) return `← ${names.get(String(value[0]))}${value[1] ? `, ${value[1] + 1}` : ""}`;
  return typeof value === "string" ? value : JSON.stringify(value);
}
