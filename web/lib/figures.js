// @ts-check
/** The figures of a run by their names. They grow with its rows: what was read before is not gone through again. */

export class GrowingFigures {
  /** @type {Row[]} */
  #rows = [];
  /** @type {Map<string, Value[]>} */
  #columns = new Map();
  /** @type {Set<string>} */
  #names = new Set();
  /** @type {Set<string>} */
  #everNonzero = new Set();

  /**
   * Takes over all rows of a run; those that are new come after those that were there, unless the run was written anew.
   *
   * @param {Row[]} rows
   */
  update(rows) {
    const known = this.#rows.length;
    const grew = known <= rows.length && rows[0] === this.#rows[0] && rows[known - 1] === this.#rows[known - 1];
    if (!grew) [this.#columns, this.#names, this.#everNonzero] = [new Map(), new Set(), new Set()];
    for (let index = grew ? known : 0; index < rows.length; index++) {
      for (const name in rows[index]) {
        this.#names.add(name);
        if (rows[index][name]) this.#everNonzero.add(name);
      }
    }
    this.#rows = rows;
  }

  /** Of all figures, in the order in which they first came. */
  get names() {
    return this.#names;
  }

  /** @param {string} name whether any row has that figure, and not zero */
  isEverNonzero(name) {
    return this.#everNonzero.has(name);
  }

  /**
   * The values of one figure, one a row, null where a row lacks it.
   *
   * @param {string} name
   * @returns {any[]} numbers or null
   */
  column(name) {
    const values = this.#columns.get(name) ?? [];
    this.#columns.set(name, values);
    for (let index = values.length; index < this.#rows.length; index++) values.push(this.#rows[index][name] ?? null);
    return values;
  }
}
