"""Which workflows may be compared, and what is told of how they differ."""

from __future__ import annotations

import pytest

from comfyui_otca.nodes.model import ModelMemory
from comfyui_otca.trainer.study.fairness import check_equal, differing
from comfyui_otca.trainer.workflow import Workflow

MEMORY = {name: more[1]["default"] for name, more in ModelMemory.INPUT_TYPES()["required"].items()}


def test_methods_may_differ(both):
    workflows = both(
        {
            "OTCA_SDESampler": {"kind": "cps", "eta": 0.3},
            "OTCA_GRPOStep": {"clip_range": 0.5},
            "OTCA_RewardClipT": {"coefficient": 2.0},
        }
    )
    check_equal(workflows, "otca")
    told = differing(workflows["uniform"], workflows["otca"])
    assert "UniformWeights (timestep_fraction 1.0)" in told and {"no TCDWeights", "no MOCAFuse"} <= set(told)
    assert (
        "SDESampler.kind = cps instead of dance_sde" in told and "GRPOStep.clip_range = 0.5 instead of 0.0001" in told
    )
    assert "RewardClipT.coefficient = 2.0 instead of 1.0" in told
    assert not any(word in " ".join(told) for word in ("seed", "TrainingRun", "learning_rate"))
    assert differing(workflows["otca"], workflows["otca"]) == []


@pytest.mark.parametrize(
    ("node", "name", "value"),
    [
        ("OTCA_LoadFlowModel", "lora_rank", 2),
        ("OTCA_LoadFlowModel", "dtype", "bfloat16"),
        ("OTCA_PromptDataset", "prompts_per_iteration", 3),
        ("OTCA_PromptDataset", "file", "shapes_eval.txt"),
        ("OTCA_SDESampler", "group_size", 4),
        ("OTCA_SDESampler", "steps", 5),
        ("OTCA_TrainingRun", "evaluation_steps", 3),
    ],
)
def test_unequal_conditions_are_refused(both, node, name, value):
    with pytest.raises(
        ValueError, match=f"uniform cannot be compared with otca, since {node}.{name} is {value!r}, not .*Fix: "
    ):
        check_equal(both({node: {name: value}}), "otca")


def test_the_weights_must_be_held_alike(both):
    workflows = both()
    plain = workflows["uniform"]
    (load,) = plain.find("OTCA_LoadFlowModel")

    def with_memory(**given):
        graph = plain.graph
        graph["memory"] = {"class_type": "OTCA_ModelMemory", "inputs": {**MEMORY, **given}}
        graph[load]["inputs"]["memory"] = ["memory", 0]
        return Workflow(graph, plain.node_classes)

    workflows["uniform"] = with_memory(vae_tiling=True)
    check_equal(workflows, "otca")
    workflows["uniform"] = with_memory(quantize="8bit")
    with pytest.raises(ValueError, match="otca cannot be .* OTCA_ModelMemory.quantize is 'none', not '8bit'"):
        check_equal(workflows, "uniform")


@pytest.mark.parametrize("change", [{"name": "other"}, {"held_out": True}, {"rescale": 2.0}])
def test_unequal_rewards_are_refused(both, change):
    with pytest.raises(
        ValueError, match=r"OTCA_RewardSharpness \(.*\) is in its stack alone; OTCA_RewardSharpness \(.*\) is not in"
    ):
        check_equal(both({"OTCA_RewardSharpness": change}), "otca")


def test_a_workflow_that_cannot_run_is_named(both):
    with pytest.raises(ValueError, match='uniform: node 3 "SDE Sampler", input group_size = 1: .*Fix: '):
        check_equal(both({"OTCA_SDESampler": {"group_size": 1}}), "otca")
