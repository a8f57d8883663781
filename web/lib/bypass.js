// @ts-check
/**
 * What it means that a node of ours is bypassed, where ComfyUI's own answer (the first input of the same type goes through) has none:
 * without a credit node all steps count alike, without a fusion node the advantages are added up, without an update nothing is
 * trained and so nothing is recorded, without a window there is none, and without Tuned Model stock nodes have the untouched model.
 */

const BYPASSED = 4; // LiteGraph's mode

/** @typedef {Prompt[string]} Entry */

/** @type {(id: string, entry: Entry) => Prompt} */
const uniform = (id, { inputs: { trajectories }, ...entry }) => ({
  [id]: { ...entry, class_type: "OTCA_UniformWeights", inputs: { trajectories, timestep_fraction: 1, seed: 0 } },
});

/** @type {(id: string, entry: Entry) => Prompt} */
const plainSum = (id, { inputs: { scores, credit, std_scope = "group" }, ...entry }) => ({
  [id]: { ...entry, class_type: "OTCA_WeightedFuse", inputs: { scores, credit, mode: "weighted_advantages", std_scope } },
});

/**
 * Stepwise Gain is credit and fusion in one: of uniform credit, and the same sum of what the pictures scored at the end.
 *
 * @type {(id: string, entry: Entry) => Prompt}
 */
const uniformSum = (id, { inputs: { trajectories, scores, fusion }, ...entry }) => {
  const credit = `${id}_credit`;
  return {
    ...uniform(credit, { ...entry, inputs: { trajectories } }),
    [id]: {
      ...entry,
      class_type: "OTCA_WeightedFuse",
      inputs: { scores, credit: [credit, 0], mode: fusion, std_scope: "group" },
    },
  };
};

/**
 * What stands in a bypassed node's place: other nodes, or null, where what it gives is taken from the widgets that it feeds.
 *
 * @type {Record<string, ((id: string, entry: Entry) => Prompt) | null>}
 */
const IN_ITS_PLACE = {
  ...Object.fromEntries(
    ["TCDWeights", "NoiseAwareWeights", "PCPOWeights", "GRPOGuard", "LearnedCredit", "UniformWeights"].map((name) => [
      `OTCA_${name}`,
      uniform,
    ]),
  ),
  OTCA_MOCAFuse: plainSum,
  OTCA_MinNormFuse: plainSum,
  OTCA_WeightedFuse: plainSum,
  OTCA_StepwiseGain: uniformSum,
  OTCA_MixGRPOWindow: null,
};

/**
 * Where the outputs of a bypassed node come from instead, one by one. What has no other source, such as its picture, is not there,
 * and what shows it does not run.
 *
 * @type {Record<string, (entry: Entry, prompt: Prompt) => unknown[]>}
 */
const THROUGH = {
  OTCA_BestOfN: ({ inputs }) => [inputs.advantages],
  OTCA_CombineCredit: ({ inputs }) => [inputs.credit_1],
  OTCA_SpatialCredit: ({ inputs }) => [inputs.credit],
  OTCA_TrainingRun: () => [],
  // The models as Make Trainable got them: without what was trained.
  OTCA_TunedModel: ({ inputs }, prompt) => {
    let source = prompt[inputs.model?.[0]];
    while (source && source.class_type !== "OTCA_MakeTrainable") source = prompt[source.inputs.model?.[0]];
    const { model, clip, vae, low_noise_model } = source?.inputs ?? {};
    return [model, clip, vae, low_noise_model];
  },
};
const UPDATES = ["OTCA_GRPOStep", "OTCA_MatchingStep"];
const RUN = "OTCA_TrainingRun";

/**
 * The bypassed nodes that have a meaning of ours.
 *
 * @param {{node: GraphNode, id: string, name: string | undefined}[]} nodes with the names of their classes
 */
export function bypassed(nodes) {
  return nodes.filter(
    ({ node, name }) => node.mode === BYPASSED && name !== undefined && (name in IN_ITS_PLACE || name in THROUGH),
  );
}

/**
 * Whether an update is bypassed.
 *
 * @param {{node: GraphNode, name: string | undefined}[]} nodes
 */
export function trainsNothing(nodes) {
  return nodes.some(({ node, name }) => node.mode === BYPASSED && UPDATES.includes(name ?? ""));
}

/**
 * The prompt with other nodes in the places of the bypassed ones, which it holds as if they were not.
 *
 * @param {Prompt} prompt
 * @param {string[]} ids of the bypassed nodes
 * @param {(id: string, input: string) => unknown} widgetValue of a node, though the input is linked
 */
export function withoutBypassed(prompt, ids, widgetValue) {
  const known = ids.filter((id) => prompt[id]);
  const windows = new Set(known.filter((id) => IN_ITS_PLACE[prompt[id].class_type] === null));
  const passed = new Set(known.filter((id) => prompt[id].class_type in THROUGH));
  const source = (/** @type {unknown} */ value) => {
    while (isLink(value) && passed.has(value[0])) {
      const [id, output] = value;
      value = THROUGH[prompt[id].class_type](prompt[id], prompt)[output];
    }
    return value;
  };
  /** @type {Prompt} */
  let result = {};
  const places = new Set(ids);
  for (const [id, entry] of Object.entries(prompt)) {
    if (windows.has(id) || passed.has(id)) continue;
    const place = ids.includes(id) ? IN_ITS_PLACE[entry.class_type] : null;
    const entries = place ? place(id, titled(entry)) : { [id]: { ...entry, inputs: { ...entry.inputs } } };
    Object.assign(result, entries);
    if (place) for (const each of Object.keys(entries)) places.add(each);
  }
  const without = new Set();
  for (const [id, { inputs }] of Object.entries(result)) {
    for (const [name, value] of Object.entries(inputs)) {
      const own = isLink(value) && windows.has(value[0]) ? widgetValue(id, name) : source(value);
      if (own !== undefined) inputs[name] = own;
      else delete inputs[name];
      if (own === undefined && isLink(value) && passed.has(value[0])) without.add(id);
    }
  }
  result = withoutNodes(result, without);
  // What nobody needs is not run: the node was bypassed.
  for (let before = -1; before !== Object.keys(result).length; ) {
    before = Object.keys(result).length;
    const needed = new Set(Object.values(result).flatMap(({ inputs }) => Object.values(inputs).filter(isLink).map(([id]) => id)));
    result = Object.fromEntries(Object.entries(result).filter(([id]) => needed.has(id) || !places.has(id)));
  }
  return result;
}

/**
 * An entry whose title says that it stands in a bypassed node's place.
 *
 * @param {Entry} entry
 */
function titled(entry) {
  return { ...entry, _meta: { ...entry._meta, title: `${entry._meta?.title ?? entry.class_type} (bypassed)` } };
}

/**
 * The prompt without what records an update that does not take place, and without what needs that.
 *
 * @param {Prompt} prompt
 */
export function withoutRecord(prompt) {
  const records = Object.keys(prompt).filter((id) => prompt[id].class_type === RUN && !prompt[id].inputs.report);
  return withoutNodes(prompt, new Set(records));
}

/**
 * The prompt without these nodes and without what needs them.
 *
 * @param {Prompt} prompt
 * @param {Set<string>} gone
 */
function withoutNodes(prompt, gone) {
  for (let before = -1; before !== gone.size; ) {
    before = gone.size;
    for (const [id, { inputs }] of Object.entries(prompt)) {
      if (Object.values(inputs).some((value) => isLink(value) && gone.has(value[0]))) gone.add(id);
    }
  }
  return Object.fromEntries(Object.entries(prompt).filter(([id]) => !gone.has(id)));
}

/**
 * @param {unknown} value
 * @returns {value is [string, number]}
 */
function isLink(value) {
  return Array.isArray(value) && value.length === 2 && typeof value[0] === "string";
}
