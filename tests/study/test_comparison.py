"""What a comparison says of given trainings: scores, pairing, crossings, and the tables."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from comfyui_otca.study import comparison_plot, comparison_report
from comfyui_otca.study.comparison import Outcome, first_crossing, summarise
from comfyui_otca.study.comparison_report import Facts, Sweep
from comfyui_otca.study.diversity import pairwise_distance
from comfyui_otca.trainer.run.folder import RunError


def outcome(a, b=(10.0, 10.0, 10.0), held_out=(0.5, 0.5, 0.5), iterations=(0, 5, 10), **changes):
    """Two trained rewards of spread 2 and 5, and one held out."""
    figures = dict(diversity=0.1, seconds=1.0, forwards=100.0, with_gradient=50.0) | changes
    trained = {"a": np.array(a, dtype=float), "b": np.array(b, dtype=float)}
    return Outcome(iterations, trained, {"held": np.array(held_out, dtype=float)}, {"a": 2.0, "b": 5.0}, **figures)


def test_a_score_is_the_mean_standardised_rise():
    own = outcome((1, 5, 3), (10, 5, 20))
    np.testing.assert_allclose(own.gains["a"], [0, 2, 1])
    np.testing.assert_allclose(own.gains["b"], [0, -1, 2])
    np.testing.assert_allclose(own.score, [0, 0.5, 1.5])
    assert own.drop == 0
    assert outcome((1, 9, 5), iterations=(0, 5, 10)).drop == pytest.approx(1.0)  # the score falls from 2 to 1


def test_where_a_curve_first_gets_to_a_score():
    assert first_crossing([0, 10, 20], [0.0, 1.0, 3.0], 2.0) == 15
    assert first_crossing([0, 10, 20], [0.0, 3.0, 1.0], 1.5) == 5, "that it falls again changes nothing"
    assert first_crossing([0, 10], [0.0, 1.0], 1.0) == 10
    assert first_crossing([0, 10], [0.0, 1.0], 1.1) is None
    assert first_crossing([0, 10], [0.0, 1.0], -1.0) == 0
    assert first_crossing([0, 10, 20], [0.0, math.nan, 2.0], 1.0) == 10, "the line goes on over a gap"
    assert first_crossing([0, 10], [math.nan, math.nan], 1.0) is None


@pytest.fixture
def rows():
    """Base ends at scores 0.25, 0.5, 0.75; better at one more in every seed; worse at -0.5, -0.25, 0.25."""
    outcomes = {
        "base": {s: outcome((1, 1, 1 + 4 * end)) for s, end in enumerate((0.25, 0.5, 0.75))},
        "better": {s: outcome((1, 1, 5 + 4 * end), (10, 10, 10)) for s, end in enumerate((0.25, 0.5, 0.75))},
        "worse": {
            s: outcome((1, 1, 1 + 4 * end), held_out=(0.5, 0.6, 0.7), diversity=0.2)
            for s, end in enumerate((-0.5, -0.25, 0.25))
        },
    }
    return summarise(outcomes, {"base": 1e-4, "better": 2e-4, "worse": 3e-4}, 12, "base")


def test_differences_are_paired_by_seed(rows):
    base, better, worse = rows
    assert base.difference is None and math.isnan(base.corrected)
    assert (better.difference.mean, better.difference.low, better.difference.high) == pytest.approx((1, 1, 1))
    assert better.p == 0
    # Differences -0.75, -0.75, -0.5: mean -2/3, standard error 1/12, t = -8 of two degrees of freedom.
    assert worse.difference.mean == pytest.approx(-2 / 3)
    assert worse.difference.high == pytest.approx(-2 / 3 + 4.302653 / 12)
    assert worse.p == worse.corrected == pytest.approx(1 - 8 / math.sqrt(66))
    assert base.deviation == pytest.approx(0.25) and base.final.mean == pytest.approx(0.5)


def test_samples_to_the_baselines_score(rows):
    base, better, worse = rows
    assert base.samples == [0, 60, 120]
    assert base.reached == pytest.approx(120) and base.reached_by == 2
    assert better.reached == pytest.approx(60 + 60 * 0.5 / 1.5) and better.reached_by == 3
    assert worse.reached is None and worse.reached_by == 0


def test_balance(rows):
    better = rows[1]
    assert better.gains["a"].mean == pytest.approx(3) and better.gains["b"].mean == 0
    assert better.least == "b" and better.spread == pytest.approx(1.5)


def test_only_evaluations_that_all_have():
    longer = outcome((1, 3, 5, 9), (10,) * 4, (0.5,) * 4, iterations=(0, 5, 8, 10))
    shorter = outcome((1, 3, 7), iterations=(0, 5, 10))
    base, other = summarise({"base": {0: longer}, "other": {0: shorter}}, {"base": 1.0, "other": 1.0}, 1, "base")
    assert base.samples == other.samples == [0, 5, 10]
    assert base.final.mean == pytest.approx(2) and math.isnan(base.final.low)


def test_seeds_that_only_one_has():
    """What a row is measured against is of the seeds that both have: here seed 1 alone, where the baseline ended at 0.25."""
    outcomes = {
        "base": {0: outcome((1, 1, 9)), 1: outcome((1, 1, 2))},
        "other": {1: outcome((1, 3, 3)), 2: outcome((1, 1, 1))},
    }
    base, other = summarise(outcomes, {"base": 1.0, "other": 1.0}, 12, "base")
    assert base.reached == pytest.approx(120) and base.final.mean == pytest.approx(1.125)
    assert other.difference.mean == pytest.approx(0.25) and other.difference.count == 1
    assert other.reached == pytest.approx(60) and other.reached_by == 1, "the mean curve: 0, 0.25, 0.25"
    facts = Facts("base", 12, 32, 4, "clip", 0.3, {"held": 0.5}, {}, {})
    assert "| other | 1 | 2 | +0.25 ± 3.18 | +0.25, of 1 seeds |" in comparison_report.markdown(
        [base, other], None, facts
    )


def test_a_training_without_a_score_spoils_its_own_row_only():
    outcomes = {
        "base": {s: outcome((1, 1, 3)) for s in range(2)},
        "gap": {0: outcome((1, 1, math.nan), unscored=4, declined=("held",)), 1: outcome((1, 1, 3))},
    }
    base, gap = summarise(outcomes, {"base": 1.0, "gap": 1.0}, 12, "base")
    assert base.final.mean == 0.5 and base.reached == 120
    assert math.isnan(gap.final.mean) and math.isnan(gap.spread) and gap.least == "b" and gap.unscored == 4
    text = comparison_report.markdown([base, gap], None, Facts("base", 12, 32, 4, "clip", 0.3, {"held": 0.5}, {}, {}))
    assert "nan" not in text and "which are in no mean: gap 4." in text
    assert gap.declined == {"held": 1} and base.declined == {}
    assert "by more than one standard error: held of gap with 1 of 2 seeds." in text


def test_other_rewards_are_refused():
    other = replace(outcome((1, 2, 3)), trained={"a": np.array([1.0, 2.0, 3.0])}, spread={"a": 2.0})
    with pytest.raises(RunError, match=r"other, seed 0, has other rewards: a, held \(held out\). Fix: "):
        summarise({"base": {0: outcome((1, 2, 3))}, "other": {0: other}}, {"base": 1.0, "other": 1.0}, 1, "base")


def test_what_did_not_start_alike_is_refused():
    outcomes = {"base": {0: outcome((1, 2, 3))}, "other": {0: outcome((1.1, 2, 3))}}
    with pytest.raises(RunError, match="other, seed 0, began at a 1.1 where others began at 1,.*Fix: "):
        summarise(outcomes, {"base": 1.0, "other": 1.0}, 1, "base")


def test_no_common_seed_is_refused():
    outcomes = {"base": {0: outcome((1, 2, 3))}, "other": {1: outcome((1, 2, 3))}}
    with pytest.raises(RunError, match="no seed that both"):
        summarise(outcomes, {"base": 1.0, "other": 1.0}, 1, "base")


@pytest.fixture
def facts():
    differing = {"better": ["GRPOStep.epochs = 2 instead of 1"], "worse": []}
    return Facts("base", 12, 32, 4, "clip", 0.3, {"held": 0.5}, differing, {"worse, learning rate 1, seed 3": "failed"})


def test_the_tables(rows, facts):
    scores = {"better": {1e-4: 0.5, 2e-4: 0.75}, "worse": {}, "base": {1e-4: 0.25, 2e-4: 9.0}}
    sweep = Sweep([1000], 10, scores, {"better": 2e-4, "base": 1e-4}, [1e-4, 2e-4], {"base": [2e-4]})
    text = comparison_report.markdown(rows, sweep, facts)
    assert "120 samples each: 10 iterations of 12." in text
    assert "| better | 0.0002 | 3 | +1.50 ± 0.62 | **+1.00 (+1.00 … +1.00)** | < 0.001 | 80 (3 of 3 seeds) |" in text
    assert "| worse | 0.0003 | 3 |" in text and "not reached (0 of 3 seeds)" in text
    assert "| better | +0.50 | **+0.75** | at an edge of the sweep |" in text
    assert "| base | **+0.25** | +9.00 ↓ | at an edge of the sweep |" in text
    assert "| worse | no score | no score |  |" in text and "no reward could give" not in text
    assert "| before training | 0 | 0 |  |  | 0.500 |  | 0.300 |" in text
    assert "| 0.700 ± 0.000 | **+0.200 (+0.200 … +0.200)** | 0.200 ± 0.000 |" in text
    # 80 samples are 80 / 12 iterations of 100 forwards.
    assert "| better | 100 | 50 | 667 | 1.00 |" in text and "| worse | 100 | 50 | not reached | 1.00 |" in text
    assert "- better: GRPOStep.epochs = 2 instead of 1" in text and "- worse: nothing" in text
    assert "- worse, learning rate 1, seed 3: failed" in text and "nan" not in text
    widths = {line.count("|") for line in text.split("\n\n")[2].splitlines()}
    assert len(widths) == 1, "every row has every column"


def test_the_tables_of_one_workflow(rows, facts):
    text = comparison_report.markdown(rows[:1], None, replace(facts, differing={}, unfinished={}))
    assert "What differs" not in text and "Least and spread:" in text


@pytest.mark.painted
def test_the_figure(rows, facts):
    picture = comparison_plot.picture(rows, facts)
    assert picture.shape[1] > 1000
    shown = {tuple(color) for color in picture.reshape(-1, 3)[::7]}
    assert {(0, 0x72, 0xB2), (0xE6, 0x9F, 0)} <= shown, "both others are drawn, in their colours"


def test_pairwise_distance_by_hand():
    # Of three orthogonal unit vectors all pairs are 1 apart; of three equal ones, whatever their lengths, 0.
    apart, alike = torch.eye(3), torch.tensor([[1.0, 0, 0], [2, 0, 0], [5, 0, 0]])
    assert pairwise_distance(torch.stack([apart, alike])) == pytest.approx(0.5)
    opposite = torch.tensor([[[1.0, 0], [-1, 0]]])
    assert pairwise_distance(opposite) == pytest.approx(2)
    assert math.isnan(pairwise_distance(torch.ones(1, 1, 2)))
