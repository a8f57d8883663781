import assert from "node:assert/strict";
import test from "node:test";

import { agreement, learned, secondsToCome, strip } from "../../web/lib/learned.js";

/** Two evaluations of one reward, the last of which came to `rise` ± `error` since the first. */
const evaluated = (before, after, rise, error, since = 0) => [
  { iteration: since, rewards: { judge: { mean: before } } },
  { iteration: 20, since, rewards: { judge: { mean: after, rise: [rise, error] } } },
];

test("scores between -1 and 1 rise by points, others by their own measure", () => {
  assert.deepEqual(learned(evaluated(0.328, 0.4531, 0.125, 0.042), "judge"), {
    ends: "0.328 → 0.453",
    rise: "+13 points since the start ± 4",
    inPoints: true,
    tone: "good",
  });
  assert.equal(learned(evaluated(0.7, 0.7081, 0.0081, 0.0031), "judge").rise, "+0.8 points since the start ± 0.3");
  assert.equal(learned(evaluated(296, 308.4, 12.4, 1.52), "judge").rise, "+12.4 since the start ± 1.5");
  assert.equal(learned(evaluated(296, 347.1, 51.1, 6.04), "judge").rise, "+51.1 since the start ± 6.0");
  assert.equal(learned(evaluated(2000, 2512, 512.4, 61.7), "judge").rise, "+512 since the start ± 62");
});

test("a rise within two standard errors is not clear, and without an error none is", () => {
  const { rise, tone } = learned(evaluated(0.4, 0.45, 0.05, 0.04), "judge");
  assert.deepEqual([rise, tone], ["+5 points ± 4: not clear yet", "unclear"]);
  assert.equal(learned(evaluated(0.4, 0.45, 0.05, null), "judge").rise, "+5 points: not clear yet");
  assert.deepEqual(learned(evaluated(0.5, 0.3, -0.2, 0.05, 10), "judge").tone, "bad");
  assert.equal(learned(evaluated(0.5, 0.3, -0.2, 0.05, 10), "judge").rise, "\u221220 points since iteration 10 ± 5");
});

test("one evaluation, or another reward's, is no rise", () => {
  const [, last] = evaluated(0.4, 0.5, 0.1, 0.01);
  assert.equal(learned([], "judge"), null);
  assert.equal(learned([{ iteration: 0, rewards: { judge: { mean: 0.4 } } }], "judge"), null);
  assert.equal(learned([{ ...last, since: undefined }], "judge"), null);
  assert.equal(learned(evaluated(0.4, 0.5, 0.1, 0.01), "grade"), null);
});

const grid = (iteration, ...prompts) => ({ iteration, pictures: prompts.map((prompt) => ({ prompt, seed: 0 })) });

test("a strip has evaluations of the same pictures, and pictures from all of them", () => {
  const letters = [..."abcdefghij"];
  const grids = [grid(0, "x"), grid(10, ...letters), grid(20, ...letters), grid(30, ...letters)];
  const shown = strip(grids, 0, 4);
  assert.deepEqual(shown.grids.map(({ iteration }) => iteration), [10, 20, 30]);
  assert.deepEqual(shown.numbers, [0, 2, 5, 7]);
  assert.deepEqual(strip(grids, 20, 12).grids.map(({ iteration }) => iteration), [20, 30]);
  assert.deepEqual(strip(grids, 20, 12).numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  assert.deepEqual(strip(grids, undefined, 4).grids.map(({ iteration }) => iteration), [30], "none can be compared with it");
  assert.deepEqual(strip([], undefined, 4), { grids: [], numbers: [] });
});

test("time left is known from the second prompt on, and leaves out the first, which loads", () => {
  assert.equal(secondsToCome([], 5), null);
  assert.equal(secondsToCome([100], 5), null);
  assert.equal(secondsToCome([100, 3], 5), 15);
  assert.equal(secondsToCome([100, 50, ...Array(10).fill(2)], 5), 10, "of the last ten");
  assert.equal(secondsToCome([100, 3], 0), null, "nothing waits");
});

test("agreement with few pairs is a count without an error, and is said as an interval from 20 on", () => {
  const row = (mean, pairs, error = 0.1) => ({ "opinions/agreement": mean, "opinions/agreement_error": error, "opinions/held_out": pairs });
  assert.deepEqual(agreement(row(1, 5, 0)), { mean: 1, standard_error: null, words: "5 of 5 pairs" });
  assert.equal(agreement(row(4.5 / 7, 7)).words, "4.5 of 7 pairs", "alike counts as a half");
  assert.deepEqual(agreement(row(0.75, 20)), { mean: 0.75, standard_error: 0.1, words: null });
  assert.deepEqual(agreement({ ...row(0.75, 20), "opinions/agreement_error": null }), { mean: 0.75, standard_error: null, words: null });
  assert.equal(agreement({}), null);
  assert.equal(agreement(row(NaN, 20)), null);
});
