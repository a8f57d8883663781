// @ts-check
/**
 * The values of a saved node, by the names of its inputs. ComfyUI goes by place, so that an input that is no more would move all
 * values after it by one.
 *
 * @typedef {{type: string, inputs?: NodeInput[], widgets_values?: unknown[], widgets_values_named?: Record<string, unknown>}} Saved
 */

const CONTROL = "control_after_generate"; // the widget after a number that moves on; front ends before 1.49 name only what has a slot

/**
 * Puts the node of today in the place of one of before, with its values and links, which ComfyUI takes by their places too.
 *
 * @param {{nodes: Saved[], links?: any[]}} graph or a subgraph, whose links have names for their parts
 * @param {Record<string, Definition>} definitions of our nodes, of which an input may say what was before: `otca_before`
 */
export function renew({ nodes, links = [] }, definitions) {
  for (const [type, { input = {} }] of Object.entries(definitions)) {
    const today = Object.entries({ ...input.required, ...input.optional });
    const sockets = today.filter(([, [kind]]) => String(kind).startsWith("OTCA_"));
    const widgets = today.filter((entry) => !sockets.includes(entry));
    /** @type {Record<string, {values: Record<string, unknown>, inputs: string[]}>} */
    const before = Object.assign({}, ...widgets.map(([, [, options]]) => options?.otca_before));
    for (const node of nodes.filter((node) => before[node.type])) {
      const { values, inputs } = before[node.type];
      const names = widgets
        .toSorted(([one], [other]) => inputs.indexOf(one) - inputs.indexOf(other))
        .flatMap(([name, [, options]]) => (!inputs.includes(name) ? [] : options?.[CONTROL] ? [name, `${name} ${CONTROL}`] : [name]));
      const byPlace = Object.fromEntries(names.map((name, place) => [name, node.widgets_values?.[place]]));
      /** @type {Record<string, unknown>} */
      const known = { ...byPlace, ...node.widgets_values_named, ...values };
      node.widgets_values = widgets.flatMap(([name, [kind, options]]) => {
        const value = known[name] ?? options?.default ?? (Array.isArray(kind) ? kind[0] : "");
        return options?.[CONTROL] ? [value, known[`${name} ${CONTROL}`] ?? known[CONTROL] ?? "increment"] : [value];
      });
      const saved = node.inputs ?? [];
      node.inputs = sockets.map(([name, [kind]]) => saved.find((slot) => slot.name === name) ?? { name, type: String(kind), link: null });
      node.inputs.forEach(({ link }, slot) => {
        const line = links.find((line) => link != null && (line.id ?? line[0]) === link);
        if (Array.isArray(line)) line[4] = slot;
        else if (line) line.target_slot = slot;
      });
      node.type = type;
      delete node.widgets_values_named;
    }
  }
}

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
