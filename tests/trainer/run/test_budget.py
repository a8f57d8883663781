"""Budgets: what an iteration costs, when one is used up, and a training that ends by it and is resumed."""

from __future__ import annotations

import json
import math

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.host.files import Damaged
from comfyui_otca.tests.training import rows, untimed
from comfyui_otca.trainer.run import budget, record
from comfyui_otca.trainer.run.budget import Budget, Meter, cost, used


def row(iteration, every=24, with_gradient=14, seconds=1.5):
    figures = {"forwards/all": every, "forwards/with_gradient": with_gradient, "seconds/used": seconds}
    return {"iteration": iteration, **figures}


def test_a_backward_pass_counts_as_two_forwards():
    assert cost(row(1), "forwards") == 24 + 2 * 14 and cost(row(1), "seconds") == 1.5
    assert cost({"iteration": 1, "forwards/all": 24, "forwards/with_gradient": None}, "forwards") is None


def test_what_was_used_until_an_iteration():
    history = [row(1, 10, 5), row(2, 20, 5), {"iteration": 3}, row(4, 30, 5)]
    # 20, 30, the mean 30 of what is known, 40.
    assert used(history, "forwards", [0, 1, 3, 4]) == [0, 20, 80, 120]
    assert math.isnan(used([{"iteration": 1}], "forwards", [1])[0])
    assert Budget("seconds", 3, 2).share([{"iteration": 1}]) == 0
    assert Budget("seconds", 3, 2).share([{"iteration": 1}, row(2)]) == 1, "the first counts as the second"


def test_an_evaluation_whenever_a_part_is_used_up(tmp_path):
    Budget("forwards", 300, 3).write(tmp_path)
    own = Meter(tmp_path)  # thirds of 100, in steps of 52: 52, 104, 156, 208, 260, 312
    history = [row(number) for number in range(1, 7)]
    assert [own.due(history[:n], every=1) for n in range(1, 7)] == [False, True, False, True, False, True]
    assert [own.spent(history[:n]) is not None for n in range(7)] == [False] * 6 + [True]
    assert own.spent(history) == "its budget of 300 forwards is used up"
    assert own.budget.share(history[:3]) == pytest.approx(156 / 300)


def test_without_a_budget_iterations_decide(tmp_path):
    own = Meter(tmp_path)
    assert [own.due([row(number)], every=2) for number in (1, 2, 3, 4)] == [False, True, False, True]
    assert own.spent([row(1)]) is None


def test_seconds_are_of_computing_on_the_cpu_alone(tmp_path, monkeypatch):
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(budget.time, "process_time", lambda: next(clock))
    own = Meter(tmp_path)
    assert own.take(9.0, on_cpu=True) == own.take(9.0, on_cpu=False) == {}, "the first iteration loads much"
    own.restart()
    assert own.take(7.0, on_cpu=True) == {"seconds/used": 2.5}
    assert own.take(7.0, on_cpu=False) == {"seconds/used": 7.0}, "what waits for an accelerator computes nothing"
    on_canvas = Meter(None)
    on_canvas.restart()
    assert on_canvas.take(7.0, on_cpu=True) == {}


def test_by_the_clock_evaluations_count_and_the_last_one_still_fits(tmp_path):
    Budget(budget.CLOCK, 100, 2).write(tmp_path)
    own, history = Meter(tmp_path), [row(number, seconds=10) for number in range(1, 9)]
    before = [{"iteration": 0, "seconds/evaluation": 12}]
    # 100 - 12 for the evaluation before, 12 for one like it and 10 for one more iteration: 66 are left for iterations.
    assert own.budget.share(history[:1], before) == pytest.approx(10 / 66)
    assert [own.spent(history[:n], before) is not None for n in range(1, 9)] == [False] * 6 + [True] * 2, "70 + 2 · 12"
    assert [own.due(history[:n], 1, before) for n in range(1, 8)] == [False, False, False, True, False, False, True]
    between = [*before, {"iteration": 4, "seconds/evaluation": 40}]
    assert own.budget.share(history[:4], between) == 1, "100 - 52 - 40 - 10 is less than nothing"
    assert own.take(7.0, on_cpu=True) == {"seconds/used": 7.0}, "the first iteration is waited for as well"


def test_a_damaged_budget_is_named(tmp_path):
    (tmp_path / "budget.json").write_text('{"unit": "hours", "amount": 3, "evaluations": 10}')
    with pytest.raises(
        Damaged, match='has unit = "hours", and not one of forwards, seconds, seconds by the clock. Fix: '
    ):
        budget.read(tmp_path)


# --- a training ------------------------------------------------------------------------------------------------------


@pytest.fixture
def train(small_graph, tmp_path):
    """train(amount, name, …): resumes OTCA's small workflow in a folder of that name, with a budget of so many forwards."""

    def begin(amount, name, *options, evaluations=2):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "workflow.json").write_text(json.dumps(small_graph({"OTCA_TrainingRun": {"iterations": 1000}})))
        Budget("forwards", amount, evaluations).write(folder)
        record.open_runs.clear()
        assert main(["train", str(folder), "--resume", *options]) == 0
        return folder

    return begin


def test_it_ends_when_its_budget_is_used_up_and_goes_on_with_a_larger_one(train, capsys):
    folder = train(150, "short")
    history = rows(folder)
    # 2 groups of 3: the first step once a group, as its noise is shared, 3 more steps, and after the first update 2 samples twice
    # for the divergence from the reference; a backward pass through 3 of the 4 steps, whose graphs were kept.
    each = 2 + 3 * 6 + 2 * (2 + 2 * 6)
    assert [cost(row, "forwards") for row in history] == [each + 4, each, each, each], "52, 100, 148, 196"
    assert "seconds/used" not in history[0] and all(each["seconds/used"] > 0 for each in history[1:])
    assert [each["iteration"] for each in rows(folder, "evaluation.jsonl")] == [0, 2, 4], "at a half, and at the end"
    written = json.loads((folder / "status.json").read_text())
    assert (written["status"], written["reason"]) == ("finished", "its budget of 150 forwards is used up")
    assert "its budget of 150 forwards is used up" in capsys.readouterr().out
    assert len(rows(train(150, "short"))) == 4, "resumed, it trains no further"

    train(300, "short")
    whole = train(300, "whole")
    assert untimed(folder) == untimed(whole)
    assert len(rows(whole)) == 7, "340 of 300"
    assert untimed(folder, "evaluation.jsonl")[-1] == untimed(whole, "evaluation.jsonl")[-1]
