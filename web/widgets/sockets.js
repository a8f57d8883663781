// @ts-check
/**
 * The sockets for rewards of Reward Stack, Score Images and My Pictures: the definition has eight, the node shows those in use and one that is free,
 * and another one appears when a reward is connected.
 */
import { socketsToShow } from "../lib/sockets.js";
import { OPENS, scoresWidget } from "./scores.js";

const PREFIX = "reward_";
const NODES = ["OTCA_RewardStack", "OTCA_ScoreImages", "OTCA_MyPictures"];
const INPUT = 1; // LiteGraph's name for the side of a node

/** @type {OurWidget} */
export const socketsWidget = {
  fits: (definition) => NODES.includes(definition.name ?? ""),
  create: (node, comfy) => {
    const rewards = () => node.inputs.filter((input) => input.name.startsWith(PREFIX));
    const defined = rewards().map(({ name, type, shape, tooltip, label, localized_name }) => ({
      name,
      type,
      more: { shape, tooltip, label, localized_name },
    }));

    const lastReward = () => node.inputs.findLastIndex((input) => input.name.startsWith(PREFIX));

    /** @type {number | null} */
    let height = scoresWidget.fits(/** @type {Definition} */ (comfy.nodeDefinition(node) ?? {})) ? OPENS[1] : 0; // of a node that is new or was just loaded: what was saved of it

    function fit() {
      waiting = false;
      const connected = rewards().flatMap((input, index) => (node.isInputConnected(node.inputs.indexOf(input)) ? [index + 1] : []));
      const wanted = socketsToShow(connected, defined.length);
      const before = rewards().length;
      for (let count = before; count > wanted; count--) node.removeInput(lastReward());
      for (const { name, type, more } of defined.slice(before, wanted)) insert(name, type, more);
      // ComfyUI made the node high enough for all sockets. What was saved, or is needed for those that are left, is its height.
      if (height !== null && before > wanted) node.setSize([node.size[0], Math.max(height, node.computeSize()[1])]);
      height = null;
      if (before !== wanted) node.setDirtyCanvas(true, true);
    }

    /**
     * Before the sockets of widgets, where the definition has it.
     *
     * @param {string} name
     * @param {string} type
     * @param {object} more
     */
    function insert(name, type, more) {
      const index = lastReward() + 1;
      // Asked before anything moves: from front end 1.58 on, a link is found by the place of its input.
      const behind = node.inputs.flatMap((_, slot) => (slot < index ? [] : (node.getInputLink(slot) ?? [])));
      node.addInput(name, type, more);
      node.inputs.splice(index, 0, ...node.inputs.splice(-1));
      // The last one first, so that no two are at the same place.
      for (const link of behind.reverse()) link.target_slot += 1;
    }

    // A workflow that is being loaded, or a link that is being moved, is whole only when the current work is done.
    let waiting = false;
    function schedule() {
      if (waiting) return;
      waiting = true;
      queueMicrotask(fit);
    }

    const before = node.onConnectionsChange;
    node.onConnectionsChange = function (side, ...rest) {
      before?.call(this, side, ...rest);
      if (side === INPUT) schedule();
    };
    const configured = node.onConfigure;
    node.onConfigure = function (...details) {
      configured?.apply(this, details);
      height = details[0]?.size?.[1] ?? 0;
      schedule();
    };
    schedule();
    return { show() {} };
  },
};
