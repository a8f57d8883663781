// @ts-check
/**
 * The figures of a run by their names, as plain numbers: ten thousand rows as objects would be half a million boxed numbers, which
 * the browser goes through again whenever it looks for garbage.
 */

const FIRST_ROOM = 64;

export class GrowingFigures {
  length = 0; // rows
  /** @type {Map<string, Float64Array<ArrayBuffer>>} */
  #columns = new Map(); // each with room for more; NaN where a row lacks the figure
  /** @type {Set<string>} */
  #everNonzero = new Set();
  #room = FIRST_ROOM;

  /**
   * Adds rows; those that are there already, by their iteration, are left out.
   *
   * @param {Row[]} rows in order
   */
  append(rows) {
    for (const row of rows) {
      if (this.length && row.iteration <= this.column("iteration")[this.length - 1]) continue;
      if (this.length === this.#room) this.#grow();
      for (const name in row) {
        const value = row[name];
        const column = this.#columns.get(name) ?? this.#begin(name);
        if (value === null) continue;
        column[this.length] = value;
        if (value) this.#everNonzero.add(name);
      }
      this.length += 1;
    }
  }

  #grow() {
    this.#room *= 2;
    for (const [name, column] of this.#columns) {
      const wider = new Float64Array(this.#room).fill(NaN, this.length);
      wider.set(column);
      this.#columns.set(name, wider);
    }
  }

  /** @param {string} name */
  #begin(name) {
    const column = new Float64Array(this.#room).fill(NaN);
    this.#columns.set(name, column);
    return column;
  }

  /** Of all figures, in the order in which they first came. */
  get names() {
    return [...this.#columns.keys()];
  }

  /** @param {string} name whether any row has that figure, and not zero */
  isEverNonzero(name) {
    return this.#everNonzero.has(name);
  }

  /**
   * The values of one figure, one a row, NaN where a row lacks it.
   *
   * @param {string} name
   */
  column(name) {
    return (this.#columns.get(name) ?? new Float64Array(this.length).fill(NaN)).subarray(0, this.length);
  }
}
