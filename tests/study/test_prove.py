"""`otca prove`: what it evaluates by, and its verdicts, by evaluations made by hand."""

from __future__ import annotations

import json
import math

import pytest

from comfyui_otca.study import prove

PROMPTS = ["a", "b", "c", "d"]


def evaluation(iteration, **rewards):
    figures = {
        name: {"mean": sum(values) / len(values), "held_out": name.startswith("held"), "values": values}
        for name, values in rewards.items()
    }
    return {"iteration": iteration, "prompts": PROMPTS, "noise": "seed and prompt", "rewards": figures}


def inputs(workflow):
    return next(e["inputs"] for e in workflow.graph.values() if e["class_type"] == "OTCA_TrainingRun")


def planned(small_workflow, prompts, pictures, **changes):
    return inputs(
        prove.plan(small_workflow({"OTCA_TrainingRun": {"evaluation_prompts": prompts}, **changes}), pictures)
    )


def test_it_evaluates_at_least_so_many_pictures(small_workflow):
    few = planned(small_workflow, "a\nb\nc\nd\ne", 64)
    assert (few["evaluation_prompts"], few["evaluation_seeds"]) == ("a\nb\nc\nd\ne", 13), "65 pictures"
    many = planned(small_workflow, "\n".join(map(str, range(100))), 4)
    assert (many["evaluation_prompts"], many["evaluation_seeds"]) == ("0\n25\n50\n75", 1)
    line = '{"prompt": "two cats", "count": 2}'
    assert json.loads(planned(small_workflow, line, 2)["evaluation_prompts"]) == json.loads(line)
    own = planned(small_workflow, "", 4, OTCA_PromptDataset={"prompts": "one\ntwo", "file": ""})
    assert (own["evaluation_prompts"], own["evaluation_seeds"]) == ("one\ntwo", 2), "those that are trained on"
    assert few["wandb_project"] == "" and few["checkpoint_every"] <= 5


@pytest.mark.parametrize("hours", [0, -1, math.inf, math.nan])
def test_hours_must_be_a_time(small_workflow, tmp_path, hours):
    with pytest.raises(ValueError, match="is not a time. Fix: a number above 0"):
        prove.prove(small_workflow(), tmp_path, hours, lambda graph: (None, ""))


def verdict(changes, iterations=20):
    return prove.verdict(changes, iterations)


def test_a_rise_that_is_sure_and_one_that_is_not():
    before = evaluation(0, good=[0.0, 0.0, 0.0, 0.0], open=[0.0, 0.0, 0.0, 0.0], held=[1.0, 1.0, 1.0, 1.0])
    after = evaluation(9, good=[1.0, 2.0, 1.0, 2.0], open=[1.0, -1.0, 1.0, -1.0], held=[0.5, 0.4, 0.5, 0.4])
    found = {each.name: each for each in prove.changes([before, after])}
    # Of 1 2 1 2: mean 1.5, s² = 1/3, error √(1/12) = 0.2887, t(3) = 3.1824 at 95 %: ± 0.9187.
    good = found["good"].change
    assert (good.mean, good.low, good.high) == pytest.approx((1.5, 1.5 - 0.9187, 1.5 + 0.9187), abs=1e-4)
    # t = 5.196 with 3 degrees of freedom has p = 0.01385; twice that, since there are two trained rewards.
    assert found["good"].by_chance == pytest.approx(2 * 0.01385, abs=1e-4)
    assert {name: each.direction for name, each in found.items()} == {"good": 1, "open": 0, "held": -1}
    assert verdict([*found.values()]) == [
        "It learned: good +1.5 ± 0.919 (± is 95 %).",
        "Not more than chance: open +0 ± 1.84.",
        "Held out: held -0.55 ± 0.0919: it fell, so the trained rewards may have been tricked.",
    ]


def test_nothing_was_learned():
    same = [0.3, 0.7, 0.1, 0.9]
    assert verdict(prove.changes([evaluation(0, judge=same), evaluation(5, judge=same)])) == [
        "Nothing was learned: the interval includes 0 (judge +0 ± 0)."
    ]
    few = verdict(prove.changes([evaluation(0, judge=same), evaluation(2, judge=same)]), iterations=2)
    assert few == ["No verdict: 2 iterations are too few to tell (judge +0 ± 0)."]
    noisy = evaluation(5, judge=[0.125, -0.125, 0.125, -0.125])
    [said] = verdict(prove.changes([evaluation(0, judge=[0.0] * 4), noisy]))
    # s = 0.1443, error 0.0722, t(3) = 3.1824.
    assert said == "Nothing was learned: the interval includes 0 (judge +0 ± 0.23)."
    before = evaluation(0, one=[0.0] * 4, two=[0.0] * 4)
    close = evaluation(5, one=[1.0, 2.0, 1.0, 3.0], two=[1.0, -1.0, 1.0, -1.0])
    # Of 1 2 1 3: mean 1.75, s² = 0.9167, t = 3.656, p = 0.0354: alone it would be sure, and of two it is not.
    assert verdict(prove.changes([before, close]))[0].startswith("Nothing was learned that is sure: of 2 rewards")
    assert prove.changes([before, close])[0].change.low > 0


def test_it_got_worse_and_no_verdict():
    worse = [evaluation(0, judge=[1.0] * 4), evaluation(5, judge=[0.5, 0.4, 0.5, 0.4])]
    assert verdict(prove.changes(worse)) == [
        "It got worse: no trained reward rose.",
        "Trained rewards that fell: judge -0.55 ± 0.0919.",
    ]
    other = {**worse[1], "prompts": ["x", "b", "c", "d"]}
    for evaluations in ([], worse[:1], [worse[0], other]):
        assert verdict(prove.changes(evaluations))[0].startswith("No verdict: there are not two evaluations")
    one = [{**row, "prompts": ["a"]} for row in (evaluation(0, judge=[1.0]), evaluation(5, judge=[2.0]))]
    assert verdict(prove.changes(one)) == ["No verdict: too few prompts to say how sure a change is (judge +1)."]
