// @ts-check
// The workflow inside a .safetensors file: an 8-byte length, then a JSON header whose __metadata__ holds strings.
import { t } from "./language.js";

const LARGEST_HEADER = 100_000_000; // the format's own limit

/** Thrown with a message for the user. */
export class SafetensorsError extends Error {}

/**
 * Length of the header in bytes, from the file's first eight.
 *
 * @param {ArrayBuffer} firstBytes
 * @param {number} fileSize
 */
export function headerLength(firstBytes, fileSize) {
  if (firstBytes.byteLength < 8) throw new SafetensorsError(t("The file is too short to be a .safetensors file."));
  const length = Number(new DataView(firstBytes).getBigUint64(0, true));
  if (length < 2 || length > LARGEST_HEADER || 8 + length > fileSize) {
    throw new SafetensorsError(t("This is not a .safetensors file, or it was cut off while it was copied."));
  }
  return length;
}

/**
 * The workflow that a header's metadata carry.
 * @param {string} headerText
 * @returns {SavedGraph} the canvas's own format if it is there, else the API format.
 */
export function workflowIn(headerText) {
  let metadata;
  try {
    metadata = JSON.parse(headerText).__metadata__ ?? {};
  } catch {
    throw new SafetensorsError(t("The file's header is broken: it is not JSON."));
  }
  for (const key of ["workflow", "prompt"]) {
    if (!metadata[key]) continue;
    try {
      const graph = JSON.parse(metadata[key]);
      if (graph && Object.keys(graph).length) return key === "workflow" ? { workflow: graph } : { prompt: graph };
    } catch {
      throw new SafetensorsError(t("The file's {part} is broken: it is not JSON.", { part: key }));
    }
  }
  throw new SafetensorsError(
    t("The file carries no workflow. LoRA files that a Training Run or Save LoRA node wrote do."),
  );
}

/**
 * Reads only the header, however large the rest is.
 *
 * @param {Blob} file
 */
export async function readWorkflow(file) {
  const length = headerLength(await file.slice(0, 8).arrayBuffer(), file.size);
  return workflowIn(await file.slice(8, 8 + length).text());
}
