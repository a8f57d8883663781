"""What the shape of a graph alone refuses, with nodes of the test's own. The rest: tests/security/test_validate_is_train.py."""

from __future__ import annotations

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.nodes.rewards.images import RewardSharpness
from comfyui_otca.trainer.checks import preflight
from comfyui_otca.trainer.workflow.running import Workflow


class AskedOnce(RewardSharpness):
    @classmethod
    def only_of_groups(cls, **_):
        return True


@pytest.fixture
def found(small_graph):
    def problems(kind, inputs, reward=AskedOnce):
        content = small_graph({})
        first = {entry["class_type"]: node for node, entry in content.items()}
        links = {
            "model": [first["OTCA_LoadFlowModel"], 0],
            "trajectories": [first["OTCA_SDESampler"], 0],
            "scores": [first["OTCA_RewardStack"], 0],
        }
        content[first["OTCA_RewardStack"]]["inputs"]["reward_8"] = ["once", 0]
        content["once"] = {"class_type": "OTCA_RewardOnce", "inputs": {"coefficient": 1.0, "name": "once"}}
        if kind in first:
            content[first[kind]]["inputs"].update({**links, **inputs})
        else:
            content["asks"] = {"class_type": kind, "inputs": {**links, **inputs}}
            below, name = ("GRPOStep", "advantages") if kind == GAIN[0] else ("MOCAFuse", "credit")
            content[first[f"OTCA_{below}"]]["inputs"][name] = ["asks", 0]
        workflow = Workflow(content, NODE_CLASS_MAPPINGS | {"OTCA_RewardOnce": reward})
        return [str(problem) for problem in preflight.problems(workflow)]

    return problems


GAIN = ("OTCA_StepwiseGain", {"tweedie_steps": 1, "per_step": False, "fusion": "weighted_sum"})
MEASURED = ("OTCA_TCDWeights", {"proxy": "measured_gain"})
LEARNED = ("OTCA_LearnedCredit", {"measure_every": 10, "groups": 2, "decay": 0.8, "w_min": 0.5})


@pytest.mark.parametrize(("kind", "inputs"), [GAIN, MEASURED, LEARNED])
def test_a_credit_that_asks_rewards_again_refuses_one_that_may_not_be(found, kind, inputs):
    [problem] = found(kind, inputs)
    assert "scores" in problem and "once" in problem and "Fix: disconnect reward_8" in problem
    assert found(kind, inputs, RewardSharpness) == []
    assert found("OTCA_TCDWeights", {"proxy": "prediction"}) == [], "a credit that does not ask takes it"


@pytest.mark.parametrize(("output", "told"), [(0, False), (1, True)])
def test_an_output_without_a_question_is_connected(small_graph, output, told):
    content = small_graph({})
    judge = {f"coefficient_{number}": 1.0 for number in range(1, 5)}
    judge |= {"url": "http://127.0.0.1:8000/v1", "model": "m", "questions": "Is it {prompt}?"}
    content["judge"] = {"class_type": "OTCA_RewardVLMJudge", "inputs": judge}
    [stack] = [entry for entry in content.values() if entry["class_type"] == "OTCA_RewardStack"]
    stack["inputs"]["reward_8"] = ["judge", output]
    problems = [str(problem) for problem in preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS))]
    assert len(problems) == told
    assert all("output 2 of judge" in problem and "has no question" in problem for problem in problems)
