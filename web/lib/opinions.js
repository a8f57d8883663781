// @ts-check
/** What is said of a picture: how a key changes it before the server has said so, and what is written on a tile. */
import { count } from "./format.js";
import { t } from "./language.js";

/**
 * @typedef {{like: boolean, box?: [number, number, number, number]}} Region box: left, top, right, bottom in shares
 * @typedef {{thumb: number, stars: number, tags: string[], regions: Record<string, Region>, better: number, worse: number}} Said
 * @typedef {{id: string, kind: string, picture: string, other: string, value: any}} Opinion `other` and `value` as the store has them
 */

/**
 * The next pairs to ask about that were not shown yet: an answer may be on its way while the next ones are asked for.
 *
 * @template {{pair: [string, string]}} Asked
 * @param {(skip: number) => Promise<Asked[]>} ask the server's pairs but so many
 * @param {number} skip
 * @param {Set<string>} seen ids of pictures that were shown together, as `shownTogether`
 * @returns {Promise<Asked[]>}
 */
export async function unseenPairs(ask, skip, seen) {
  const found = await ask(skip);
  const unseen = found.filter(({ pair }) => !seen.has(shownTogether(pair)));
  return unseen.length || !found.length || skip > seen.size ? unseen : unseenPairs(ask, skip + found.length, seen);
}

/** @param {[string, string]} pair */
export const shownTogether = (pair) => [...pair].sort().join(" ");

/** @returns {Said} */
export const nothingSaid = () => ({ thumb: 0, stars: 0, tags: [], regions: {}, better: 0, worse: 0 });

/**
 * What is said of a picture once these opinions are kept, too.
 *
 * @param {Said} said
 * @param {string} picture
 * @param {Opinion[]} opinions
 * @returns {Said}
 */
export function withOpinions(said, picture, opinions) {
  let now = said;
  for (const { kind, picture: about, other, value } of opinions) {
    if (kind === "pair") {
      if (about === picture) now = { ...now, better: now.better + 1 };
      if (other === picture) now = { ...now, worse: now.worse + 1 };
    } else if (about === picture) {
      if (kind === "thumb" || kind === "stars") now = { ...now, [kind]: value ?? 0 };
      else if (kind === "tag") now = { ...now, tags: [...now.tags.filter((tag) => tag !== other), ...(value ? [other] : [])] };
      else if (kind === "region") {
        const { [other]: _, ...regions } = now.regions;
        now = { ...now, regions: value ? { ...regions, [other]: value } : regions };
      }
    }
  }
  return now;
}

/**
 * What a key says of the picture that is marked; null: nothing. The same key again takes it back.
 *
 * @param {string} key
 * @param {Said} said
 * @returns {{kind: string, value: any} | null}
 */
export function saidBy(key, said) {
  if (/^[1-5]$/.test(key)) return { kind: "stars", value: said.stars === Number(key) ? null : Number(key) };
  if (key === "ArrowUp") return { kind: "thumb", value: said.thumb === 1 ? null : 1 };
  if (key === "ArrowDown") return { kind: "thumb", value: said.thumb === -1 ? null : -1 };
  return null;
}

/**
 * A few signs for a tile, and the same in words for who does not see them.
 *
 * @param {Said} said
 */
export function marksOf({ thumb, stars, tags, regions, better, worse }) {
  const areas = Object.keys(regions).length;
  const signs = [
    thumb > 0 && "👍",
    thumb < 0 && "👎",
    stars > 0 && "★".repeat(stars),
    better + worse > 0 && `⚖${better + worse}`,
    areas > 0 && "▣",
    tags.length > 0 && "#",
  ];
  const words = [
    thumb > 0 && t("liked"),
    thumb < 0 && t("disliked"),
    stars > 0 && t("{stars} of 5 stars", { stars }),
    better > 0 && count(better, t("better in {count} pair"), t("better in {count} pairs")),
    worse > 0 && count(worse, t("worse in {count} pair"), t("worse in {count} pairs")),
    areas > 0 && count(areas, t("{count} region"), t("{count} regions")),
    ...tags,
  ];
  return { signs: signs.filter(Boolean).join(" "), words: words.filter(Boolean).join(", ") };
}

/**
 * A box between two points of a picture, in shares of its sides; null where it is hardly more than a click.
 *
 * @param {[number, number]} from
 * @param {[number, number]} to
 * @returns {[number, number, number, number] | null}
 */
export function boxBetween(from, to) {
  const inside = (/** @type {number} */ share) => Math.round(10_000 * Math.min(1, Math.max(0, share))) / 10_000;
  const [left, right] = [inside(Math.min(from[0], to[0])), inside(Math.max(from[0], to[0]))];
  const [top, bottom] = [inside(Math.min(from[1], to[1])), inside(Math.max(from[1], to[1]))];
  return right - left < 0.02 || bottom - top < 0.02 ? null : [left, top, right, bottom];
}
