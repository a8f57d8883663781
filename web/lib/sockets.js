// @ts-check
// Which sockets of Reward Stack are shown.

/**
 * How many of the sockets reward_1 … reward_max to show: up to the last connected one, and one that is free.
 * Sockets in between stay, connected or not, so that no link ever changes its index.
 *
 * @param {number[]} connected
 * @param {number} max
 */
export function socketsToShow(connected, max) {
  const last = Math.max(0, ...connected);
  return last === connected.length ? Math.min(last + 1, max) : last;
}
