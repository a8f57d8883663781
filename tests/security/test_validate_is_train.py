"""What train refuses before its first iteration, validate and the page refuse too, in the same words and with nothing written."""

from __future__ import annotations

import copy
import json
import shutil

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from comfyui_otca.page.jobs import Jobs
from comfyui_otca.trainer.checks import preflight
from comfyui_otca.trainer.checks.prepare import prepare
from comfyui_otca.trainer.workflow.running import Workflow, WorkflowError


class Graph:
    """OTCA's workflow, to be damaged: `find` a node's id by its class, change its `inputs`, `copy` it under a new id."""

    def __init__(self, content):
        self.content = content

    def find(self, name):
        return next(node for node, entry in self.content.items() if entry["class_type"] == f"OTCA_{name}")

    def inputs(self, name):
        return self.content[self.find(name)]["inputs"]

    def copy(self, name, node_id):
        self.content[node_id] = copy.deepcopy(self.content[self.find(name)])
        return self.content[node_id]["inputs"]

    def add(self, node_id, kind, /, **inputs):
        self.content[node_id] = {"class_type": f"OTCA_{kind}", "inputs": inputs}


def no_training_run(graph):
    del graph.content[graph.find("TrainingRun")]


def two_training_runs(graph):
    graph.copy("TrainingRun", "run2")["run_name"] = "other"


def two_grpo_steps(graph):
    graph.copy("GRPOStep", "step2")


def two_models(graph):
    graph.copy("LoadFlowModel", "model2")
    graph.inputs("GRPOStep")["model"] = ["model2", 0]


def the_run_keeps_another_model(graph):
    graph.copy("LoadFlowModel", "model2")
    graph.inputs("TrainingRun")["model"] = ["model2", 0]


def two_samplers(graph):
    graph.copy("SDESampler", "sampler2")["group_size"] = 4
    graph.inputs("TCDWeights")["trajectories"] = ["sampler2", 0]


def scores_of_other_trajectories(graph):
    graph.copy("SDESampler", "sampler2")
    graph.inputs("RewardStack")["trajectories"] = ["sampler2", 0]


def the_same_reward_twice(graph):
    stack = graph.inputs("RewardStack")
    stack["reward_7"] = stack["reward_1"]


def two_rewards_of_one_name(graph):
    graph.add("sharp1", "RewardSharpness", coefficient=1.0, name="mine")
    graph.add("sharp2", "RewardColorfulness", coefficient=1.0, name="mine")
    graph.inputs("RewardStack").update(reward_7=["sharp1", 0], reward_8=["sharp2", 0])


def all_rewards_held_out(graph):
    for name, (source, _) in list(graph.inputs("RewardStack").items()):
        if name.startswith("reward_"):
            graph.content[source]["inputs"]["held_out"] = True


def a_width_that_the_model_refuses(graph):
    graph.inputs("SDESampler")["width"] = 36


def a_height_that_the_model_refuses(graph):
    graph.inputs("SDESampler")["height"] = 44


def frames_of_a_picture_model(graph):
    graph.inputs("SDESampler")["frames"] = 5


def a_model_that_is_null(graph):
    graph.inputs("LoadFlowModel").update(model=None, path="")


def a_port_that_no_server_has(graph):
    graph.add("http", "RewardHTTP", url="http://127.0.0.1:99999/score", coefficient=1.0)
    graph.inputs("RewardStack")["reward_8"] = ["http", 0]


def an_eta_that_cps_cannot_have(graph):
    graph.inputs("SDESampler").update(kind="cps", eta=1.5)


def fewer_steps_after_no_window(graph):
    graph.inputs("SDESampler")["fraction_after_window"] = 0.5


def a_window_after_the_last_step(graph):
    graph.inputs("SDESampler").update(window_start=500, window_length=2)


def only_a_deterministic_step(graph):
    graph.inputs("SDESampler").update(kind="ddim_sde", window_start=0, window_length=1)


def a_window_longer_than_the_steps(graph):
    graph.add("window", "MixGRPOWindow", iteration=0, steps=4, length=9, mode="progressive", every=1, stride=1)
    graph.inputs("SDESampler").update(window_start=["window", 0], window_length=["window", 1])


def a_linked_group_of_one(graph):
    graph.add("window", "MixGRPOWindow", iteration=0, steps=4, length=1, mode="progressive", every=1, stride=1)
    graph.inputs("SDESampler")["group_size"] = ["window", 1]


def iterations_by_a_link(graph):
    graph.add("window", "MixGRPOWindow", iteration=0, steps=4, length=1, mode="progressive", every=1, stride=1)
    graph.inputs("TrainingRun")["iterations"] = ["window", 1]


def a_metric_that_nothing_measures(graph):
    graph.inputs("TrainingRun")["best_metric"] = "evaluation/beauty"


def targets_that_fit_no_layer(graph):
    graph.inputs("LoadFlowModel")["lora_targets"] = "attention.query"


def a_target_that_is_no_layer(graph):
    graph.inputs("LoadFlowModel")["lora_targets"] = "attn.to_q, norm_q"


def full_and_quantized(graph):
    graph.add("memory", "ModelMemory", **{**MEMORY, "quantize": "4bit"})
    graph.inputs("LoadFlowModel").update(training="full", memory=["memory", 0])


def sharded_and_quantized(graph):
    graph.add("memory", "ModelMemory", **{**MEMORY, "quantize": "8bit", "shard": True})
    graph.inputs("LoadFlowModel")["memory"] = ["memory", 0]


def a_device_that_nobody_makes(graph):
    graph.inputs("LoadFlowModel")["device"] = "gpu 0"


def two_credits_that_rescale_the_ratio(graph):
    sampler = graph.find("SDESampler")
    graph.add("pcpo", "PCPOWeights", trajectories=[sampler, 0])
    graph.add("guard", "GRPOGuard", trajectories=[sampler, 0])
    graph.add("both", "CombineCredit", trajectories=[sampler, 0], credit_1=["pcpo", 0], credit_2=["guard", 0])
    graph.inputs("MOCAFuse")["credit"] = ["both", 0]


def a_seed_that_runs_out(graph):
    graph.inputs("SDESampler")["seed"] = 2**63 - 1


def a_judge_of_videos_for_pictures(graph):
    # by a stand-in for the node, since its model is not here
    graph.add(
        "video", "RewardVideoScore", model=str(MODEL), most_frames=8, **{f"coefficient_{name}": 1.0 for name in SCORED}
    )
    graph.inputs("RewardStack")["reward_8"] = ["video", 0]


def an_update_of_each_kind(graph):
    inputs = graph.inputs("GRPOStep")
    shared = {name: inputs[name] for name in ("model", "trajectories", "advantages", "learning_rate")}
    rest = {"loss": "nft", "beta": 0.0, "old_policy": "gradual", "sampled_steps": 4, "kl_coefficient": 0.0}
    graph.add("matching", "MatchingStep", **shared, **rest)


def matching(graph, **changes):
    an_update_of_each_kind(graph)
    step = graph.find("GRPOStep")
    graph.content[step] = graph.content.pop("matching")
    graph.content[step]["inputs"].update(changes)


def ratios_without_noise(graph):
    graph.inputs("SDESampler").update(kind="ode", shared_noise=False)


def one_picture_of_a_group(graph):
    matching(graph)
    graph.inputs("SDESampler").update(kind="ode")


def a_window_for_matching(graph):
    matching(graph)
    inputs = {"iteration": 0, "steps": 4, "length": 2, "mode": "progressive", "every": 1, "stride": 1}
    graph.add("window", "MixGRPOWindow", **inputs)
    graph.inputs("SDESampler").update(window_start=["window", 0], window_length=["window", 1])


def a_graph_for_matching(graph):
    matching(graph)
    graph.inputs("SDESampler")["keep_graph"] = "on"


def matching_with_scaled_ratios(graph):
    matching(graph)
    sampler = graph.find("SDESampler")
    graph.add("guard", "GRPOGuard", trajectories=[sampler, 0])
    graph.add(
        "both",
        "CombineCredit",
        trajectories=[sampler, 0],
        credit_1=[graph.find("TCDWeights"), 0],
        credit_2=["guard", 0],
    )
    graph.inputs("MOCAFuse")["credit"] = ["both", 0]


def a_credit_by_noise_without_noise(graph):
    matching(graph)
    sampler = graph.find("SDESampler")
    graph.inputs("SDESampler").update(kind="ode", shared_noise=False)
    graph.add("noise", "NoiseAwareWeights", trajectories=[sampler, 0])
    graph.inputs("MOCAFuse")["credit"] = ["noise", 0]


def a_pull_towards_no_average(graph):
    matching(graph, ema_kl_coefficient=1.0, ema_decay=0.0)


def one_of_each_group_for_pairs(graph):
    matching(graph, loss="dpo")
    graph.add("best", "BestOfN", advantages=[graph.find("MOCAFuse"), 0], best=1, worst=0)
    graph.inputs("MatchingStep")["advantages"] = ["best", 0]


MEMORY = {"offload_encoders": False, "vae_tiling": False, "gradient_checkpointing": False, "attention": "auto"} | {
    "compile": False
}
SCORED = ("visual", "temporal", "dynamic", "alignment", "factual")
MODEL = "somewhere"
# what damages a graph, the class of the node that is named, the input, and a word of the message
REFUSED = [
    (no_training_run, None, None, "exactly one Training Run"),
    (two_training_runs, None, None, "exactly one Training Run"),
    (two_grpo_steps, None, None, "exactly one GRPO Step"),
    (an_update_of_each_kind, None, None, "exactly one GRPO Step or Matching Step"),
    (ratios_without_noise, "SDESampler", "kind", "whose ratio GRPO Step could train"),
    (one_picture_of_a_group, "SDESampler", "shared_noise", "one picture"),
    (a_window_for_matching, "SDESampler", "window_length", "Matching Step trains noise levels"),
    (a_graph_for_matching, "SDESampler", "keep_graph", "no use for the sampler's graph"),
    (matching_with_scaled_ratios, "MatchingStep", "advantages", "scales importance ratios"),
    (a_credit_by_noise_without_noise, "NoiseAwareWeights", "trajectories", "adds none"),
    (a_pull_towards_no_average, "MatchingStep", "ema_kl_coefficient", "pulls towards the average"),
    (one_of_each_group_for_pairs, "BestOfN", "worst", "1 sample of each group is left"),
    (two_models, "GRPOStep", "model", "the trajectories are of"),
    (the_run_keeps_another_model, "TrainingRun", "model", "the trajectories are of"),
    (two_samplers, "MOCAFuse", None, "2 SDE Sampler nodes"),
    (scores_of_other_trajectories, "MOCAFuse", None, "2 SDE Sampler nodes"),
    (the_same_reward_twice, "RewardStack", "reward_7", "the same reward as reward_1"),
    (two_rewards_of_one_name, "RewardStack", "reward_8", "'mine'"),
    (all_rewards_held_out, "RewardStack", None, "K = 0"),
    (a_width_that_the_model_refuses, "SDESampler", "width", "multiples of 8"),
    (a_height_that_the_model_refuses, "SDESampler", "height", "multiples of 8"),
    (frames_of_a_picture_model, "SDESampler", "frames", "makes pictures"),
    (a_model_that_is_null, "LoadFlowModel", "model", "null"),
    (a_port_that_no_server_has, "RewardHTTP", "url", "port"),
    (an_eta_that_cps_cannot_have, "SDESampler", "eta", "cps"),
    (fewer_steps_after_no_window, "SDESampler", "fraction_after_window", "no window ends"),
    (a_window_after_the_last_step, "SDESampler", "window_start", "nothing can be trained"),
    (only_a_deterministic_step, "SDESampler", "window_start", "nothing can be trained"),
    (a_window_longer_than_the_steps, "MixGRPOWindow", "length", "longer window does not fit"),
    (a_linked_group_of_one, "SDESampler", "group_size", "at least 2"),
    (iterations_by_a_link, "TrainingRun", "iterations", "known before the graph runs"),
    (a_metric_that_nothing_measures, "TrainingRun", "best_metric", "no figure of this run"),
    (targets_that_fit_no_layer, "LoadFlowModel", "lora_targets", "fit no layer"),
    (a_target_that_is_no_layer, "LoadFlowModel", "lora_targets", "norm_q"),
    (full_and_quantized, "LoadFlowModel", "training", "freezes the weights"),
    (sharded_and_quantized, "LoadFlowModel", "memory", "cannot be spread"),
    (a_device_that_nobody_makes, "LoadFlowModel", "device", "no device"),
    (two_credits_that_rescale_the_ratio, "CombineCredit", "credit_2", "both rescale the ratio"),
    (a_seed_that_runs_out, "SDESampler", "seed", "would pass"),
]


REFUSED_TO_SEVERAL = [
    (3, 2, "dgpo", True),
    (4, 3, "dpo", True),
    (4, 2, "dgpo", False),
    (3, 2, "nft", False),
]


@pytest.fixture
def page(tmp_path):
    return Jobs(None, tmp_path, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS, lambda: tmp_path, lambda: None)


@pytest.mark.parametrize(
    ("damage", "name", "given", "word"), REFUSED, ids=lambda value: getattr(value, "__name__", None)
)
def test_validate_train_and_the_page_refuse_alike(
    small_graph, page, tmp_path, monkeypatch, capsys, damage, name, given, word
):
    graph = Graph(small_graph({"OTCA_TrainingRun": {"iterations": 2}}))
    damage(graph)
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph.content))
    monkeypatch.chdir(tmp_path)
    said = []
    for command in (["validate", str(path)], ["train", str(path), "--output", str(tmp_path / "run")]):
        assert main(command) == 2
        told = capsys.readouterr().err.splitlines(keepends=True)
        said.append("".join(line for line in told if line.startswith("error: ")))
    assert said[0] == said[1]
    _, problems = page.check(graph.content)
    errors = [problem for problem in problems if problem.severity == "error"]
    assert "".join(f"error: {problem}\n" for problem in errors) == said[0]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["graph.json"]  # nothing was written
    [problem] = [problem for problem in errors if word in problem.message]
    assert problem.fix and problem.input == given
    assert name is None or graph.content[problem.node_id]["class_type"] == f"OTCA_{name}"


@pytest.mark.parametrize(("prompts", "gpus", "loss", "refused"), REFUSED_TO_SEVERAL)
def test_groups_that_processes_would_part_are_refused_before_any_begins(
    small_graph, page, tmp_path, monkeypatch, capsys, prompts, gpus, loss, refused
):
    graph = Graph(small_graph({"OTCA_PromptDataset": {"prompts_per_iteration": prompts}}))
    matching(graph, loss=loss)
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph.content))
    begun = []
    monkeypatch.setattr("comfyui_otca.trainer.run.launch.launch", lambda *arguments: begun.append(arguments) or 0)
    shared = ["--gpus", str(gpus)]
    _, problems = page.check(graph.content, gpus)
    assert len(problems) == refused
    for command in (
        ["validate", str(path)],
        ["train", str(path), "--output", str(tmp_path / "run"), "--device", "cpu"],
    ):
        assert main([*command, *shared]) == 2 * refused
        told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert told == [f"error: {problem}" for problem in problems]
    assert len(begun) == (not refused)
    for problem in problems:
        assert (problem.node_id, problem.input) == (graph.find("PromptDataset"), "prompts_per_iteration")
        assert (
            problem.value == prompts and f"{gpus} processes share {prompts} groups" in problem.message and problem.fix
        )


def test_the_library_refuses_as_the_command_does(small_graph):
    graph = Graph(small_graph())
    two_models(graph)
    with pytest.raises(WorkflowError, match="Load Flow Model"):
        prepare(Workflow(graph.content, NODE_CLASS_MAPPINGS))


def test_judges_of_videos_are_refused_pictures(small_graph, monkeypatch):
    monkeypatch.setattr("comfyui_otca.trainer.rewards.video.find", lambda name: name)
    graph = Graph(small_graph())
    a_judge_of_videos_for_pictures(graph)
    [problem] = preflight.problems(Workflow(graph.content, NODE_CLASS_MAPPINGS))
    assert problem.input == "reward_8" and "makes pictures" in problem.message and "video model" in problem.fix


@pytest.mark.parametrize("damage", ["{", '{"block_out_channels": 3}', "[]", '{"latent_channels": 4}', "[" * 2000])
def test_a_damaged_configuration_is_a_refusal(small_graph, flux_folder, tmp_path, damage):
    shutil.copytree(flux_folder, tmp_path / "model")
    (tmp_path / "model" / "vae" / "config.json").write_text(damage)
    content = small_graph({"OTCA_LoadFlowModel": {"path": str(tmp_path / "model")}})
    [problem] = preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS))
    assert problem.input == "path" and problem.severity == "error" and "copy" in problem.fix


@pytest.mark.parametrize(
    "scheduler",
    [
        {"max_shift": 1e4, "max_image_seq_len": 2},  # e^μ, with more tokens, is more than a number can be
        {"max_shift": -1e4, "max_image_seq_len": 2},  # … and 0
        {"base_shift": "much"},
    ],
)
def test_a_shift_that_is_none_at_the_size_is_a_refusal(small_graph, flux_folder, tmp_path, scheduler):
    shutil.copytree(flux_folder, tmp_path / "model")
    own = {"use_dynamic_shifting": True, "base_shift": 0.5, "base_image_seq_len": 1}
    (tmp_path / "model" / "scheduler" / "scheduler_config.json").write_text(json.dumps(own | scheduler))
    content = small_graph({"OTCA_LoadFlowModel": {"path": str(tmp_path / "model")}})
    [problem] = preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS))
    assert problem.input == "path" and "shift" in problem.message and "copy" in problem.fix
    content = small_graph({"OTCA_LoadFlowModel": {"path": str(tmp_path / "model")}, "OTCA_SDESampler": {"shift": 3.0}})
    at_any_size = isinstance(scheduler.get("base_shift"), str)
    assert len(preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS))) == at_any_size, "the sampler's own counts"


def test_a_chain_longer_than_the_stack_is_checked(small_graph):
    graph = Graph(small_graph())
    sampler, before = graph.find("SDESampler"), graph.find("TCDWeights")
    for number in range(1500):
        graph.add(f"c{number}", "CombineCredit", trajectories=[sampler, 0], credit_1=[before, 0], credit_2=[before, 0])
        before = f"c{number}"
    graph.inputs("MOCAFuse")["credit"] = [before, 0]
    assert preflight.problems(Workflow(graph.content, NODE_CLASS_MAPPINGS)) == []
    graph.content[graph.find("TCDWeights")] = {"class_type": "OTCA_GRPOGuard", "inputs": {"trajectories": [sampler, 0]}}
    found = preflight.problems(Workflow(graph.content, NODE_CLASS_MAPPINGS))
    assert len(found) == 1500 and "both rescale" in found[0].message


def test_what_is_no_socket_of_the_stack_is_no_reward(small_workflow, tmp_path):
    """An unknown input is left out with a warning, and must not stop the search for the rewards' names."""
    from comfyui_otca.trainer.run import loop as run

    workflow = small_workflow({"OTCA_RewardStack": {"reward_9": 5}})
    assert {reward.name for reward in run._rewards(workflow)} >= {"clip_t"}
