"""Trends and shifts by hand, and when a run is said to be hacked: not by noise, and soon by a decline."""

from __future__ import annotations

import json
import logging
import math
import random
import shutil

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.trainer import keys
from comfyui_otca.trainer.run import verdicts
from comfyui_otca.trainer.run.folder import json_line, read_lines
from comfyui_otca.trainer.run.verdicts import shift, trend, warning


def history(trained, held_out, name="accuracy"):
    """Rows of a run with one trained and one held-out reward."""
    pairs = enumerate(zip(trained, held_out, strict=True), 1)
    return [{"iteration": i, "reward/clip_t/mean": t, f"held_out/{name}/mean": h} for i, (t, h) in pairs]


def evaluation(iteration, trained, held_out, prompts=("a", "b")):
    """A row of evaluation.jsonl with the values of every pair."""
    rewards = {
        name: {"mean": sum(values) / len(values), "held_out": name == "accuracy", "values": list(values)}
        for name, values in (("clip_t", trained), ("accuracy", held_out))
    }
    return {"iteration": iteration, "prompts": list(prompts), "rewards": rewards}


# --- the two statistics, by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "z"),
    [
        ([1, 2, 3, 4], 5 / math.sqrt(4 * 3 * 13 / 18)),  # S = 6
        ([4, 3, 2, 1], -5 / math.sqrt(4 * 3 * 13 / 18)),
        ([1, 3, 2, 4], 3 / math.sqrt(4 * 3 * 13 / 18)),  # S = 5 - 1
        ([1, 1, 2], 1 / math.sqrt((3 * 2 * 11 - 2 * 1 * 9) / 18)),  # S = 2, one tie of two
        ([2, 1, 2], 0.0),
        ([5, 5, 5, 5], 0.0),
        ([1, 2, 3, 4e9], 5 / math.sqrt(4 * 3 * 13 / 18)),  # an outlier counts as the largest, no more
    ],
)
def test_trend(values, z):
    assert trend(values) == pytest.approx(z)


@pytest.mark.parametrize(
    ("differences", "z"),
    [
        ([1, 2, 3], 5 / math.sqrt(14)),  # W = 1 + 2 + 3, Var W = 1 + 4 + 9
        ([3, -1, 2], 3 / math.sqrt(14)),
        ([-3, -1, -2], -5 / math.sqrt(14)),
        ([0, 1, 2, 0, 3], 5 / math.sqrt(14)),
        ([1, 1, 2], 5 / math.sqrt(1.5**2 + 1.5**2 + 9)),
        ([1, 1, -2], 0.0),
        ([0, 0], 0.0),
        ([], 0.0),
    ],
)
def test_shift(differences, z):
    assert shift(differences) == pytest.approx(z)


# --- sampled batches --------------------------------------------------------------------------------------------------


def test_a_clear_decline_is_told_in_a_sentence():
    told = warning(history(range(12), [1 - 0.05 * i for i in range(12)]), [])
    # S = ±66 of 12 values, Var S = 12·11·29/18, the thirds are 0…3 and 8…11
    assert f"{65 / math.sqrt(12 * 11 * 29 / 18):.1f}" == "4.5"
    assert "from iteration 1 to 12, trained rewards rise, clip_t (z = 4.5), while accuracy, which is held out" in told
    assert "accuracy, which is held out, falls from 0.925 to 0.525 (z = -4.5)" in told
    assert "Fix: take an earlier checkpoint" in told


def test_what_is_no_hacking():
    rising, falling, flat = list(range(20)), [-float(i) for i in range(20)], [1.0] * 20
    for trained, held_out in ((rising, rising), (falling, falling), (flat, falling), (rising, flat), (falling, rising)):
        assert warning(history(trained, held_out), []) is None
    assert warning(history(rising[:9], falling[:9]), []) is None, "too short to tell"
    assert warning([], []) is None
    assert warning([{"iteration": i, "reward/clip_t/mean": i} for i in range(20)], []) is None, "nothing is held out"


def test_one_trained_reward_that_rises_is_enough():
    """As on shapes-flux at a high learning rate: sharpness is bought with what the prompts say."""
    rows = history([-10.0 * i for i in range(20)], [-i for i in range(20)])
    assert warning(rows, []) is None, "all fall"
    for i, row in enumerate(rows):
        row["reward/sharpness/mean"] = 0.01 * i
    assert "trained rewards rise, sharpness (z = 6.1), while accuracy" in warning(rows, [])  # 189 / √950


def test_only_the_last_iterations_count():
    fallen = [-float(i) for i in range(20)] + [-20.0 + 0.001 * (i * 7 % 5) for i in range(verdicts.WINDOW)]
    assert warning(history(range(len(fallen)), fallen), []) is None
    assert warning(history(range(30), fallen[:30]), []) is not None


def test_any_held_out_reward_may_tell_and_one_without_scores_keeps_none_from_it():
    rows = history(range(15), [-i for i in range(15)])
    for row in rows:
        row |= {"held_out/steady/mean": 1.0, "held_out/silent/mean": None}
    assert "accuracy, which is held out" in warning(rows, [])


def test_iterations_without_a_score_are_left_out_as_nan_and_as_null():
    rows = history(range(14), [-i for i in range(14)])
    rows[3]["held_out/accuracy/mean"] = rows[5]["reward/clip_t/mean"] = math.nan
    read_back = [json.loads(json_line(row)) for row in rows]
    assert read_back[3]["held_out/accuracy/mean"] is None
    assert warning(rows, []) == warning(read_back, [])
    assert warning(rows, []) is not None
    assert warning(read_back[:11], []) is None, "nine are left"


def fires(trained_slope, held_out_slope, seed, length=100):
    """The first iteration with a warning, of a run whose means have a standard deviation of 1."""
    noise = random.Random(seed)
    trained = [trained_slope * i + noise.gauss(0, 1) for i in range(length)]
    held_out = [held_out_slope * i + noise.gauss(0, 1) for i in range(length)]
    rows = history(trained, held_out)
    return next((n for n in range(verdicts.SHORTEST, length + 1) if warning(rows[:n], [])), None)


def test_noise_fires_rarely_and_a_decline_soon():
    runs = range(25)
    assert sum(fires(0.0, 0.0, seed) is not None for seed in runs) == 0
    assert sum(fires(0.05, 0.0, seed) is not None for seed in runs) <= 1, "trained rewards rise in every good run"
    first = [fires(0.05, -0.05, seed) for seed in runs]
    assert None not in first and max(first) <= 70


# --- evaluations ------------------------------------------------------------------------------------------------------


def test_the_last_evaluation_is_compared_with_the_best_one():
    pairs = 20
    rows = [
        evaluation(0, [0.0] * pairs, [0.5 + 0.001 * i for i in range(pairs)]),
        evaluation(50, [0.5 + 0.01 * i for i in range(pairs)], [0.8 + 0.002 * i for i in range(pairs)]),
        evaluation(100, [1.0 + 0.02 * i for i in range(pairs)], [0.6 - 0.002 * i for i in range(pairs)]),
    ]
    # all 20 differences are of one sign: z = (210 - 1) / √(20·21·41/6)
    z = f"{209 / math.sqrt(20 * 21 * 41 / 6):.1f}"
    told = warning([], rows)
    assert "on the fixed prompts, from iteration 50 to 100" in told and f"rise, clip_t (z = {z})," in told
    assert f"falls from 0.819 to 0.581 (z = -{z})" in told
    assert warning([], rows[:2]) is None
    assert warning([], [*rows, evaluation(150, [2.0] * pairs, [0.9] * pairs)]) is None, "it recovered"


def test_evaluations_that_cannot_be_compared():
    low, high = [0.01 * i for i in range(20)], [1 + 0.01 * i for i in range(20)]
    before, after = evaluation(0, low, high), evaluation(50, high, low)
    assert warning([], [before, after]) is not None
    assert warning([], [evaluation(0, low, high, prompts=("other",)), after]) is None
    assert warning([], [evaluation(0, low[:8], high[:8]), after]) is None, "fewer seeds"
    assert warning([], [evaluation(0, low[:8], high[:8]), evaluation(9, high[:8], low[:8])]) is None, "too few pairs"
    assert warning([], [before, evaluation(50, low, low)]) is None, "trained rewards stay"
    assert warning([], [before]) is None


def test_pairs_without_a_score_are_left_out():
    low, high = [0.01 * i for i in range(20)], [1 + 0.03 * i for i in range(20)]
    rows = [evaluation(0, low, high), evaluation(50, high, low)]
    rows[0]["rewards"]["accuracy"]["values"][4] = rows[1]["rewards"]["clip_t"]["values"][7] = math.nan
    read_back = [json.loads(json_line(row)) for row in rows]
    z = f"{(190 - 1) / math.sqrt(19 * 20 * 39 / 6):.1f}"
    assert f"(z = -{z})" in warning([], rows)
    assert warning([], rows) == warning([], read_back)


@pytest.mark.parametrize("change", [{"noise": "seed and prompt"}, {"own": {"width": 64}}])
def test_evaluations_that_began_otherwise_are_not_compared(change):
    old = [evaluation(0, [0.0, 1.0], [1.0, 1.0]), evaluation(5, [2.0, 3.0], [0.0, 0.0])]
    new = [evaluation(10, [1.0, 2.0], [1.0, 1.0]), evaluation(15, [4.0, 5.0], [1.0, 1.0])]
    new = [row | change for row in new]
    for row in (*old, *new):
        row["rewards"]["clip_t"]["std"] = 0.5
    assert verdicts.comparable(*old) and verdicts.comparable(*new) and not verdicts.comparable(old[1], new[0])
    rows = [*old, *new]
    # In standard deviations: until then since before training, from then on since the first that began so.
    assert [verdicts.metric_value(rows, row, keys.EVALUATION_SUM) for row in rows] == [0.0, 4.0, 0.0, 6.0]


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_says_so_from_its_own_lines(finished_run, tmp_path, capsys, caplog, monkeypatch):
    """The verdict of a resumed run comes from what its file says of the iterations before."""
    assert all(row["warning/reward_hacking"] == 0.0 for row in read_lines(finished_run / "metrics.jsonl"))
    monkeypatch.setattr(verdicts, "SHORTEST", 7)
    monkeypatch.setattr(verdicts, "FALL", -2.9)  # seven falling values come to z = -20 / √(7·6·19/18) = -3.004
    folder = shutil.copytree(finished_run, tmp_path / "run")
    lines = read_lines(folder / "metrics.jsonl")
    for row in lines:
        row["held_out/accuracy/mean"] = 10.0 - row["iteration"]
        for name in ("clip_t", "colorfulness", "sharpness"):
            row[f"reward/{name}/mean"] = -1000.0 + row["iteration"]
    (folder / "metrics.jsonl").write_text("".join(map(json_line, lines)))
    with caplog.at_level(logging.WARNING):
        assert main(["train", str(folder), "--resume", "--iterations", "7"]) == 0
    assert read_lines(folder / "metrics.jsonl")[-1]["warning/reward_hacking"] == 1.0
    [told] = [r.getMessage() for r in caplog.records if "reward hacking" in r.getMessage()]
    assert told.startswith("iteration 7: ") and "accuracy, which is held out, falls from 8.5" in told
    assert told.removeprefix("iteration 7: ") in capsys.readouterr().out, "the summary says it too"
