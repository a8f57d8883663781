"""What train refuses before its first iteration, validate and the page refuse too, in the same words and with nothing written."""

from __future__ import annotations

import ast
import copy
import json
import shutil
import sys
from pathlib import Path

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.host.paths import ASSETS
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from comfyui_otca.page.jobs import Jobs
from comfyui_otca.tools.canvases.templates import TEMPLATES
from comfyui_otca.trainer.checks import graph, method, preflight
from comfyui_otca.trainer.workflow import checking
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


def pairs(**inputs):
    """My Pictures beside the sampler, with a reward that would be trained."""
    known = json.loads(TEMPLATES["preference_pairs"].api.read_text(encoding="utf-8"))
    node = next(entry for entry in known.values() if entry["class_type"] == "OTCA_MyPictures")
    own = {name: value for name, value in node["inputs"].items() if not isinstance(value, list)}

    def damage(graph):
        graph.add("sharp", "RewardSharpness", coefficient=1.0)
        graph.add("pairs", "MyPictures", **own, model=[graph.find("LoadFlowModel"), 0], **inputs)

    return damage


def gains_of_pairs(graph):
    measured = {"proxy": "measured_gain", "model": [graph.find("LoadFlowModel"), 0], "scores": ["pairs", 2]}
    graph.inputs("TCDWeights").update(measured, trajectories=OF_PAIRS)


def variances_measured(graph):
    graph.add("measured", "StepCredit", method="inverse_variance", trajectories=[graph.find("SDESampler"), 0])
    graph.content["measured"]["inputs"]["model"] = [graph.find("LoadFlowModel"), 0]
    graph.inputs("MOCAFuse")["credit"] = ["measured", 0]


def a_circle_of_credits(graph):
    for node_id, other in (("c1", "c2"), ("c2", "c1")):
        credits = {"credit_1": [graph.find("TCDWeights"), 0], "credit_2": [other, 0]}
        graph.add(node_id, "CombineCredit", trajectories=[graph.find("SDESampler"), 0], **credits)
    graph.inputs("MOCAFuse")["credit"] = ["c1", 0]


def prompts_for_a_model(graph):
    graph.inputs("SDESampler")["model"] = [graph.find("PromptDataset"), 0]


OF_PAIRS, CHOSEN = ["pairs", 0], ["pairs", 1]
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
    ([sets("SDESampler", stochastic_steps=99)], "SDESampler", "stochastic_steps", "steps of the window can add noise"),
    ([sets("GRPOStep", parts=64)], "GRPOStep", "parts", "whole groups"),
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
    *(
        (
            [
                memory(**{"quantize": "none", "memory": "low", **how}),
                sets("LoadFlowModel", memory=["memory", 0], **training),
            ],
            *("LoadFlowModel", "memory", f"blocks cannot leave the device with {reason}"),
        )
        for how, training, reason in (
            ({"quantize": "4bit"}, {}, "quantize = 4bit"),
            ({"compile": True}, {}, "compile"),
            ({"shard": True}, {}, "shard"),
            ({}, {"training": "full"}, "training = full"),
        )
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
    ([lacks("TrainingRun", "report")], "TrainingRun", "report", "nothing is recorded"),
    ([lacks("SDESampler", "prompts")], "SDESampler", "prompts", "required input is missing"),
    ([sets("SDESampler", train_last_step=True)], "SDESampler", "train_last_step", "was removed"),
    ([sets("SDESampler", group_size=10**6)], "SDESampler", "group_size", "must be at most"),
    ([sets("SDESampler", kind="loud")], "SDESampler", "kind", "not one of the choices"),
    ([sets("SDESampler", prompts=["nowhere", 0])], "SDESampler", "prompts", "the graph has no node nowhere"),
    ([prompts_for_a_model], "SDESampler", "model", "takes"),
    ([added("x", "Rewards"), sets("RewardStack", reward_8=["x", 0])], "Rewards", None, "unknown node class"),
    ([a_circle_of_credits], "CombineCredit", None, "form a cycle"),
    ([pairs(), sets("GRPOStep", trajectories=OF_PAIRS)], "GRPOStep", "trajectories", "no policy sampled"),
    ([pairs(), gains_of_pairs], "TCDWeights", "scores", "come from none"),
    (
        [pairs(reward_1=["sharp", 0]), matching(loss="dpo", trajectories=OF_PAIRS, advantages=CHOSEN)],
        *("MyPictures", "reward_1", "rewards only judge"),
    ),
    ([matching(), variances_measured], "MatchingStep", "advantages", "goes by the gradients"),
    (
        [added("vote", "RewardVote", votes="votes", coefficient=1.0), sets("RewardStack", reward_8=["vote", 0])],
        *("RewardVote", "url", "only the canvas"),
    ),
    (
        [memory(quantize="8bit"), sets("LoadFlowModel", memory=["memory", 0]), sets("SDESampler", merge_adapter=True)],
        *("SDESampler", "merge_adapter", "would lose the adapter"),
    ),
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


# Words of what is said of a model alone, of which nothing is known where it is not there.
OF_THE_MODEL = (
    "multiples of 8",
    "makes pictures",
    "nothing can be trained",
    "fit no layer",
    "norm_q",
    "takes none",
    "null",
)


@pytest.mark.parametrize(
    ("damages", "name", "given", "word"),
    [row for row in REFUSED if not any(words in row[-1] for words in OF_THE_MODEL)],
)
def test_a_missing_model_hides_no_other_problem(small_graph, damages, name, given, word):
    graph = Graph(small_graph({"OTCA_TrainingRun": {"iterations": 2}}))
    for damage in damages:
        damage(graph)
    alone, both = [], []
    for problems in (alone, both):
        found = preflight.problems(Workflow(graph.content, NODE_CLASS_MAPPINGS))
        problems += [str(problem) for problem in found if problem.severity == "error"]
        graph.inputs("LoadFlowModel")["model"] = "nothing-flux"
    missing = [problem for problem in both if "model 'nothing-flux' was not found here" in problem]
    assert len(missing) == 1
    assert {*alone} == {*both} - {*missing} if word != "nothing-flux" else alone == both


PLACES = [Path(module.__file__) for module in (preflight, graph, method, checking)]
# What no row makes, with the test that does: warnings, and what takes files, processes, ComfyUI or another graph.
ELSEWHERE = {
    "applying: Misfit(input, *parted(error))": "test_a_line_that_a_reward_cannot_read_is_said_before_the_first_iteration",
    "applying: name, message, 'other prompts, as its help page has them, or another reward'": (
        "test_a_reward_that_applies_to_no_prompt_is_named"
    ),
    "_asked_again: 'scores', message, fix": "test_a_credit_that_asks_rewards_again_refuses_one_that_may_not_be",
    "_class_problems: None, None, message, '', 'warning'": "test_unknown_classes_that_nothing_needs_are_left_out",
    "_decoder: refusals.of_decoder()": "test_a_decoder_needs_a_model_that_comfyui_loaded",
    "_evaluations: name, misfit.message, misfit.fix": "test_what_evaluations_have_apart_fits_the_model",
    "_judged_by: Misfit(input, *parted(error))": "test_rewards_that_a_line_names_are_in_the_stack",
    """_judged_by: Misfit(input, message, f"one of {', '.join(sorted(trained))}, or take its line out")""": (
        "test_rewards_that_a_line_names_are_in_the_stack"
    ),
    """_judged_by: Misfit(input, message, f"one of {', '.join(sorted(names))}")""": (
        "test_rewards_that_a_line_names_are_in_the_stack"
    ),
    "_followed: 'scores', message, fix": "test_a_reward_without_a_gradient_beside_one_that_has_it_is_only_watched",
    "_followed: refusals.of_gradients(follows)": "test_rewards_none_of_which_has_a_gradient_are_named",
    "_gradient_settings: misfit": "test_what_the_gradient_has_no_use_for",
    "_idle: name, message, fix": "test_inputs_that_change_nothing_are_warned_of",
    "_update: misfit": "test_credit_alone_is_checked_as_what_it_says",
    "_update: 'lowest_level', message, 'a lower one, or a higher highest_level'": "test_levels_have_a_range",
    "_models: model": "test_a_damaged_configuration_is_a_refusal",
    "_own_encoder: name, message, fix": "test_a_judge_that_is_the_models_own_text_encoder_is_not_alone",
    **dict.fromkeys(
        (
            "_processes: name, message, 'more prompts, pairs or samples, or fewer processes'",
            "_processes: refusals.of_processes(loss, groups, graph.processes, name)",
            "_processes: unequal_shares(samples, graph.processes, name)",
        ),
        "test_what_processes_cannot_share_is_refused_before_any_begins",
    ),
    "_rewards: name, message, 'write one more line into its questions, or disconnect it'": (
        "test_an_output_without_a_question_is_connected"
    ),
    "_sampler: 'merge_adapter', message, 'switch it off'": "test_an_adapter_is_not_merged_into_what_comfyui_loaded",
    "_sampler: Misfit(named_by(graph.values[loader]), *parted(error))": "test_a_shift_that_is_none_at_the_size_is_a_refusal",
    "_sizes: 'width', message, f'{made.width} x {made.height}, or what you will use'": (
        "test_a_size_far_from_the_models_own_is_warned_of"
    ),
    "_sources: name, message, fix": "test_a_reward_of_edits_has_a_source_for_each_line",
    "_starts: adapter.input, *parted(error)": "test_an_adapter_of_another_network_than_the_loaders_file_is_named",
    "_still: 'learning_rate', message, 'for a LoRA, 1e-4 to 3e-4'": "test_a_training_that_moves_nothing_is_warned_of",
    "_texts: name, message, 'shorten it'": "test_a_prompt_that_the_text_encoder_cuts_is_named",
    "_texts: name, message, f'file = {made.prompts}'": "test_prompts_that_the_tiny_models_have_never_seen",
    "theirs: name, *parted(error)": "test_a_file_of_a_download_that_broke_off_is_named",
    "_videos: name, message, fix": "test_judges_of_videos_are_refused_pictures",
    "node_problems: None, None, f'class {node.class_type} {why}', fix": (
        "test_what_cannot_run_here_is_refused_where_ours_need_it"
    ),
    "node_problems: name, value, 'unknown input, ignored', fix, 'warning'": "test_unknown_inputs_warn_and_are_not_passed",
    "not_a_choice: name, value, message, f'put it into {folder}{source}; or {fix}'": (
        "test_a_missing_file_is_named_with_its_folder_and_where_it_can_be_had"
    ),
}


def places(path):
    """{line: name} of all that makes a problem in a file: the function, and what it gives."""
    makers = {}
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for call in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("problem", "misfit"):
                makers[call.lineno] = f"{function.name}: {', '.join(map(ast.unparse, call.args[1:]))}"
    return makers


def test_each_place_that_refuses_is_in_the_table(small_graph):
    made = set()

    def line(frame, event, _):
        made.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame, event, _):
        return line if frame.f_code.co_filename in map(str, PLACES) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        for damages, *_ in REFUSED:
            graph = Graph(small_graph({"OTCA_TrainingRun": {"iterations": 2}}))
            for damage in damages:
                damage(graph)
            preflight.problems(Workflow(graph.content, NODE_CLASS_MAPPINGS))
    finally:
        sys.settrace(before)
    silent = {name for path in PLACES for number, name in places(path).items() if (str(path), number) not in made}
    assert silent == ELSEWHERE.keys()
    tests = "".join(file.read_text(encoding="utf-8") for file in ASSETS.parent.glob("tests/**/test_*.py"))
    assert all(f"def {test}(" in tests for test in ELSEWHERE.values())


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
