// @ts-check
/** The page around the canvas: notices, settings and the sidebar. */
import { app } from "../../../scripts/app.js";

/**
 * severity: "success" | "info" | "warn" | "error"
 *
 * @param {"success" | "info" | "warn" | "error"} severity
 * @param {string} summary
 */
export function toast(severity, summary, detail = "") {
  app.extensionManager.toast.add({ severity, summary, detail, life: severity === "error" ? 10000 : 5000 });
}

/**
 * Front ends before 1.30 carry it on the manager itself, later ones below `sidebarTab`.
 *
 * @param {object} tab
 */
export function registerSidebar(tab) {
  const manager = app.extensionManager;
  if (manager.registerSidebarTab) manager.registerSidebarTab(tab);
  else manager.sidebarTab.registerSidebarTab(tab);
}

/** @param {string} id */
export function settingOf(id) {
  return app.extensionManager.setting.get(id);
}

/**
 * @param {string} id
 * @param {unknown} value
 */
export async function changeSetting(id, value) {
  await app.extensionManager.setting.set(id, value);
}

/**
 * Opens one of the sidebar's tabs, if another or none is open.
 *
 * @param {string} id
 */
export function openSidebar(id) {
  const sidebar = app.extensionManager.sidebarTab;
  if (sidebar.activeSidebarTabId !== id) sidebar.toggleSidebarTab(id);
}

/**
 * Closes it, if it is open: what it has opened lies below it.
 *
 * @param {string} id
 */
export function closeSidebar(id) {
  const sidebar = app.extensionManager.sidebarTab;
  if (sidebar.activeSidebarTabId === id) sidebar.toggleSidebarTab(id);
}
