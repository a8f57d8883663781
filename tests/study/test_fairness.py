"""Which workflows may be compared, and what is told of how they differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import comfyui_otca
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.nodes.model import ModelMemory
from comfyui_otca.study.fairness import check_equal, differing, evaluation_steps, graph_without, rewards_of
from comfyui_otca.trainer.workflow.running import Workflow

PACK = Path(comfyui_otca.__file__).parent
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
    assert any(text.startswith("StepCredit (method uniform, timestep_fraction 1.0") for text in told)
    assert {"no TCDWeights", "no MOCAFuse"} <= set(told)
    assert (
        "SDESampler.kind = cps instead of dance_sde" in told and "GRPOStep.clip_range = 0.5 instead of 0.0001" in told
    )
    assert "RewardClipT.coefficient = 2.0 instead of 1.0" in told
    assert not any(word in " ".join(told) for word in ("seed", "TrainingRun", "learning_rate"))
    assert differing(workflows["otca"], workflows["otca"]) == []


UNEQUAL = [
    ("OTCA_LoadFlowModel", "lora_rank", 2),
    ("OTCA_LoadFlowModel", "dtype", "bfloat16"),
    ("OTCA_PromptDataset", "prompts_per_iteration", 3),
    ("OTCA_PromptDataset", "file", "shapes_eval.txt"),
    ("OTCA_SDESampler", "group_size", 4),
    ("OTCA_SDESampler", "steps", 5),
    ("OTCA_TrainingRun", "evaluation_steps", 3),
    ("OTCA_TrainingRun", "evaluation_width", 48),
]


def test_unequal_conditions_and_rewards_are_refused(both):
    for node, name, value in UNEQUAL:
        words = f"uniform cannot be compared with otca, since {node}.{name} is {value!r}, not .*Fix: "
        with pytest.raises(ValueError, match=words):
            check_equal(both({node: {name: value}}), "otca")
    words = r"OTCA_RewardSharpness \(.*\) is in its stack alone; OTCA_RewardSharpness \(.*\) is not in"
    for change in ({"name": "other"}, {"held_out": True}, {"clip": "0, 1"}):
        with pytest.raises(ValueError, match=words):
            check_equal(both({"OTCA_RewardSharpness": change}), "otca")
    with pytest.raises(ValueError, match='uniform: node 3 "SDE Sampler", input group_size = 1: .*Fix: '):
        check_equal(both({"OTCA_SDESampler": {"group_size": 1}}), "otca")


def test_sizes_may_differ_where_all_have_the_same_budget(both):
    sizes = {"OTCA_PromptDataset": {"prompts_per_iteration": 3}, "OTCA_SDESampler": {"group_size": 4, "steps": 5}}
    workflows = both(sizes)
    check_equal(workflows, "otca", any_size=True)
    told = differing(workflows["uniform"], workflows["otca"])
    assert {"PromptDataset.prompts_per_iteration = 3 instead of 2", "SDESampler.steps = 5 instead of 4"} <= set(told)
    assert evaluation_steps(workflows["otca"]) == 4, "as it samples, as Training Run says nothing"
    assert evaluation_steps(both({"OTCA_TrainingRun": {"evaluation_steps": 7}})["uniform"]) == 7
    with pytest.raises(ValueError, match="OTCA_SDESampler.guidance is"):
        check_equal(both({"OTCA_SDESampler": {"guidance": 1.0}}), "otca", any_size=True)


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


def test_every_output_of_a_reward_node_is_a_reward():
    graph = json.loads((PACK / "workflows" / "api" / "otca_wan22_video.json").read_text())
    (stack,) = [node for node, entry in graph.items() if entry["class_type"] == "OTCA_RewardStack"]
    fewer = json.loads(json.dumps(graph))
    gone = fewer[stack]["inputs"].pop("reward_2")
    assert gone[1] > 0, "not the first output of its node"
    whole, part = (rewards_of(Workflow(own, NODE_CLASS_MAPPINGS)) for own in (graph, fewer))
    assert len(whole) == len(part) + 1 and graph_without(part, whole) == []
    [lacking] = graph_without(whole, part)
    assert lacking[:2] == ("OTCA_RewardVideoAlign", gone[1])


def test_links_and_second_nodes_of_a_class_are_told(small_workflow):
    base = small_workflow(source="six_rewards.json")
    graph = base.graph
    first, second = base.find("OTCA_RewardClipT")[:2]
    graph[first]["inputs"]["coefficient"] = 5.0
    (stack,) = base.find("OTCA_RewardStack")
    rewards = {name: link for name, link in graph[stack]["inputs"].items() if name.startswith("reward_")}
    names = sorted(rewards)
    graph[stack]["inputs"] |= dict(
        zip(names, [rewards[name] for name in (names[1], names[0], *names[2:])], strict=True)
    )
    told = differing(Workflow(graph, base.node_classes), base)
    assert "RewardClipT.coefficient = 5.0 instead of 1.0" in told
    kinds = [graph[rewards[name][0]]["class_type"].removeprefix("OTCA_") for name in names[:2]]
    assert f"RewardStack.{names[0]} from {kinds[1]} instead of {kinds[0]}" in told and len(told) == 3
