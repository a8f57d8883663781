// @ts-check
/**
 * Where new nodes go, and what a LoraLoader is connected to.
 *
 * A node as far as that matters. `ours`: one of this pack, which trains; `origin` is the node and the output that an input is linked to:
 * @typedef {{id: number | string, ours: boolean, outputs: string[], inputs: {type: string, origin: Slot | null}[]}} Plain
 * @typedef {{node: number | string, slot: number}} Slot
 *
 * `from`: what the loader gets. `moved`: inputs that take it from the loader from now on:
 * @typedef {{from: Slot, moved: Slot[]}} Joint
 */

const GAP = 80;
const BETWEEN = [30, 90]; // columns, and nodes of a column: a title, what Nodes 2.0 adds below, a line that comes with the first Run
const TALLEST = 1000; // of a column: what a page shows where its letters can be read

/**
 * The upper left corner of a free place beside all boxes [x, y, width, height].
 *
 * @param {[number, number, number, number][]} boxes
 * @returns {[number, number]}
 */
export function besides(boxes) {
  if (!boxes.length) return [0, 0];
  return [Math.max(...boxes.map(([x, , width]) => x + width)) + GAP, Math.min(...boxes.map(([, y]) => y))];
}

/**
 * The places of nodes in columns, each behind all that it uses. What uses nothing stands just before its first user, neighbours share
 * a column while they fit, and what may stand anywhere fills the shortest. In a column the node that grows stands last.
 *
 * @template Key
 * @param {{id: Key, size: ArrayLike<number>, uses: Key[], anywhere?: boolean, grows?: boolean}[]} nodes
 * @returns {Map<Key, [number, number]>}
 */
export function inColumns(nodes) {
  /** @type {Map<Key, number>} */
  const depths = new Map(nodes.map(({ id }) => [id, 0]));
  const deepest = (/** @type {Key[]} */ ids) => Math.max(-1, ...ids.map((id) => depths.get(id) ?? 0)) + 1;
  for (const _ of nodes) for (const { id, uses } of nodes) depths.set(id, Math.min(deepest(uses), nodes.length));
  for (const { id, uses } of nodes) {
    const next = Math.min(...nodes.filter((user) => user.uses.includes(id)).map((user) => depths.get(user.id) ?? 0));
    if (!uses.length && Number.isFinite(next)) depths.set(id, next - 1);
  }
  const height = (/** @type {typeof nodes} */ column) => column.reduce((sum, { size }) => sum + size[1] + BETWEEN[1], 0);
  /** @type {(typeof nodes)[]} */
  const columns = [];
  for (const depth of [...new Set(depths.values())].sort((one, other) => one - other)) {
    const column = nodes.filter((node) => depths.get(node.id) === depth && !node.anywhere);
    const last = columns.at(-1);
    if (last && height([...last, ...column]) <= TALLEST && !column.some(({ grows }) => grows)) last.push(...column);
    else if (column.length) columns.push(column);
  }
  for (const node of nodes.filter(({ anywhere }) => anywhere)) {
    columns.reduce((shortest, column) => (height(column) < height(shortest) ? column : shortest)).push(node);
  }
  let x = 0;
  return new Map(
    columns.flatMap((column) => {
      const left = x;
      x += Math.max(...column.map(({ size }) => size[0])) + BETWEEN[0];
      let y = 0;
      const ordered = [...column].sort((one, other) => Number(one.grows ?? false) - Number(other.grows ?? false));
      return ordered.map(({ id, size }) => {
        const top = y;
        y += size[1] + BETWEEN[1];
        return /** @type {[Key, [number, number]]} */ ([id, [left, top]]);
      });
    }),
  );
}

/**
 * Where a loader fits between the node that gives a MODEL (or CLIP) and those that use it: null where there is no such place, or
 * more than one. What a node of ours takes, too, is trained: its other users, such as pictures of before, stay as they are.
 *
 * @param {Plain[]} nodes
 * @param {string} type
 * @returns {Joint | null}
 */
export function jointOf(nodes, type) {
  const givers = nodes.filter(({ ours, outputs }) => !ours && outputs.includes(type));
  const joints = givers.flatMap(({ id, outputs }) => {
    const slot = outputs.indexOf(type);
    const users = nodes.flatMap((user) =>
      user.inputs.flatMap(({ origin }, index) => (origin?.node === id && origin.slot === slot ? [{ user, index }] : [])),
    );
    const passedOn = users.length > 0 && users.every(({ user }) => !user.ours && user.outputs.includes(type)); // the end of a chain counts
    const isTrained = users.some(({ user }) => user.ours);
    const moved = isTrained ? [] : users.filter(({ user }) => !user.outputs.includes(type)).map(({ user, index }) => ({ node: user.id, slot: index }));
    return passedOn ? [] : [{ from: { node: id, slot }, moved }];
  });
  return joints.length === 1 ? joints[0] : null;
}
