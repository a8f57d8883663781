"""Which workflows may be compared, and what is told of how they differ."""

from __future__ import annotations

import pytest

from comfyui_otca.trainer.study.fairness import check_equal, differing


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


@pytest.mark.parametrize("change", [{"name": "other"}, {"held_out": True}, {"rescale": 2.0}])
def test_unequal_rewards_are_refused(both, change):
    with pytest.raises(
        ValueError, match=r"OTCA_RewardSharpness \(.*\) is in its stack alone; OTCA_RewardSharpness \(.*\) is not in"
    ):
        check_equal(both({"OTCA_RewardSharpness": change}), "otca")


def test_a_workflow_that_cannot_run_is_named(both):
    with pytest.raises(ValueError, match='uniform: node 3 "SDE Sampler", input group_size = 1: .*Fix: '):
        check_equal(both({"OTCA_SDESampler": {"group_size": 1}}), "otca")
