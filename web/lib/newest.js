// @ts-check
/** Lets only the newest of several answers count: an older one may come after it. */

/** @returns {() => () => boolean} to be called when something is asked; what it gives says whether nothing was asked since then */
export function newest() {
  let asked = 0;
  return () => {
    const mine = ++asked;
    return () => mine === asked;
  };
}
