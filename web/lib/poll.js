// @ts-check
/** Reading again and again, for as long as there is something to follow. */

const LONGEST_MS = 30_000; // between two tries while the server does not answer

/**
 * Reads when asked to and, while something goes on, every `every` ms, else every `quiet` ms or not at all. Requests during a read lead to one more read, however many
 * there are. A read that fails is tried again, each time after twice as long. Nobody looks at a hidden page, so nothing is read
 * then, but once it is seen again.
 *
 * @param {() => Promise<boolean>} read gives whether something still goes on
 * @param {{every: number, quiet?: number, isSeen: () => boolean, failed: (error: Error) => void}} options `failed` gets the error of each failure
 * @returns `refresh` gives a promise of a read that began after the call
 */
export function poll(read, { every, quiet, isSeen, failed }) {
  /** @type {Promise<void> | null} */
  let running = null;
  /** @type {Promise<void> | null} */
  let pending = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let failures = 0;
  let ended = false;

  /** The wait until the next read, in ms; null where there is none. */
  async function waitAfterRead() {
    try {
      const goesOn = await read();
      failures = 0;
      return goesOn ? every : (quiet ?? null);
    } catch (error) {
      if (!ended) failed(error);
      failures += 1;
      return Math.min(LONGEST_MS, every * 2 ** (failures - 1));
    }
  }

  async function readOnce() {
    clearTimeout(timer);
    const wait = await waitAfterRead();
    running = null;
    if (wait !== null && !ended) timer = setTimeout(refresh, wait);
  }

  /** @returns {Promise<void>} */
  async function refresh() {
    if (ended || !isSeen()) return;
    if (!running) return (running = readOnce());
    pending ??= running.then(() => {
      pending = null;
      return refresh();
    });
    return pending;
  }

  globalThis.document?.addEventListener("visibilitychange", refresh);
  return {
    refresh,
    end() {
      ended = true;
      globalThis.document?.removeEventListener("visibilitychange", refresh);
      clearTimeout(timer);
    },
  };
}
