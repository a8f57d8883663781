// @ts-check
/** The watcher of runs on ComfyUI's page: what the browser's tab says, and the notification when a run has ended. */
import { t } from "../lib/language.js";
import { STATUS } from "../lib/runs.js";
import { tabTitle, titleOf } from "../lib/tabtitle.js";
import { watcher } from "../lib/watch.js";

const EVERY_MS = 10_000;

/**
 * @param {Comfy} comfy
 * @param {(id: string) => void} showRun
 */
export function followRuns(comfy, showRun) {
  const title = tabTitle(document, (changed) => {
    const observer = new MutationObserver(changed);
    // The element itself may be replaced.
    observer.observe(document.head, { childList: true, subtree: true, characterData: true });
    return () => observer.disconnect();
  });
  const inTitle = () => comfy.settingOf("OTCA.TabTitle") !== false;
  const notifies = () => comfy.settingOf("OTCA.Notify") === true && "Notification" in window && Notification.permission === "granted";
  const watch = watcher({
    stateOf: (id) => comfy.getJson(`/otca/runs/${encodeURIComponent(id)}/state`),
    wanted: () => inTitle() || notifies(),
    ended: (run) => notifies() && notify(run, showRun),
    followed: (run) => title.show(inTitle() ? titleOf(run) : null),
    every: EVERY_MS,
  });
  return {
    ...watch,
    /** Runs that train already when the page is opened are told of, too. */
    async begin() {
      if (notifies()) watch.see((await comfy.getJson("/otca/runs")).runs);
    },
  };
}

/**
 * @param {Run} run
 * @param {(id: string) => void} showRun
 */
function notify(run, showRun) {
  const progress = t("iteration {iteration}", { iteration: run.iteration });
  const told = new Notification(`${run.id}: ${STATUS[run.status].word}`, { body: run.error ?? progress, tag: `otca ${run.id}` });
  told.onclick = () => {
    window.focus();
    showRun(run.id);
    told.close();
  };
}
