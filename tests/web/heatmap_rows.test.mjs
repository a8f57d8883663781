import assert from "node:assert/strict";
import test from "node:test";

import { READABLE, colorScale, gapOf, openedBy, rowAt, sectionsOf } from "../../web/lib/heatmap_rows.js";

/** `prompts` of `each` samples, numbered from 0 on as they stand. */
function groups(prompts, each) {
  return Array.from({ length: prompts }, (_, g) => ({
    ...{ prompt: `prompt text ${g + 1}`, number: g + 1 },
    samples: Array.from({ length: each }, (_, i) => g * each + i),
  }));
}

const sectionsAt = (height, prompts, each, { open = null, advantage = null } = {}) =>
  sectionsOf(groups(prompts, each), height, { open, advantage });

const rowsOf = (sections) => sections.map(({ rows }) => rows.map(({ samples }) => samples));

function heightOf(sections) {
  return rowsOf(sections).flat().length * READABLE + gapOf(sections.length) * (sections.length - 1);
}

test("every sample has a row as long as these can be seen", () => {
  const height = 8 * READABLE + gapOf(2);
  assert.deepEqual(rowsOf(sectionsAt(height, 2, 4)), [[[0], [1], [2], [3]], [[4], [5], [6], [7]]]);
  assert.deepEqual(rowsOf(sectionsAt(height - 1, 2, 4)), [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]);
});

test("of 512 samples each prompt has a row of the reinforced and one of the discouraged", () => {
  const advantage = (sample) => [1, -1, 0, null][sample % 4];
  const [first, ...others] = sectionsAt(200, 16, 32, { advantage });
  assert.equal(others.length, 15);
  const of = (rest) => Array.from({ length: 8 }, (_, i) => 4 * i + rest);
  assert.deepEqual(first.rows, [{ samples: of(0), kind: "reinforced" }, { samples: of(1), kind: "discouraged" }]);
  assert.deepEqual(first.samples.length, 32, "those that are neither are found when it is opened");
  const [even] = sectionsAt(200, 16, 32, { advantage: () => 0 });
  assert.deepEqual(even.rows, [{ samples: even.samples, kind: "all" }]);
});

test("where even two rows a prompt are too many it has one, and then several prompts share one", () => {
  const advantage = (sample) => (sample % 2 ? 1 : -1);
  const single = sectionsAt(64 * READABLE + 63 * gapOf(64), 64, 8, { advantage });
  assert.deepEqual([single.length, single[0].rows.length], [64, 1]);
  const shared = sectionsAt(100, 64, 8, { advantage });
  assert.deepEqual([shared[0].number, shared[0].last, shared[0].prompt], [1, 3, ""]);
  assert.deepEqual(shared[0].rows[0].samples.length, 24);
  assert.deepEqual(shared.flatMap(({ samples }) => samples), groups(64, 8).flatMap(({ samples }) => samples));
});

test("no row is lower than can be seen, however many samples there are", () => {
  for (const height of [150, 200, 320]) {
    for (const [prompts, each] of [[1, 512], [2, 256], [16, 32], [64, 8], [512, 1], [3, 1000]]) {
      for (const advantage of [null, (sample) => Math.sin(sample)]) {
        const folded = sectionsAt(height, prompts, each, { advantage });
        assert.ok(heightOf(folded) <= height, `${prompts} × ${each} in ${height}: ${heightOf(folded)}`);
        const open = openedBy(folded, 0);
        assert.ok(open.length < prompts * each, "a click shows fewer samples");
        assert.ok(heightOf(sectionsAt(height, prompts, each, { open, advantage })) <= height);
      }
    }
  }
});

test("a prompt that is opened shows its samples; the others stay where there is room", () => {
  const open = groups(16, 32)[1].samples;
  const beside = sectionsAt(320, 16, 32, { open });
  assert.deepEqual([beside.length, beside[0].rows.length, beside[1].rows.length], [16, 1, 32]);
  const alone = sectionsAt(120, 16, 32, { open });
  assert.deepEqual([alone.length, alone[0].number, alone[0].rows.length], [1, 2, 32]);
});

test("clicks lead to single samples in the end", () => {
  let open = null;
  for (let clicks = 0; clicks < 6; clicks++) {
    const sections = sectionsAt(60, 40, 100, { open });
    if (rowAt(sections, 0)[1].samples.length === 1) return;
    open = openedBy(sections, 0);
  }
  assert.fail("six clicks were not enough");
});

test("a row is found by its place from the top", () => {
  const sections = sectionsAt(100, 2, 3);
  const [section, row] = rowAt(sections, 4);
  assert.deepEqual([section.number, row.samples], [2, [4]]);
  assert.throws(() => rowAt(sections, 6), RangeError);
});

test("colours end at the largest value, unless it is extreme", () => {
  const rows = (...peaks) => peaks.map((peak) => [peak / 2, -peak, null]);
  assert.deepEqual(colorScale(rows(1, 2, 3, 4, 5, 6, 7, 8), 0), { limit: 8, beyond: 0, largest: 8 });
  assert.deepEqual(colorScale(rows(1, 2, 3, 4, 5, 6, 7, 60), 0), { limit: 7, beyond: 1, largest: 60 });
  const many = Array.from({ length: 100 }, (_, i) => (i < 4 ? 50 : 1));
  assert.deepEqual(colorScale(rows(...many), 0), { limit: 1, beyond: 4, largest: 50 });
  const fives = Array.from({ length: 100 }, (_, i) => (i < 10 ? 50 : 1));
  assert.deepEqual(colorScale(rows(...fives), 0).limit, 50, "a tenth of all is no exception");
});

test("of a few rows none is an exception, and colours end somewhere without any value", () => {
  assert.deepEqual(colorScale([[0.1], [9]], 0).limit, 9);
  assert.deepEqual(colorScale([[null], []], 0), { limit: 1, beyond: 0, largest: 0 });
  assert.deepEqual(colorScale(Array(20).fill([0]), 0).limit, 1);
  assert.deepEqual(colorScale([...Array(20).fill([0]), [3]], 0).limit, 3);
  assert.deepEqual(colorScale([[1.2], [0.8]], 2).limit, 2, "of weights, twice the mean is still on the scale");
});
