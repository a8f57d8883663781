// @ts-check
/**
 * The values of a saved node, by the names of its inputs. ComfyUI goes by place, so that an input that is no more would move all
 * values after it by one.
 *
 * @typedef {{type: string, inputs?: NodeInput[], widgets_values?: unknown[], widgets_values_named?: Record<string, unknown>}} Saved
 */

const CONTROL = "control_after_generate"; // the widget after a number that moves on; front ends before 1.49 name only what has a slot

/**
 * Takes the values of inputs that are no more out of saved nodes.
 *
 * @param {Saved[]} nodes
 * @param {Record<string, Definition>} definitions of our nodes
 * @returns {string[]} what was taken out, as `Node: input = value`
 */
export function leaveOutGone(nodes, definitions) {
  /** @type {string[]} */
  const gone = [];
  for (const node of nodes) {
    const { required = {}, optional = {} } = definitions[node.type]?.input ?? {};
    const now = { ...required, ...optional };
    if (!definitions[node.type] || !Array.isArray(node.widgets_values)) continue;
    const slots = (node.inputs ?? []).filter(({ widget }) => widget).map(({ name }) => name);
    const names = node.widgets_values_named
      ? Object.keys(node.widgets_values_named)
      : slots.flatMap((name) => (now[name]?.[1]?.[CONTROL] ? [name, CONTROL] : [name]));
    node.widgets_values = node.widgets_values.filter((value, place) => {
      const stays = !(place in names) || names[place] in now || names[place] === CONTROL;
      if (!stays) gone.push(`${definitions[node.type].display_name ?? node.type}: ${names[place]} = ${value}`);
      return stays;
    });
  }
  return gone;
}
