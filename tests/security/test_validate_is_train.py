"""What train refuses before its first iteration, validate and the page refuse too, in the same words and with nothing written."""

from __future__ import annotations

import copy
import json
import shutil

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.host.paths import ASSETS
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from comfyui_otca.page.jobs import Jobs
from comfyui_otca.trainer.checks import preflight
from comfyui_otca.trainer.workflow.running import Workflow


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


# --- what damages a graph -------------------------------------------------------------------------------------------


def sets(name, **inputs):
    return lambda graph: graph.inputs(name).update(inputs)


def lacks(name, *inputs):
    return lambda graph: [graph.inputs(name).pop(each) for each in inputs]


def copied(name, node_id, **inputs):
    return lambda graph: graph.copy(name, node_id).update(inputs)


def added(node_id, kind, **inputs):
    return lambda graph: graph.add(node_id, kind, **inputs)


def window(length=1):
    return added("window", "MixGRPOWindow", iteration=0, steps=4, length=length, mode="progressive", every=1, stride=1)


def memory(**changes):
    off = dict.fromkeys(("offload_encoders", "vae_tiling", "gradient_checkpointing", "compile"), False)
    return added("memory", "ModelMemory", **{**off, "attention": "auto", **changes})


def no_training_run(graph):
    del graph.content[graph.find("TrainingRun")]


def the_same_reward_twice(graph):
    stack = graph.inputs("RewardStack")
    stack["reward_7"] = stack["reward_1"]


def all_rewards_held_out(graph):
    for name, (source, _) in list(graph.inputs("RewardStack").items()):
        if name.startswith("reward_"):
            graph.content[source]["inputs"]["held_out"] = True


def two_credits_that_rescale_the_ratio(graph):
    sampler = graph.find("SDESampler")
    graph.add("pcpo", "StepCredit", method="pcpo", trajectories=[sampler, 0])
    graph.add("guard", "StepCredit", method="grpo_guard", trajectories=[sampler, 0])
    graph.add("both", "CombineCredit", trajectories=[sampler, 0], credit_1=["pcpo", 0], credit_2=["guard", 0])
    graph.inputs("MOCAFuse")["credit"] = ["both", 0]


def an_update_of_each_kind(graph):
    inputs = graph.inputs("GRPOStep")
    shared = {name: inputs[name] for name in ("model", "trajectories", "advantages", "learning_rate")}
    rest = {"loss": "nft", "beta": 0.0, "old_policy": "gradual", "sampled_steps": 4, "kl_coefficient": 0.0}
    graph.add("matching", "MatchingStep", **shared, **rest)


def matching(**changes):
    def damage(graph):
        an_update_of_each_kind(graph)
        step = graph.find("GRPOStep")
        graph.content[step] = graph.content.pop("matching")
        graph.content[step]["inputs"].update(changes)

    return damage


def scaled_ratios(graph):
    sampler, credit = graph.find("SDESampler"), graph.find("TCDWeights")
    graph.add("guard", "StepCredit", method="grpo_guard", trajectories=[sampler, 0])
    graph.add("both", "CombineCredit", trajectories=[sampler, 0], credit_1=[credit, 0], credit_2=["guard", 0])
    graph.inputs("MOCAFuse")["credit"] = ["both", 0]


def credit_by_noise(graph):
    graph.add("noise", "StepCredit", method="noise_aware", trajectories=[graph.find("SDESampler"), 0])
    graph.inputs("MOCAFuse")["credit"] = ["noise", 0]


def one_of_each_group(graph):
    graph.add("best", "BestOfN", advantages=[graph.find("MOCAFuse"), 0], best=1, worst=0)
    graph.inputs("MatchingStep")["advantages"] = ["best", 0]


MODEL_2, SAMPLER_2, START, LENGTH = ["model2", 0], ["sampler2", 0], ["window", 0], ["window", 1]
BY_WINDOW = sets("SDESampler", window_start=START, window_length=LENGTH)
HTTP = {"url": "http://127.0.0.1:99999/score", "coefficient": 1.0}
MINE = {"coefficient": 1.0, "name": "mine"}
A_PICTURE = {"evaluation_prompts": '{"prompt": "a", "image": "x.png"}'}
UNJUDGED = {"evaluate_every": 0, "best_metric": "evaluation/sum"}
# what damages a graph, the class of the node that is named, the input, and a word of the message
REFUSED = [
    ([no_training_run], None, None, "exactly one Training Run"),
    ([copied("TrainingRun", "run2", run_name="other")], None, None, "exactly one Training Run"),
    ([copied("GRPOStep", "step2")], None, None, "exactly one GRPO Step"),
    ([an_update_of_each_kind], None, None, "exactly one GRPO Step or Matching Step"),
    ([sets("SDESampler", kind="ode", shared_noise=False)], "SDESampler", "kind", "whose ratio GRPO Step could train"),
    ([matching(), sets("SDESampler", kind="ode")], "SDESampler", "shared_noise", "one picture"),
    ([matching(), window(2), BY_WINDOW], "SDESampler", "window_length", "Matching Step trains noise levels"),
    ([matching(), sets("SDESampler", keep_graph="on")], "SDESampler", "keep_graph", "no use for the sampler's graph"),
    ([matching(), scaled_ratios], "MatchingStep", "advantages", "scales importance ratios"),
    (
        [matching(), sets("SDESampler", kind="ode", shared_noise=False), credit_by_noise],
        *("StepCredit", "method", "adds none"),
    ),
    ([matching(loss="dpo"), one_of_each_group], "BestOfN", "worst", "1 sample of each group is left"),
    (
        [copied("LoadFlowModel", "model2"), sets("GRPOStep", model=MODEL_2)],
        *("GRPOStep", "model", "the trajectories are of"),
    ),
    (
        [copied("LoadFlowModel", "model2"), sets("TrainingRun", model=MODEL_2)],
        *("TrainingRun", "model", "the trajectories are of"),
    ),
    (
        [copied("SDESampler", "sampler2", group_size=4), sets("TCDWeights", trajectories=SAMPLER_2)],
        *("MOCAFuse", None, "2 SDE Sampler nodes"),
    ),
    ([the_same_reward_twice], "RewardStack", "reward_7", "the same reward as reward_1"),
    (
        [
            added("sharp1", "RewardSharpness", **MINE),
            added("sharp2", "RewardColorfulness", **MINE),
            sets("RewardStack", reward_7=["sharp1", 0], reward_8=["sharp2", 0]),
        ],
        *("RewardStack", "reward_8", "'mine'"),
    ),
    ([all_rewards_held_out], "RewardStack", None, "no reward is connected"),
    ([sets("SDESampler", width=36)], "SDESampler", "width", "multiples of 8"),
    ([sets("SDESampler", frames=5)], "SDESampler", "frames", "makes pictures"),
    ([sets("LoadFlowModel", model=None, path="")], "LoadFlowModel", "model", "null"),
    ([added("http", "RewardHTTP", **HTTP), sets("RewardStack", reward_8=["http", 0])], "RewardHTTP", "url", "port"),
    ([sets("SDESampler", kind="cps", eta=1.5)], "SDESampler", "eta", "cps"),
    ([sets("SDESampler", fraction_after_window=0.5)], "SDESampler", "fraction_after_window", "no window ends"),
    (
        [sets("SDESampler", window_start=500, window_length=2)],
        *("SDESampler", "window_start", "nothing can be trained"),
    ),
    (
        [sets("SDESampler", kind="ddim_sde", window_start=0, window_length=1)],
        *("SDESampler", "window_start", "nothing can be trained"),
    ),
    ([window(9), BY_WINDOW], "MixGRPOWindow", "length", "longer window does not fit"),
    ([window(), sets("SDESampler", group_size=LENGTH)], "SDESampler", "group_size", "at least 2"),
    ([window(), sets("TrainingRun", iterations=LENGTH)], "TrainingRun", "iterations", "known before the graph runs"),
    ([sets("TrainingRun", best_metric="evaluation/beauty")], "TrainingRun", "best_metric", "not a figure of this run"),
    ([sets("LoadFlowModel", lora_targets="attention.query")], "LoadFlowModel", "lora_targets", "fit no layer"),
    ([sets("LoadFlowModel", lora_targets="attn.to_q, norm_q")], "LoadFlowModel", "lora_targets", "norm_q"),
    (
        [memory(quantize="4bit"), sets("LoadFlowModel", training="full", memory=["memory", 0])],
        *("LoadFlowModel", "training", "freezes the weights"),
    ),
    (
        [memory(quantize="8bit", shard=True), sets("LoadFlowModel", memory=["memory", 0])],
        *("LoadFlowModel", "memory", "cannot be spread"),
    ),
    (
        [memory(quantize="none", attention="flash"), sets("LoadFlowModel", memory=["memory", 0])],
        *("LoadFlowModel", "memory", "attention 'flash' cannot be had here"),
    ),
    ([sets("LoadFlowModel", device="gpu 0")], "LoadFlowModel", "device", "no device"),
    ([two_credits_that_rescale_the_ratio], "CombineCredit", "credit_2", "both rescale the ratio"),
    ([sets("SDESampler", seed=2**63 - 1)], "SDESampler", "seed", "would pass"),
    ([sets("PromptDataset", file="nowhere.txt")], "PromptDataset", "file", "nowhere.txt"),
    ([sets("PromptDataset", file="", prompts="# none\n")], "PromptDataset", "prompts", "no prompts"),
    ([sets("LoadFlowModel", model="nothing-flux")], "LoadFlowModel", "model", "nothing-flux"),
    ([sets("RewardClipT", model="nothing-clip")], "RewardClipT", "model", "nothing-clip"),
    ([lacks("RewardStack", *(f"reward_{number}" for number in range(1, 5)))], "RewardStack", None, "no reward is"),
    ([sets("TrainingRun", **UNJUDGED)], "TrainingRun", "evaluate_every", "judges by evaluations"),
    ([sets("TrainingRun", **A_PICTURE)], "TrainingRun", "evaluation_prompts", "this model takes none"),
]


@pytest.fixture
def page(tmp_path):
    return Jobs(None, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS, lambda: tmp_path, lambda: None)


@pytest.mark.parametrize(("damages", "name", "given", "word"), REFUSED)
def test_validate_train_and_the_page_refuse_alike(
    small_graph, page, tmp_path, monkeypatch, capsys, damages, name, given, word
):
    graph = Graph(small_graph({"OTCA_TrainingRun": {"iterations": 2}}))
    for damage in damages:
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


@pytest.mark.parametrize(
    ("prompts", "gpus", "loss", "told"),
    [
        (3, 2, "dgpo", "2 processes share 3 groups"),
        (4, 3, "dpo", "3 processes share 4 groups"),
        (4, 2, "dgpo", ""),
        (3, 2, "nft", ""),
        (1, 2, "nft", ""),
        (1, 3, "nft", "3 processes for 2 samples"),
        (4, 3, "full", "3 processes cannot share 8 samples equally"),
        (3, 2, "full", ""),
    ],
)
def test_what_processes_cannot_share_is_refused_before_any_begins(
    small_graph, page, tmp_path, monkeypatch, capsys, prompts, gpus, loss, told
):
    """Seen before: with fewer samples than processes each of these ended in an error, and was begun again."""
    changes = {"OTCA_PromptDataset": {"prompts_per_iteration": prompts}, "OTCA_SDESampler": {"group_size": 2}}
    if loss == "full":
        changes["OTCA_LoadFlowModel"] = {"training": "full"}
    graph, refused = Graph(small_graph(changes)), bool(told)
    if loss != "full":
        matching(loss=loss)(graph)
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph.content))
    begun = []
    monkeypatch.setattr("comfyui_otca.host.processes.launch", lambda *arguments: begun.append(arguments) or 0)
    _, problems = page.check(graph.content, gpus)
    assert len(problems) == refused
    train = ["train", str(path), "--output", str(tmp_path / "run"), "--device", "cpu"]
    for command in (["validate", str(path)], train):
        assert main([*command, "--gpus", str(gpus)]) == 2 * refused
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert lines == [f"error: {problem}" for problem in problems]
    assert len(begun) == (not refused)
    for problem in problems:
        assert (problem.node_id, problem.input) == (graph.find("PromptDataset"), "prompts_per_iteration")
        assert problem.value == prompts and problem.fix
        assert told in problem.message


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("model.safetensors", lambda content: content[: len(content) // 2], "truncated"),
        ("model.safetensors", None, "no .safetensors weights"),
        ("config.json", lambda content: content[: len(content) // 2], "config.json cannot be read"),
    ],
)
def test_a_reward_whose_files_are_damaged_is_a_refusal(small_graph, tmp_path, file, content, told):
    place = shutil.copytree(ASSETS / "shapes-clip", tmp_path / "clip") / file
    place.unlink() if content is None else place.write_bytes(content(place.read_bytes()))
    workflow = Workflow(small_graph({"OTCA_RewardClipT": {"path": str(tmp_path / "clip")}}), NODE_CLASS_MAPPINGS)
    [problem] = preflight.problems(workflow)
    assert problem.input == "path" and told in problem.message and problem.fix


def test_judges_of_videos_are_refused_pictures(small_graph, monkeypatch):
    monkeypatch.setattr("comfyui_otca.trainer.rewards.video.find", lambda name: name)
    graph = Graph(small_graph())
    graph.add("video", "RewardVideoScore", model="somewhere", most_frames=8)
    graph.inputs("RewardStack")["reward_8"] = ["video", 0]
    [problem] = preflight.problems(Workflow(graph.content, NODE_CLASS_MAPPINGS))
    assert problem.input == "reward_8" and "makes pictures" in problem.message and "video model" in problem.fix


def test_a_damaged_configuration_is_a_refusal(small_graph, flux_folder, tmp_path):
    config = shutil.copytree(flux_folder, tmp_path / "model") / "vae" / "config.json"
    content = small_graph({"OTCA_LoadFlowModel": {"path": str(tmp_path / "model")}})
    for damage in ("{", '{"block_out_channels": 3}', "[]", '{"latent_channels": 4}', "[" * 2000):
        config.write_text(damage)
        [problem] = preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS))
        assert problem.input == "path" and problem.severity == "error" and "copy" in problem.fix, damage


def test_a_shift_that_is_none_at_the_size_is_a_refusal(small_graph, flux_folder, tmp_path):
    config = shutil.copytree(flux_folder, tmp_path / "model") / "scheduler" / "scheduler_config.json"
    path = {"OTCA_LoadFlowModel": {"path": str(tmp_path / "model")}}
    # e^μ, with more tokens, is more than a number can be, and 0; and no number at all, which the sampler's own does not mend.
    beyond = [{"max_shift": shift, "max_image_seq_len": 2} for shift in (1e4, -1e4)]
    for scheduler, at_any_size in ((beyond[0], False), (beyond[1], False), ({"base_shift": "much"}, True)):
        own = {"use_dynamic_shifting": True, "base_shift": 0.5, "base_image_seq_len": 1}
        config.write_text(json.dumps(own | scheduler))
        [problem] = preflight.problems(Workflow(small_graph(path), NODE_CLASS_MAPPINGS))
        assert problem.input == "path" and "shift" in problem.message and "copy" in problem.fix
        content = small_graph({**path, "OTCA_SDESampler": {"shift": 3.0}})
        assert len(preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS))) == at_any_size


def test_a_chain_longer_than_the_stack_is_checked(small_graph):
    graph = Graph(small_graph())
    sampler, before = graph.find("SDESampler"), graph.find("TCDWeights")
    for number in range(1500):
        graph.add(f"c{number}", "CombineCredit", trajectories=[sampler, 0], credit_1=[before, 0], credit_2=[before, 0])
        before = f"c{number}"
    graph.inputs("MOCAFuse")["credit"] = [before, 0]
    assert preflight.problems(Workflow(graph.content, NODE_CLASS_MAPPINGS)) == []
    graph.content[graph.find("TCDWeights")] = {
        "class_type": "OTCA_StepCredit",
        "inputs": {"trajectories": [sampler, 0], "method": "grpo_guard"},
    }
    found = preflight.problems(Workflow(graph.content, NODE_CLASS_MAPPINGS))
    assert len(found) == 1500 and "both rescale" in found[0].message


def test_what_is_no_socket_of_the_stack_is_no_reward(small_workflow, tmp_path):
    """An unknown input is left out with a warning, and must not stop the search for the rewards' names."""
    from comfyui_otca.trainer.run import loop as run

    workflow = small_workflow({"OTCA_RewardStack": {"reward_9": 5}})
    assert {reward.name for reward in run._rewards(workflow)} >= {"clip_t"}
