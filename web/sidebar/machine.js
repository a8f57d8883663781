// @ts-check
/** The machine, in the sidebar: a slim line of memory for each device, and the trainings that wait for it. */
import { t } from "../lib/language.js";
import { memoryLine, queueEntries } from "../lib/machine.js";
import { poll } from "../lib/poll.js";
import { h, keyedChildren, setText } from "./dom.js";

const POLL_MS = 2000;

/**
 * Both parts, which follow the server by themselves while the page is seen.
 *
 * @param {Comfy} comfy
 * @param {object} actions each but the last is told the id of a run
 * @param {(id: string) => void} actions.choose
 * @param {(id: string) => unknown} actions.moveUp
 * @param {(id: string) => unknown} actions.takeOut
 * @param {() => unknown} actions.changed who waits is not who waited: a training has begun, also by another page
 */
export function machinePart(comfy, actions) {
  const memory = h("div.otca-memory", { role: "group", "aria-label": t("Memory in use") });
  const list = h("ol.otca-queue-list");
  const queue = h("section.otca-queue", { "aria-label": t("Queue") }, h("h3.otca-heading", {}, t("Queue")), list);
  queue.hidden = true;
  const updateMemory = keyedChildren(memory, (/** @type {Memory} */ { name }) => name, memoryRow);
  const updateQueue = keyedChildren(
    list,
    (/** @type {QueueEntry} */ { id }) => id,
    () => queueRow(actions),
  );
  let disposed = false;
  let waited = "";

  async function read() {
    const machine = await comfy.getJson("/otca/machine");
    if (disposed) return false;
    updateMemory(machine.memory);
    const entries = queueEntries(machine.queue);
    updateQueue(entries);
    queue.hidden = entries.length === 0;
    const waits = JSON.stringify(entries.map(({ id }) => id).sort());
    if (waited && waits !== waited) actions.changed();
    waited = waits;
    return true; // memory changes by what others do
  }

  const isSeen = () => document.visibilityState === "visible";
  // The list of runs beside it says what is wrong with the server.
  const { refresh, end } = poll(read, { every: POLL_MS, isSeen, failed: () => {} });
  refresh();
  return {
    memory,
    queue,
    refresh,
    dispose() {
      disposed = true;
      end();
    },
  };
}

/** @returns {View<Memory>} */
function memoryRow() {
  const label = h("span.otca-memory-name");
  const figures = h("span.otca-memory-figures");
  const ours = h("div.otca-memory-ours");
  const used = h("div.otca-memory-used");
  const bar = h("div.otca-memory-bar", { role: "meter", "aria-valuemin": 0, "aria-valuemax": 100 }, used, ours);
  return {
    element: h("div.otca-memory-row", {}, label, bar, figures),
    update(memory) {
      const line = memoryLine(memory);
      setText(label, line.label);
      setText(figures, line.text);
      bar.setAttribute("aria-label", line.label);
      bar.setAttribute("aria-valuenow", String(Math.round(100 * line.used)));
      bar.setAttribute("aria-valuetext", line.text);
      used.style.width = `${100 * line.used}%`;
      ours.style.width = `${100 * line.ours}%`;
    },
  };
}

/**
 * @typedef {ReturnType<typeof queueEntries>[number]} QueueEntry
 *
 * @param {{choose: (id: string) => void, moveUp: (id: string) => unknown, takeOut: (id: string) => unknown}} actions
 * @returns {View<QueueEntry>}
 */
function queueRow(actions) {
  let id = "";
  const name = h("button.otca-queue-name", { type: "button", onclick: () => actions.choose(id) });
  const text = h("span.otca-quiet");
  const up = iconButton("pi-arrow-up", () => actions.moveUp(id));
  const out = iconButton("pi-times", () => actions.takeOut(id));
  return {
    element: h("li.otca-queue-entry", {}, h("div.otca-queue-text", {}, name, text), up, out),
    update(entry) {
      id = entry.id;
      setText(name, id);
      setText(text, entry.text);
      up.disabled = entry.first;
      named(up, t("Move {run} up", { run: id }));
      named(out, t("Take {run} out of the queue", { run: id }));
    },
  };
}

/**
 * @param {string} icon
 * @param {() => unknown} onclick
 */
function iconButton(icon, onclick) {
  return h("button.otca-icon-button", { type: "button", onclick }, h(`i.pi.${icon}`, { "aria-hidden": "true" }));
}

/**
 * @param {HTMLElement} element
 * @param {string} text
 */
function named(element, text) {
  element.setAttribute("aria-label", text);
  element.setAttribute("title", text);
}
