"""Trainings whose pictures come from a folder: what the run has on record, resuming, and what is refused beforehand."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from safetensors.torch import load_file

from comfyui_otca.__main__ import main
from comfyui_otca.inference.loading import load_run
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.study.analyze import analyze
from comfyui_otca.trainer.checks import preflight
from comfyui_otca.trainer.workflow import lineage
from comfyui_otca.trainer.workflow.running import NodeError, Workflow

pytestmark = pytest.mark.anywhere


@pytest.fixture
def otca(tmp_path):
    """otca(graph, folder name, options …): trains; the folder."""

    def run(graph, name, *options):
        (tmp_path / "workflow.json").write_text(json.dumps(graph))
        assert main(["train", str(tmp_path / "workflow.json"), "--output", str(tmp_path / name), *options]) == 0
        return tmp_path / name

    return run


def rows(folder, name="metrics.jsonl"):
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("seconds/", "samples_per_second"))} for row in lines]


def test_a_training_by_dpo_and_its_resumption_to_the_bit(folder_of, graph_of, otca):
    graph = graph_of(folder_of())
    whole = otca(graph, "whole")
    first, *_, last = rows(whole)
    assert [row["iteration"] for row in rows(whole)] == [1, 2, 3]
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-4), "the policy is the reference: -log σ(0)"
    assert last["matching/margin"] > 0 and last["loss"] < first["loss"], "the chosen ones fit better than before"
    assert (first["z/zero_fraction"], first["credit/step/3"]) == (0, 1)
    assert "reward/preference/mean" not in first, "half of the pictures are chosen ones, whatever the model learns"
    # 2 pairs at 2 of 4 levels: 8 forwards of the policy with gradient and 8 of the reference; and 2 x 2 for the divergence
    assert (first["forwards/with_gradient"], first["forwards/all"]) == (8, 20)
    evaluations = rows(whole, "evaluation.jsonl")
    assert [row["iteration"] for row in evaluations] == [0, 3]
    assert (
        evaluations[0]["rewards"]["colorfulness"]["held_out"]
        and len(evaluations[0]["rewards"]["colorfulness"]["values"]) == 2
    )
    assert (whole / "samples.png").is_file() and (whole / "credit.png").is_file() and (whole / "rewards.png").is_file()

    part = otca(graph_of(folder_of(), {"TrainingRun": {"iterations": 1}}), "part")
    otca(graph, "part", "--resume")
    assert rows(part) == rows(whole) and rows(part, "evaluation.jsonl")[-1] == evaluations[-1]
    one, other = load_file(whole / "lora.safetensors"), load_file(part / "lora.safetensors")
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)

    _, settings = load_run(whole, NODE_CLASS_MAPPINGS)
    assert (settings.kind, settings.steps, settings.width, settings.guidance) == ("ode", 4, 40, 3.5)


@pytest.mark.parametrize("loss", ["nft", "awm", "dgpo"])
def test_the_other_losses_take_pairs_too_and_an_evaluation_without_rewards_has_pictures(
    folder_of, graph_of, otca, loss
):
    changes = {"MatchingStep": {"loss": loss}, "TrainingRun": {"iterations": 1, "evaluate_every": 1}}
    run = otca(graph_of(folder_of(), changes, reward=False), "run")
    [row] = rows(run)
    assert row["gradient_norm"] > 0 and math.isfinite(row["loss"])
    assert [evaluation["rewards"] for evaluation in rows(run, "evaluation.jsonl")] == [{}, {}]
    assert (run / "samples.png").is_file()


def credited(graph, credit, **inputs):
    """The graph with that credit between opinions and update."""
    graph["6"] = {"class_type": credit, "inputs": {"trajectories": ["2", 0], **inputs}}
    fuse = {"scores": ["2", 2], "credit": ["6", 0], "mode": "weighted_sum", "std_scope": "group"}
    graph["7"] = {"class_type": "OTCA_WeightedFuse", "inputs": fuse}
    graph["4"]["inputs"]["advantages"] = ["7", 0]


def test_levels_can_be_weighed_by_a_credit_node(folder_of, graph_of, otca):
    graph = graph_of(folder_of(), {"TrainingRun": {"iterations": 1}})
    credited(graph, "OTCA_TCDWeights", w_min=0.5, floor="affine", normalize="mean")
    [row] = rows(otca(graph, "run"))
    weights = [row[f"credit/step/{step}"] for step in range(4)]
    assert sum(weights) / 4 == pytest.approx(1, abs=1e-5) and max(weights) - min(weights) > 0.1


def test_rewards_can_judge_the_given_pictures_instead(folder_of, graph_of, otca):
    graph = graph_of(folder_of(), {"TrainingRun": {"iterations": 1}}, reward=False)
    graph["3"]["inputs"]["held_out"] = False
    graph["6"] = {"class_type": "OTCA_RewardStack", "inputs": {"trajectories": ["2", 0], "reward_1": ["3", 0]}}
    graph["7"] = {"class_type": "OTCA_StepCredit", "inputs": {"trajectories": ["2", 0], "method": "uniform"}}
    fuse = {"scores": ["6", 0], "credit": ["7", 0], "mode": "weighted_sum", "std_scope": "group"}
    graph["8"] = {"class_type": "OTCA_WeightedFuse", "inputs": fuse}
    graph["4"]["inputs"]["advantages"] = ["8", 0]
    [row] = rows(otca(graph, "run"))
    assert row["reward/colorfulness/mean"] > 0 and row["gradient_norm"] > 0


def test_a_damaged_picture_ends_the_training_with_its_name(folder_of, graph_of, tmp_path):
    folder = folder_of(["one", "two"])
    (folder / "0a.png").write_bytes((folder / "0a.png").read_bytes()[:200])
    with pytest.raises(NodeError, match=r"pairs\.jsonl, line 1: file '0a.png' is damaged .*Fix: "):
        Workflow(graph_of(folder), NODE_CLASS_MAPPINGS).run(targets=["2"])


# --- refused beforehand -----------------------------------------------------------------------------------------------


def grpo(graph):
    step = graph["4"]["inputs"]
    values = {"clip_range": 1e-4, "kl_coefficient": 0.0, "learning_rate": 1e-3}
    links = {name: step[name] for name in ("model", "trajectories", "advantages")}
    graph["4"] = {"class_type": "OTCA_GRPOStep", "inputs": links | values}


def trained_reward(graph):
    graph["3"]["inputs"]["held_out"] = False


def wrong_size(graph):
    graph["2"]["inputs"]["width"] = 44


def beside_a_sampler(graph):
    sampler = {
        "model": ["1", 0],
        "prompts": ["6", 0],
        "group_size": 2,
        "steps": 4,
        "width": 40,
        "height": 40,
        "kind": "dance_sde",
        "eta": 0.5,
        "shift": 0.0,
        "guidance": 3.5,
        "seed": 0,
    }
    prompts = {"prompts": "a", "prompts_per_iteration": 2, "index": 0, "shuffle": False, "seed": 0}
    graph["6"] = {"class_type": "OTCA_PromptDataset", "inputs": prompts}
    graph["7"] = {"class_type": "OTCA_SDESampler", "inputs": sampler}
    graph["4"]["inputs"]["trajectories"] = ["7", 0]


def measured(graph):
    gain = {
        "model": ["1", 0],
        "trajectories": ["2", 0],
        "scores": ["2", 2],
        "tweedie_steps": 1,
        "per_step": False,
        "fusion": "weighted_sum",
    }
    graph["6"] = {"class_type": "OTCA_StepwiseGain", "inputs": gain}
    graph["4"]["inputs"]["advantages"] = ["6", 0]


def by_noise(graph):
    credited(graph, "OTCA_StepCredit", method="noise_aware")


def best_of_nothing(graph):
    graph["5"]["inputs"]["best_metric"] = "evaluation/sharpness"


def too_far(graph):
    graph["2"]["inputs"]["index"] = 2**31 - 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (grpo, "trajectories.*gives pictures that no policy sampled.*Fix: Matching Step"),
        (trained_reward, "reward_1.*would be trained, and here pairs are.*Fix: switch on held_out"),
        (wrong_size, "width 44 and height 40 must be multiples of 8"),
        (beside_a_sampler, "come from 2 My Pictures or SDE Sampler nodes"),
        (measured, "asks the rewards at every step, and the preferences of .* come from none"),
        (by_noise, "weighs steps by their noise"),
        (best_of_nothing, "best_metric.*colorfulness"),
        (too_far, "index.*advances by one an iteration, and would pass"),
    ],
)
def test_what_a_graph_shows_to_be_wrong(folder_of, graph_of, damage, told):
    graph = graph_of(folder_of())
    assert preflight.problems(Workflow(graph, NODE_CLASS_MAPPINGS)) == []
    damage(graph)
    [problem] = [str(problem) for problem in preflight.problems(Workflow(graph, NODE_CLASS_MAPPINGS))]
    assert re.search(told, problem) and "Fix: " in problem, problem


def test_the_folder_is_told_beforehand(folder_of, graph_of, tmp_path, capsys):
    folder = folder_of()
    (tmp_path / "workflow.json").write_text(json.dumps(graph_of(folder)))
    assert main(["validate", str(tmp_path / "workflow.json")]) == 0
    assert f"this workflow wants: read {folder} (opinions) (allowed)" in capsys.readouterr().out
    (folder / "pairs.jsonl").write_text('{"prompt": "x"}\n')
    assert main(["validate", str(tmp_path / "workflow.json")]) != 0
    told = capsys.readouterr()
    assert "pairs.jsonl, line 1 is not a pair" in told.out + told.err


def test_only_the_index_moves_with_the_iterations(folder_of, graph_of):
    graph = graph_of(folder_of())
    assert [name for _, name, _ in Workflow(graph, NODE_CLASS_MAPPINGS).advancing()] == ["index"]
    later = json.loads(json.dumps(graph))
    later["2"]["inputs"]["index"] = 7
    assert lineage.changes(graph, later) == [] and lineage.as_begun(later, 7) == graph
    # samples were held: after nine iterations the index has moved on by seven. It was left at 7, and resumed at 7 + 9
    assert lineage.as_begun(later, 9)["2"]["inputs"]["index"] == 0
    later["2"]["inputs"]["levels"] = 8
    [change] = lineage.changes(graph, later)
    assert (change["input"], change["before"], change["now"]) == ("levels", 4, 8)
    assert lineage.structure(graph, "5") == lineage.structure(later, "5")


def test_what_looks_at_samples_says_that_there_are_none(folder_of, graph_of, tmp_path):
    workflow = Workflow(graph_of(folder_of()), NODE_CLASS_MAPPINGS)
    with pytest.raises(ValueError, match="looks at what a policy samples.*Fix: "):
        analyze(workflow, tmp_path / "analysis", 1)
