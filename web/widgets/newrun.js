// @ts-check
/** Training Run's buttons: one queues as many Runs as show that something is learned, and ends them; one begins a new run. */
import { t } from "../lib/language.js";
import { newest } from "../lib/newest.js";
import { beginNewRun } from "../lib/newrun.js";
import { once } from "../sidebar/dom.js";

const MANY = 20; // templates evaluate every 10th iteration: three dots
const PAUSE = 200; // ms without a change of the queue, which is read whole
const TEXT = {
  train: t("Train {count}", { count: MANY }),
};

/** @type {OurWidget} */
export const newRunWidget = {
  fits: (definition) => definition.name === "OTCA_TrainingRun",
  create(node, comfy) {
    let left = 0; // Runs of this workflow that wait
    let isMany = false; // since Train 20 was pressed
    /** @type {Promise<unknown>} */
    let queuing = Promise.resolve(); // ComfyUI sends them one by one
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let looking;

    const begun = newest();
    const queueOnce = once(queue);
    const train = button(TEXT.train, () => (left ? stop() : queueOnce())); // what its label says
    button(t("New run"), () => beginNewRun(comfy));

    /**
     * @param {string} name
     * @param {() => Promise<unknown>} action
     */
    function button(name, action) {
      const widget = node.addWidget("button", name, null, () => reported(action()), { serialize: false });
      widget.serialize = false; // else the button's value would shift those of the saved workflow
      return widget;
    }

    /** @param {Promise<unknown>} action */
    const reported = (action) => action.catch((error) => comfy.toast("error", "OTCA", error.message));

    async function queue() {
      isMany = true;
      queuing = comfy.queueRuns(MANY);
      try {
        await queuing;
      } finally {
        isMany &&= (await comfy.waitingHere()).length > 0; // a graph that is refused queues none, and tells nobody of a queue
      }
    }

    async function stop() {
      isMany = false;
      let count = await empty();
      await queuing;
      count += await empty(); // what came meanwhile
      begun();
      say(0);
      if (count) comfy.toast("info", TEXT.train, t("{count} Runs were taken out of the queue. Press {train} to go on from here.", { count, train: TEXT.train }));
    }

    /** The red X ends one Run, and ComfyUI has begun the next when it says so. */
    async function end() {
      await stop();
      for (const id of await comfy.waitingHere("queue_running")) await comfy.interrupt(id);
    }

    async function empty() {
      const waiting = await comfy.waitingHere();
      if (waiting.length) await comfy.takeOut(waiting);
      return waiting.length;
    }

    /** @param {number} count of Runs that wait */
    function say(count) {
      left = count;
      train.label = left ? t("Stop after this one ({count} left)", { count: left }) : TEXT.train;
      node.setDirtyCanvas(true, true);
    }

    return {
      /** The queue has changed: {waiting}, with the one that runs; or that one was stopped, and with it what Train 20 queued. */
      show(kind, data) {
        if (kind === "interrupted" && isMany) reported(end());
        if (kind !== "queue") return;
        clearTimeout(looking);
        const isNewest = begun();
        if (data.waiting > 1) {
          looking = setTimeout(() => reported(comfy.waitingHere().then(({ length }) => isNewest() && say(length))), PAUSE);
        } else {
          isMany &&= data.waiting > 0;
          say(0);
        }
      },
    };
  },
};
