"""What a comparison says of given trainings: scores, pairing, crossings, and the tables."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from comfyui_otca.study import comparison, comparison_report, plots
from comfyui_otca.study.compare import pairwise_distance
from comfyui_otca.study.comparison import Outcome, summarise
from comfyui_otca.study.comparison_report import Facts, Sweep
from comfyui_otca.trainer.run.budget import Budget
from comfyui_otca.trainer.run.folder import RunError

ONE = {"base": 12, "other": 12}
FACTS = Facts(
    baseline="base",
    length="2,000 forwards",
    unit="forwards",
    screening=False,
    judge="held",
    prompts=32,
    evaluation_seeds=4,
    score=("a", "held"),
    features="clip",
    untrained_diversity=0.3,
    untrained_held_out={"held": 0.5},
    differing={"better": ["GRPOStep.epochs = 2 instead of 1"], "worse": []},
    diverged={"better": 1},
    unfinished={"worse, learning rate 1, seed 3": "failed"},
)


def outcome(a, b=(10.0, 10.0, 10.0), held_out=(0.5, 0.5, 0.5), iterations=(0, 5, 10), **changes):
    """Two trained rewards of spread 2 and 5, and one held out; an iteration uses 200 forwards and 2 seconds."""
    figures = dict(diversity=0.1, seconds=1.0, forwards=100.0, with_gradient=50.0) | changes
    done = np.array(iterations, dtype=float)
    figures = {"used": {"forwards": 200 * done, "seconds": 2 * done}, "kl": done / 100, **figures}
    a, b, held_out = (np.array(means, dtype=float)[:, None] for means in (a, b, held_out))  # of one picture
    return Outcome(iterations, {"a": a, "b": b}, {"held": held_out}, [0], {"a": 2.0, "b": 5.0}, **figures)


def test_a_score_is_the_mean_standardised_rise():
    own = outcome((1, 5, 3), (10, 5, 20))
    np.testing.assert_allclose(own.rises["a"].T, [[0, 2, 1]])
    np.testing.assert_allclose(own.rises["b"].T, [[0, -1, 2]])
    np.testing.assert_allclose(own.score, [0, 0.5, 1.5])
    assert own.drop == 0
    assert outcome((1, 9, 5), iterations=(0, 5, 10)).drop == pytest.approx(1.0)  # the score falls from 2 to 1


def test_a_score_of_named_rewards_is_their_mean_alone():
    own = outcome((1, 5, 3), (10, 5, 20), (0.5, 0.6, 0.9), scored=("held", "b"))
    own = replace(own, spread={**own.spread, "held": 0.1})
    np.testing.assert_allclose(own.score, [0, 0, 3], atol=1e-12)  # the mean of 0, 1, 4 and 0, -1, 2


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
    return summarise(
        outcomes, {"base": 1e-4, "better": 2e-4, "worse": 3e-4}, dict.fromkeys(outcomes, 12), "base", judge="held"
    )


def test_differences_are_paired_by_seed(rows):
    base, better, worse = rows
    assert base.difference is None and math.isnan(base.corrected)
    assert (better.difference.mean, better.difference.low, better.difference.high) == pytest.approx((1, 1, 1))
    # Differences -0.75, -0.75, -0.5: mean -2/3, standard error 1/12, t = -8 of two degrees of freedom.
    assert worse.difference.mean == pytest.approx(-2 / 3)
    assert worse.difference.high == pytest.approx(-2 / 3 + 4.302653 / 12)
    assert math.isnan(worse.p) and math.isnan(worse.corrected), "three seeds give no verdict"
    assert base.deviation == pytest.approx(0.25) and base.final.mean == pytest.approx(0.5)


def test_a_verdict_takes_five_seeds():
    ends = (0.0, 0.25, 0.5, 0.75, 1.0)
    outcomes = {
        "base": {s: outcome((1, 1, 1 + 4 * end)) for s, end in enumerate(ends)},
        "other": {s: outcome((1, 1, 5 + 4 * end + s)) for s, end in enumerate(ends)},
        "third": {s: outcome((1, 1, 1 + 5 * end)) for s, end in enumerate(ends)},
        "few": {s: outcome((1, 1, 9)) for s in range(4)},
    }
    _, other, third, few = summarise(outcomes, dict.fromkeys(outcomes, 1.0), dict.fromkeys(outcomes, 12), "base")
    # Differences of third: 0, 1/16 … 4/16: mean 1/8, standard error √(2.5/16²)/√5, t = √8 of four degrees of freedom; there
    # P(|T| > t) = 1 - s(3 - s²)/2 with s = sin(atan(t/2)) = √(2/3). Of two tests it is the larger p, and stays as it is.
    s = math.sqrt(2 / 3)
    assert third.p == third.corrected == pytest.approx(1 - s * (3 - s**2) / 2)
    assert other.corrected == pytest.approx(2 * other.p) and other.p < third.p
    assert math.isnan(few.p) and few.difference.count == 4, "four are left out of the correction too"


def test_time_to_the_baselines_score(rows):
    base, better, worse = rows
    assert base.used == {"forwards": [0, 1000, 2000], "seconds": [0, 10, 20]}
    # Seed by seed to 0.5. Base's end at 0.25, 0.5 and 0.75, from 0 half way; better's at 1.25, 1.5 and 1.75.
    assert base.reached_by_seed["forwards"] == [math.inf, pytest.approx(2000), pytest.approx(1000 + 1000 * 0.5 / 0.75)]
    times = [1000 + 1000 * 0.5 / end for end in (1.25, 1.5, 1.75)]
    assert better.reached_by_seed["forwards"] == pytest.approx(times)
    assert better.reached_by_seed["seconds"] == pytest.approx([time / 100 for time in times])
    assert worse.reached_by_seed["forwards"] == [math.inf] * 3
    # Of all: half way the differences to base's final scores are -0.25, -0.5 and -0.75, at the end 1, 1 and 1.
    half = 4.302653 * 0.25 / math.sqrt(3)
    assert better.reached["forwards"].mean == pytest.approx(1000 + 1000 * 0.5 / 1.5)
    assert better.reached["forwards"].high == pytest.approx(1000 + 1000 * (0.5 + half) / (1.5 + half))
    # Before training they are the same, so that the upper bound is at 0 from the beginning on.
    assert half > 0.5 and better.reached["forwards"].low == 0 and better.reached["forwards"].count == 3
    assert worse.reached["forwards"].mean == worse.reached["forwards"].high == math.inf


def test_areas_and_divergence(rows):
    base, better, _ = rows
    # 0 until half way, then a line up to the final score: a quarter of it.
    assert base.area.mean == pytest.approx(0.5 / 4) and better.area.mean == pytest.approx(1.5 / 4)
    assert base.area_difference is None and better.area_difference.mean == pytest.approx(0.25)
    assert [point.mean for point in base.kl] == pytest.approx([0, 0.05, 0.1])


def test_whom_nothing_dominates(rows):
    # Score and judge: base 0.5, 0.5; better 1.5, 0.5; worse below 0, 0.7.
    assert [row.undominated for row in rows] == [False, True, True]


def test_equal_budgets_of_unequal_iterations():
    """Each at the same parts of 800 forwards, on the line through its own evaluations."""
    small = outcome((1, 3, 5, 7), (10,) * 4, (0.5, 0.6, 0.7, 0.8), (0, 2, 4, 6))
    small = replace(small, used={"forwards": np.array([0.0, 200, 500, 1100]), "seconds": np.array([0.0, 4, 8, 16])})
    large = outcome((1, 2, 9))
    large = replace(large, used={"forwards": np.array([0.0, 400, 800]), "seconds": np.array([0.0, 1, 2])})
    runs, budget = {"base": {0: large}, "small": {0: small}}, Budget("forwards", 800, 2)
    base, own = summarise(runs, {"base": 1.0, "small": 1.0}, {"base": 24, "small": 8}, "base", budget)
    assert base.used["forwards"] == own.used["forwards"] == [0, 400, 800] and (base.samples, own.samples) == (24, 8)
    # a, spread 2: at 400 two thirds of the way from 3 to 5, at 800 half the way from 5 to 7; the score is half of its rise.
    assert [point.mean for point in own.curve] == pytest.approx([0, (3 + 4 / 3 - 1) / 4, (6 - 1) / 4])
    assert own.iterations == 5 and own.used["seconds"] == pytest.approx([0, 4 + 8 / 3, 12])
    assert own.held_out["held"].mean == pytest.approx(0.75)
    assert own.difference.mean == pytest.approx(1.25 - 2.0)


def test_balance(rows):
    better = rows[1]
    assert better.gains["a"].mean == pytest.approx(3) and better.gains["b"].mean == 0
    assert better.least == "b" and better.spread == pytest.approx(1.5)


def test_only_evaluations_that_all_have():
    longer = outcome((1, 3, 5, 9), (10,) * 4, (0.5,) * 4, iterations=(0, 5, 8, 10))
    shorter = outcome((1, 3, 7), iterations=(0, 5, 10))
    base, other = summarise({"base": {0: longer}, "other": {0: shorter}}, {"base": 1.0, "other": 1.0}, ONE, "base")
    assert base.used == other.used == {"forwards": [0, 1000, 2000], "seconds": [0, 10, 20]}
    assert base.final.mean == pytest.approx(2) and math.isnan(base.final.low)


def test_seeds_that_only_one_has():
    """What a row is measured against is of the seeds that both have: here seed 1 alone, where the baseline ended at 0.25."""
    outcomes = {
        "base": {0: outcome((1, 1, 9)), 1: outcome((1, 1, 2))},
        "other": {1: outcome((1, 3, 3)), 2: outcome((1, 1, 1))},
    }
    base, other = summarise(outcomes, {"base": 1.0, "other": 1.0}, ONE, "base")
    assert base.reached_by_seed["forwards"] == [
        pytest.approx(1000 + 1000 * 1.125 / 2),
        math.inf,
    ] and base.final.mean == pytest.approx(1.125)
    assert other.difference.mean == pytest.approx(0.25) and other.difference.count == 1
    assert other.reached_by_seed["forwards"] == [pytest.approx(500), math.inf], "to 0.25; it was at 0.5 half way"
    assert "| other | 1 | 2 | +0.25 ± 3.18 | +0.25, of 1 seeds | no verdict |" in comparison_report.markdown(
        [base, other], None, FACTS
    )


def test_a_training_without_a_score_spoils_its_own_row_only():
    outcomes = {
        "base": {s: outcome((1, 1, 3)) for s in range(2)},
        "gap": {0: outcome((1, 1, math.nan), unscored=4, declined=("held",)), 1: outcome((1, 1, 3))},
    }
    base, gap = summarise(outcomes, {"base": 1.0, "gap": 1.0}, {"base": 1, "gap": 1}, "base", judge="held")
    assert base.final.mean == 0.5 and base.reached_by_seed["forwards"] == [2000, 2000]
    assert gap.reached_by_seed["forwards"] == [math.inf, 2000] and math.isnan(gap.area.mean) and not gap.undominated
    assert math.isnan(gap.final.mean) and math.isnan(gap.spread) and gap.least == "b" and gap.unscored == 4
    text = comparison_report.markdown([base, gap], None, FACTS)
    assert "nan" not in text and "which are in no mean: gap 4." in text
    assert gap.declined == {"held": 1} and base.declined == {}
    assert "by more than one standard error: held of gap with 1 of 2 seeds." in text


def test_what_cannot_be_compared_is_refused():
    one = outcome((1, 2, 3))
    other = replace(one, trained={"a": np.array([1.0, 2.0, 3.0])}, spread={"a": 2.0})
    for runs, words in (
        ({0: other}, r"other, seed 0, has other rewards: a, held \(held out\). Fix: "),
        ({0: outcome((1.1, 2, 3))}, "other, seed 0, began at a 1.1 where others began at 1,.*Fix: "),
        ({1: one}, "no seed that both"),
    ):
        with pytest.raises(RunError, match=words):
            summarise({"base": {0: one}, "other": runs}, {"base": 1.0, "other": 1.0}, ONE, "base")


def test_the_tables(rows):
    scores = {"better": {1e-4: 0.5, 2e-4: 0.75}, "worse": {}, "base": {1e-4: 0.25, 2e-4: 9.0}}
    asked = {"better": [1e-4, 2e-4], "worse": [2e-4, 4e-4], "base": [1e-4, 2e-4]}
    chosen = {"better": 2e-4, "base": 1e-4}
    sweep = Sweep([1000], "60 forwards", scores, chosen, asked, {"base": [2e-4]}, {"worse": [4e-4]})
    text = comparison_report.markdown(rows, sweep, FACTS)
    assert "2,000 forwards each. Judged on 32 prompts × 4 seeds" in text
    started = "| better | 0.0002 | 3, 1 diverged | +1.50 ± 0.62 | **+1.00 (+1.00 … +1.00)** | no verdict |"
    assert f"{started} +0.38 ± 0.16 | **+0.25 (+0.25 … +0.25)** | 0.25 | 0.00 |" in text
    assert "| worse | 0.0003 (not tuned) | 3 |" in text
    share = "67% (0% … 76%)"
    assert f"| better | 1,333 (0 … 1,529) | {share} | 13 (0 … 15) | {share} | 1,400, 1,333, 1,286 | 3 of 3 |" in text
    assert "| worse | never (never … never) |" in text and "| never, never, never | 0 of 3 |" in text
    assert "| better | +0.50 | **+0.75** |  | at an edge of the sweep |" in text
    assert "| base | **+0.25** | +9.00 ↓ |  | at an edge of the sweep |" in text
    assert "| worse |  | no score | diverged |  |" in text and "no reward could give" not in text
    assert "final score after 60 forwards, mean over seeds 1000," in text
    assert "| before training | 0 | 0 |  |  | 0.500 |  | 0.300 |  |" in text
    assert "| 0.700 ± 0.000 | **+0.200 (+0.200 … +0.200)** | 0.200 ± 0.000 | **by none** |" in text
    assert "| better | 10 | 12 | 100 | 50 | 1.00 | 2,000 | 20 | 0.1 |" in text
    assert "- better: GRPOStep.epochs = 2 instead of 1" in text and "- worse: nothing" in text
    assert "- worse, learning rate 1, seed 3: failed" in text and "nan" not in text and "inf" not in text
    tables = [part for part in text.split("\n\n") if part.startswith("| workflow")]
    assert len(tables) == 5
    for table in tables:
        widths = {line.count("|") for line in table.splitlines() if line.startswith("|")}
        assert len(widths) == 1, "every row has every column"


def test_the_tables_of_one_workflow(rows):
    text = comparison_report.markdown(rows[:1], None, replace(FACTS, differing={}, unfinished={}))
    assert "What differs" not in text and "Least and spread:" in text


def test_a_screening_says_that_it_is_one():
    runs = {"base": {1000: outcome((1, 1, 3))}, "other": {1000: outcome((1, 1, 5))}}
    rows = summarise(runs, {"base": 1.0, "other": 1.0}, ONE, "base", judge="held")
    text = comparison_report.markdown(rows, None, replace(FACTS, screening=True))
    assert text.startswith("# Screening, without verdict\n\nOne seed of each: what differs here may be chance.")
    assert "p (Holm)" not in text and "Student" not in text and "| other | 1 | 1, " not in text
    assert "| other | 1 | 1 | +1.00 | +0.50 | +0.25 | +0.12 |  | 0.00 |" in text


def test_seconds_that_were_not_measured_leave_their_cells_empty():
    """As in trainings from before there was such a figure."""
    run = outcome((1, 1, 3))
    run = replace(run, used={**run.used, "seconds": np.full(3, math.nan)})
    text = comparison_report.markdown(summarise({"base": {0: run}}, {"base": 1.0}, {"base": 12}, "base"), None, FACTS)
    assert "| base | 2,000 | 100% |  |  | 2,000 | 1 of 1 |" in text and "nan" not in text


def test_divergence_is_the_mean_of_the_last_iterations():
    lines = [{"iteration": n, "kl/reference": float(n)} for n in range(1, 21)]
    assert comparison.divergence_of(lines, 20) == pytest.approx(15.5), "of 11 to 20"
    assert comparison.divergence_of(lines, 2) == pytest.approx(1.5) and comparison.divergence_of(lines, 0) == 0
    assert math.isnan(comparison.divergence_of([{"iteration": 1}], 1))


@pytest.mark.painted
def test_the_figure(rows):
    picture = plots.comparison(rows, FACTS)
    assert picture.shape[1] > 1000
    shown = {tuple(color) for color in picture.reshape(-1, 3)[::7]}
    assert {(0, 0x72, 0xB2), (0xE6, 0x9F, 0)} <= shown, "both others are drawn, in their colours"


def test_pairwise_distance_by_hand():
    # Of three orthogonal unit vectors all pairs are 1 apart; of three equal ones, whatever their lengths, 0.
    apart, alike = torch.eye(3), torch.tensor([[1.0, 0, 0], [2, 0, 0], [5, 0, 0]])
    assert pairwise_distance(torch.stack([apart, alike])) == pytest.approx(0.5)
    assert pairwise_distance(torch.tensor([[[1.0, 0], [-1, 0]]])) == pytest.approx(2)
    assert math.isnan(pairwise_distance(torch.ones(1, 1, 2)))
