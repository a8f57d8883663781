// @ts-check
/** Follows the runs that train, also while nobody looks at the sidebar: for the tab's title, and to say that one has ended. */

const GOES_ON = ["queued", "running"];

/**
 * @param {object} options
 * @param {(id: string) => Promise<Run>} options.stateOf
 * @param {() => boolean} options.wanted whether anybody wants to know: else nothing is asked
 * @param {(run: Run) => void} options.ended
 * @param {(run: Run | undefined) => void} options.followed gets the run that is followed, whenever it was read
 * @param {number} options.every ms between two looks, where nobody else has looked
 */
export function watcher({ stateOf, wanted, ended, followed, every }) {
  /** @type {Map<string, Run>} */
  const training = new Map();
  /** @type {string | null} */
  let chosen = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  /** @param {Run} run */
  function note(run) {
    const before = training.get(run.id);
    if (GOES_ON.includes(run.status)) training.set(run.id, run);
    else if (before) {
      training.delete(run.id);
      // Between two prompts a run on the canvas idles: it has not ended.
      if (run.status !== "idle") ended(run);
    }
    if (run.id === chosen) followed(run);
  }

  function later() {
    clearTimeout(timer);
    if (training.size && wanted()) timer = setTimeout(look, every);
  }

  async function look() {
    for (const id of [...training.keys()]) {
      try {
        note(await stateOf(id));
      } catch (error) {
        if (error.status === 404) training.delete(id); // it was deleted; any other error may be over next time
      }
    }
    later();
  }

  return {
    /**
     * What somebody has just read.
     *
     * @param {Run[]} runs
     */
    see(runs) {
      runs.forEach(note);
      later();
    },
    /**
     * Which one the title is about.
     *
     * @param {string | undefined} id
     */
    follow(id) {
      if (id === undefined || id === chosen) return;
      chosen = id;
      followed(training.get(id));
    },
    /** What is wanted has changed. */
    again() {
      followed(training.get(chosen ?? ""));
      later();
    },
  };
}
