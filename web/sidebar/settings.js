// @ts-check
/** OTCA's part of ComfyUI's settings. Names and tooltips are English here, and translated by locales/. */
import { t } from "../lib/language.js";
import { allowedList, folderList } from "./settingparts.js";

/**
 * @param {Comfy} comfy
 * @param {{notify: (wanted: boolean) => void, changed: () => void}} actions `notify` is called by the user's click alone
 */
export function otcaSettings(comfy, { notify, changed }) {
  return [
    {
      id: "OTCA.Trainings",
      category: ["OTCA", "Training", "Trainings"],
      name: "Headless trainings at a time",
      tooltip: "More wait in a queue. 0: one for each accelerator, two on a CPU.",
      type: "number",
      attrs: { min: 0, max: 1024 },
      defaultValue: 0,
    },
    {
      id: "OTCA.Notify",
      category: ["OTCA", "Training", "Notify"],
      name: "Tell me when a run ends",
      tooltip: "A notification of the browser, while this page is open. The browser asks once whether it may.",
      type: "boolean",
      defaultValue: false,
      // Called too when the setting is registered, without a value before: that is nobody's click.
      onChange: (/** @type {boolean} */ wanted, /** @type {boolean | undefined} */ before) => {
        if (before !== undefined && wanted !== before) notify(wanted);
        changed();
      },
    },
    {
      id: "OTCA.TabTitle",
      category: ["OTCA", "Training", "TabTitle"],
      name: "Progress in the browser tab",
      tooltip: "The title of the browser's tab begins with how far the run is that the sidebar shows, while it trains.",
      type: "boolean",
      defaultValue: true,
      onChange: changed,
    },
    {
      id: "OTCA.Device",
      category: ["OTCA", "New nodes", "Device"],
      name: "Device of new nodes",
      tooltip: "What OTCA's nodes that you add from now on begin with: auto, cpu, cuda, cuda:1 …",
      type: "text",
      defaultValue: "auto",
    },
    {
      id: "OTCA.Precision",
      category: ["OTCA", "New nodes", "Precision"],
      name: "Precision of new models",
      tooltip: "What a Load Flow Model that you add from now on begins with. auto: bfloat16 on an accelerator, else float32.",
      type: "combo",
      options: ["auto", "float32", "bfloat16", "float16"],
      defaultValue: "auto",
    },
    {
      id: "OTCA.Folders",
      category: ["OTCA", "Folders", "Folders"],
      name: "Where things go",
      tooltip: "Runs, saved LoRAs, votes and permissions, and which option of ComfyUI decides it.",
      type: () => folderList(comfy),
      defaultValue: null,
    },
    {
      id: "OTCA.Allowed",
      category: ["OTCA", "Permissions", "Allowed"],
      name: "What you allowed",
      tooltip: "Folders, hosts and downloads that workflows may name. What a click allowed, a click takes back.",
      type: () => allowedList(comfy),
      defaultValue: null,
    },
  ];
}

/**
 * Has a new node begin with the user's device and precision. What a saved workflow says comes later and stays.
 *
 * @param {Comfy} comfy
 * @param {GraphNode} node
 */
export function beginWithDefaults(comfy, node) {
  const isModel = comfy.nodeDefinition(node)?.name === "OTCA_LoadFlowModel"; // a reward's precision is part of its scores
  for (const [name, setting] of [["device", "OTCA.Device"], ...(isModel ? [["dtype", "OTCA.Precision"]] : [])]) {
    const widget = node.widgets?.find((candidate) => candidate.name === name);
    const wanted = comfy.settingOf(setting);
    if (widget?.value === "auto" && typeof wanted === "string" && wanted.trim()) widget.value = wanted.trim();
  }
}

/**
 * Asks the browser, after the user's click, whether it may notify; where it may not, says so and takes the setting back.
 *
 * @param {Comfy} comfy
 */
export async function askToNotify(comfy) {
  const answer = "Notification" in window ? await Notification.requestPermission() : "denied";
  if (answer === "granted") return;
  await comfy.changeSetting("OTCA.Notify", false);
  comfy.toast(
    "warn",
    t("No notifications"),
    window.isSecureContext
      ? t("The browser does not allow them to this page. Fix: allow them beside the page's address, then switch this on again.")
      : t("Browsers allow them to https and to localhost only. Fix: open ComfyUI under such an address."),
  );
}
