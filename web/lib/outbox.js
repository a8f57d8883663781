// @ts-check
/**
 * Sends what the user decides, one after the other, until the server has said that it is kept. What it has not said that of survives a
 * reload of the page, and is sent again under the same id, of which the server keeps one.
 */

const FIRST_WAIT_MS = 500; // before a failed one is tried again; each time twice as long
const LONGEST_WAIT_MS = 15_000;

/**
 * @template {{id: string}} T
 * @param {object} options
 * @param {Pick<Storage, "getItem" | "setItem">} options.storage
 * @param {string} options.key below which it keeps them there
 * @param {(item: T) => Promise<unknown>} options.send an Error with a `status` from 400 to 499 is the server's refusal: it is not sent again
 * @param {(waiting: number, error: Error | null) => void} options.changed
 * @param {(item: T, error: Error) => void} options.refused
 */
export function outbox({ storage, key, send, changed, refused }) {
  /** @type {T[]} */
  let waiting = read();
  let sending = false;
  let failures = 0;
  /** @type {(() => void)[]} */
  const asking = []; // who waits until all is sent
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  /** @returns {T[]} */
  function read() {
    try {
      const kept = JSON.parse(storage.getItem(key) ?? "[]");
      return Array.isArray(kept) ? kept : [];
    } catch {
      return []; // not what this page wrote
    }
  }

  function keep() {
    try {
      storage.setItem(key, JSON.stringify(waiting));
    } catch {
      // The browser's store is full: what waits is still sent, as long as the page is open.
    }
  }

  async function work() {
    if (sending) return;
    sending = true;
    clearTimeout(timer);
    while (waiting.length) {
      const [item] = waiting;
      try {
        await send(item);
      } catch (error) {
        const status = /** @type {any} */ (error).status ?? 0;
        if (status < 400 || status >= 500) {
          failures += 1;
          timer = setTimeout(work, Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (failures - 1)));
          sending = false;
          return changed(waiting.length, error);
        }
        refused(item, error);
      }
      failures = 0;
      waiting = waiting.filter((each) => each !== item);
      keep();
      changed(waiting.length, null);
    }
    sending = false;
    for (const tell of asking.splice(0)) tell();
  }

  return {
    /** @param {T} item */
    push(item) {
      waiting.push(item);
      keep();
      changed(waiting.length, null);
      work();
    },
    /** Sends what an earlier page has left. */
    begin: work,
    waiting: () => waiting.slice(),
    /** @returns {Promise<void>} when the server has answered to all that was said: what it is asked before that, it answers without it */
    sent: () => (waiting.length ? new Promise((resolve) => asking.push(resolve)) : Promise.resolve()),
    end: () => clearTimeout(timer),
  };
}

/** An id that no other page makes. Browsers offer randomUUID to secure pages only. */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
