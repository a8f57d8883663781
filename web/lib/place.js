// @ts-check
/**
 * Where a new node goes, and what a LoraLoader is connected to.
 *
 * A node as far as that matters. `ours`: one of this pack, which trains; `origin` is the node and the output that an input is linked to:
 * @typedef {{id: number | string, ours: boolean, outputs: string[], inputs: {type: string, origin: Slot | null}[]}} Plain
 * @typedef {{node: number | string, slot: number}} Slot
 *
 * `from`: what the loader gets. `moved`: inputs that take it from the loader from now on:
 * @typedef {{from: Slot, moved: Slot[]}} Joint
 */

const GAP = 80;

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
