"""Names of values: what is put together is taken apart to the same."""

from __future__ import annotations

import pytest

from comfyui_otca.trainer import keys


@pytest.mark.parametrize("name", ["clip_t", "a/b", "mean", "reward", "x/mean"])
def test_a_rewards_name_comes_back(name):
    for kind in keys.KINDS:
        row = {"iteration": 1, keys.mean(kind, name): 0.5, keys.std(kind, name): 0.1, keys.reward_seconds(name): 2.0}
        assert keys.rewards(row, kind) == [name] and keys.timed_rewards(row) == [name]
        assert [keys.rewards(row, other) for other in keys.KINDS if other != kind] == [[]]
    assert keys.evaluated(keys.evaluation(name)) == name


def test_names_as_the_files_have_them():
    assert keys.mean(keys.HELD_OUT, "a") == "held_out/a/mean" and keys.std(keys.REWARD, "a") == "reward/a/std"
    assert (keys.EVALUATION_SUM, keys.credit_step(3)) == ("evaluation/sum", "credit/step/3")
    assert keys.reward_seconds("a") == "seconds/reward/a"


def test_steps():
    assert keys.credit_step_number(keys.credit_step(12)) == "12"
    assert keys.credit_step_number("credit/step/x") == "x" and keys.credit_step_number("credit/other") is None
