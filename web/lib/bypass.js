// @ts-check
/**
 * What it means that a node of ours is bypassed, where ComfyUI's own answer (the first input of the same type goes through) has none:
 * without a credit node all steps count alike, without a fusion node the advantages are added up, without an update nothing is
 * trained and so nothing is recorded, and without a window there is none.
 */

const BYPASSED = 4; // LiteGraph's mode

/** @typedef {Prompt[string]} Entry */

/** @type {(entry: Entry) => Entry} */
const uniform = ({ inputs: { trajectories }, ...entry }) => ({
  ...entry,
  class_type: "OTCA_UniformWeights",
  inputs: { trajectories, timestep_fraction: 1, seed: 0 },
});

/** @type {(entry: Entry) => Entry} */
const plainSum = ({ inputs: { scores, credit, std_scope = "group" }, ...entry }) => ({
  ...entry,
  class_type: "OTCA_WeightedFuse",
  inputs: { scores, credit, mode: "weighted_advantages", std_scope },
});

/**
 * What stands in a bypassed node's place: another node, or null, where what it gives is taken from the widgets that it feeds.
 *
 * @type {Record<string, ((entry: Entry) => Entry) | null>}
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
  OTCA_MixGRPOWindow: null,
};
const UPDATES = ["OTCA_GRPOStep", "OTCA_MatchingStep"];
const RUN = "OTCA_TrainingRun";

/**
 * The bypassed nodes that have something in their place.
 *
 * @param {{node: GraphNode, id: string, name: string | undefined}[]} nodes with the names of their classes
 */
export function bypassed(nodes) {
  return nodes.filter(({ node, name }) => node.mode === BYPASSED && name !== undefined && name in IN_ITS_PLACE);
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
  /** @type {Prompt} */
  let result = {};
  const gone = new Set(ids.filter((id) => prompt[id] && IN_ITS_PLACE[prompt[id].class_type] === null));
  for (const [id, entry] of Object.entries(prompt)) {
    if (gone.has(id)) continue;
    const place = ids.includes(id) ? IN_ITS_PLACE[entry.class_type] : null;
    result[id] = place ? titled(place(entry)) : { ...entry, inputs: { ...entry.inputs } };
    for (const [name, value] of Object.entries(result[id].inputs)) {
      if (value === undefined) delete result[id].inputs[name];
      if (!isLink(value) || !gone.has(value[0])) continue;
      const own = widgetValue(id, name);
      if (own === undefined) delete result[id].inputs[name];
      else result[id].inputs[name] = own;
    }
  }
  // What nobody needs is not run: the node was bypassed.
  for (let before = -1; before !== Object.keys(result).length; ) {
    before = Object.keys(result).length;
    const needed = new Set(Object.values(result).flatMap(({ inputs }) => Object.values(inputs).filter(isLink).map(([id]) => id)));
    result = Object.fromEntries(Object.entries(result).filter(([id]) => needed.has(id) || !ids.includes(id)));
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
  const gone = new Set(Object.keys(prompt).filter((id) => prompt[id].class_type === RUN && !prompt[id].inputs.report));
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
