"""What the shape of a graph alone refuses, with nodes of the test's own. The rest: tests/security/test_validate_is_train.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from comfyui_otca.commands.options import set_seeds
from comfyui_otca.host import extras
from comfyui_otca.host.foreign_nodes import NodeClasses
from comfyui_otca.host.paths import weights_variable
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.nodes.native import MakeTrainable
from comfyui_otca.nodes.rewards.images import RewardSharpness
from comfyui_otca.tests.training import reward_node
from comfyui_otca.tools.canvases.templates import TEMPLATES
from comfyui_otca.trainer.checks import preflight
from comfyui_otca.trainer.memory import needs
from comfyui_otca.trainer.workflow import graph as api
from comfyui_otca.trainer.workflow.problem import errors
from comfyui_otca.trainer.workflow.running import Workflow

OURS = {name for cls in NODE_CLASS_MAPPINGS.values() for table in cls.INPUT_TYPES().values() for name in table}


class Theirs:
    """A node of a pack that hands on what it is given. Its inputs are called as ours are, and mean something else."""

    RETURN_TYPES, FUNCTION = ("*",), "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {name: ("*", {"suggest": "devices"}) for name in OURS}}


def loader(named):
    """A class like ComfyUI's loaders."""
    types = classmethod(lambda cls: {"required": {named: ("STRING", {})}})
    return type("Loader", (), {"RETURN_TYPES": ("MODEL", "CLIP", "VAE"), "FUNCTION": "load", "INPUT_TYPES": types})


def made_trainable(content, **inputs):
    """Puts Make Trainable into the place of a graph's Load Flow Model, behind a node `loader`."""
    model = next(entry for entry in content.values() if entry["class_type"] == "OTCA_LoadFlowModel")
    links = {name: ["loader", number] for number, name in enumerate(("model", "clip", "vae"))}
    adapter = {"lora_rank": 4, "lora_alpha": 4.0, "seed": 0}
    model["class_type"], model["inputs"] = "OTCA_MakeTrainable", links | adapter | inputs


def through_theirs(graph, node, name, value):
    """The graph, with one of its links through a node of a pack."""
    between = {"class_type": "Theirs", "inputs": dict.fromkeys(OURS, value) | {name: graph[node]["inputs"][name]}}
    inputs = graph[node]["inputs"] | {name: ["90", 0]}
    changed = graph | {node: {**graph[node], "inputs": inputs}, "90": between}
    return Workflow(changed, NodeClasses(NODE_CLASS_MAPPINGS, {"Theirs": Theirs}))


@pytest.mark.parametrize("name", ["quickstart", "otca"])
@pytest.mark.parametrize("value", ["default", 7])
def test_what_a_node_of_others_calls_its_inputs_says_nothing(name, value):
    """Seen before: `device = default` on ComfyUI's own Load CLIP was refused as the name of no device."""
    graph = json.loads(TEMPLATES[name].api.read_text(encoding="utf-8"))
    links = [(node, name) for node, entry in graph.items() for name in api.links(entry)]
    for node, name in links:
        workflow = through_theirs(graph, node, name, value)
        assert "90" in workflow.needed() and errors(preflight.problems(workflow)) == [], (node, name)
        wanted = (sorted(extras.wanted(each, workflow.node_classes)) for each in (graph, workflow.entries))
        assert len(set(map(tuple, wanted))) == 1
        set_seeds(workflow, 11)
        assert workflow.entries["90"]["inputs"]["seed"] == value
        assert needs.iteration(workflow.graph, None) == needs.iteration(graph, None)
    assert len(links) > 10


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
LEARNED = ("OTCA_StepCredit", {"method": "learned", "measure_every": 10, "groups": 2, "decay": 0.8, "w_min": 0.5})


@pytest.mark.parametrize(("kind", "inputs"), [GAIN, MEASURED, LEARNED])
def test_a_credit_that_asks_rewards_again_refuses_one_that_may_not_be(found, kind, inputs):
    [problem] = found(kind, inputs)
    assert "scores" in problem and "once" in problem and "Fix: disconnect reward_8" in problem
    assert found(kind, inputs, RewardSharpness) == []
    assert found("OTCA_TCDWeights", {"proxy": "prediction"}) == [], "a credit that does not ask takes it"


@pytest.mark.parametrize(("output", "told"), [(0, False), (1, True)])
def test_an_output_without_a_question_is_connected(small_graph, output, told):
    content = small_graph({})
    judge = {"url": "http://127.0.0.1:8000/v1", "model": "m", "questions": "Is it {prompt}?"}
    content["judge"] = {"class_type": "OTCA_RewardVLMJudge", "inputs": judge}
    [stack] = [entry for entry in content.values() if entry["class_type"] == "OTCA_RewardStack"]
    stack["inputs"]["reward_8"] = ["judge", output]
    problems = [str(problem) for problem in preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS))]
    assert len(problems) == told
    assert all("output 2 of judge" in problem and "has no question" in problem for problem in problems)


@pytest.mark.parametrize(
    ("clip", "held_out", "told"),
    [("loader", False, True), ("loader", True, False), ("other", False, False), ("same", False, True)],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_judge_that_is_the_models_own_text_encoder_is_not_alone(
    small_graph, monkeypatch, clip, held_out, told, wrapped
):
    monkeypatch.setattr(MakeTrainable, "NEEDS_COMFYUI", False)
    content = small_graph({})
    first = {entry["class_type"]: node for node, entry in content.items()}
    made_trainable(content)
    for node in ("loader", "other", "same"):
        name = "of_the_model" if node == "same" else node
        content[node] = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": f"{name}.safetensors"}}
    content["loader"]["inputs"] = content["same"]["inputs"]
    judge = {"url": "", "model": "", "questions": "Is it {prompt}?", "judge": [clip, 1]}
    content["judge"] = {"class_type": "OTCA_RewardVLMJudge", "inputs": judge}
    words = {"reward": ["judge", 0], "good": "photo", "bad": "plastic", "coefficient": 1.0}
    content["words"] = {"class_type": "OTCA_RewardRelativeWords", "inputs": words}
    asked = "words" if wrapped else "judge"
    stack = content[first["OTCA_RewardStack"]]["inputs"]
    stack.update({"reward_1": [asked, 0], "reward_2": ["watched", 0]})
    content["watched"] = {"class_type": "OTCA_RewardSharpness", "inputs": {"coefficient": 1.0, "held_out": held_out}}
    for name in [name for name in stack if name.startswith("reward_") and name not in ("reward_1", "reward_2")]:
        del stack[name]
    workflow = Workflow(content, NODE_CLASS_MAPPINGS | {"CheckpointLoaderSimple": loader("ckpt_name")})
    assert preflight.unwatched_judges(workflow) == [workflow.title(asked)] * told, "which the canvas says before Run"
    problems = preflight.problems(workflow)
    found = [problem for problem in problems if "text encoder of the model that is trained" in problem.message]
    assert len(found) == told and all(problem.severity == "warning" for problem in found), list(map(str, problems))
    assert all(problem.input == "reward_1" and problem.fix.startswith("hold another reward out") for problem in found)


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        ("OTCA_RewardKept", {}, True),
        ("OTCA_RewardKept", {"source": ["picture", 0]}, False),
        ("OTCA_RewardClipT", {"model": "shapes-clip"}, False),
        ("OTCA_RewardClipT", {"model": "shapes-clip", "direction": True}, True),
        ("OTCA_RewardVLMJudge", {"judge": ["picture", 0], "template": "rest kept"}, True),
        ("OTCA_RewardVLMJudge", {"judge": ["picture", 0], "questions": "Is {source} kept?"}, True),
    ],
)
@pytest.mark.parametrize("second", ['{"prompt": "b"}', '{"prompt": "b", "images": ["b.png"]}'])
def test_a_reward_of_edits_has_a_source_for_each_line(small_graph, tmp_path, kind, settings, told, second):
    (tmp_path / "edits.jsonl").write_text('{"prompt": "a", "image": "a.png"}\n' + second)
    content = small_graph({})
    first = {entry["class_type"]: entry["inputs"] for entry in content.values()}
    first["OTCA_PromptDataset"].update({"prompts": "", "file": str(tmp_path / "edits.jsonl")})
    first["OTCA_TrainingRun"]["evaluation_prompts"] = ""
    judge = {"url": "", "model": "", "questions": "Is it?"}
    inputs = (judge if "Judge" in kind else {"coefficient": 1.0, "name": "of_edits"}) | settings
    content["edits"] = {"class_type": kind, "inputs": inputs}
    content["picture"] = {"class_type": "Picture", "inputs": {}}
    first["OTCA_RewardStack"]["reward_8"] = ["edits", 0]

    class Picture:
        RETURN_TYPES, FUNCTION = ("IMAGE,CLIP",), "load"

        @classmethod
        def INPUT_TYPES(cls):
            return {"required": {}}

    found = preflight.CheckedGraph(Workflow(content, NODE_CLASS_MAPPINGS | {"Picture": Picture}), 1)
    problems = [str(problem) for problem in preflight._sources(found)]
    assert len(problems) == (told and second == '{"prompt": "b"}')
    for problem in problems:
        assert f'edits "{kind}" looks at the picture that was edited, and' in problem
        assert "edits.jsonl, line 2 has no image." in problem
        assert "Fix: name one in each line" in problem


# -- Reward Gradient Step ------------------------------------------------------------------------------------------------


def followed(small_graph, changes=None, **replaced):
    """The problems of the workflow that follows CLIP-T, with other nodes in place of some; without those about files."""
    graph = small_graph(changes, "reward_gradient.json")
    graph["9"]["inputs"]["evaluation_prompts"] = ""  # of which the toy's encoder reads too little
    for number, entry in replaced.items():
        graph[number.lstrip("n")] = entry
    return preflight.problems(Workflow(graph, NODE_CLASS_MAPPINGS))


def test_the_graph_that_follows_a_reward_is_whole(small_graph):
    assert followed(small_graph) == []


def test_a_decoder_needs_a_model_that_comfyui_loaded(small_graph):
    loader = reward_node(lambda: None)
    loader.RETURN_TYPES = ("VAE",)
    changes = {"OTCA_RewardGradientStep": {"decoder": ["20", 0]}, "OTCA_TrainingRun": {"evaluation_prompts": ""}}
    graph = small_graph(changes, "reward_gradient.json")
    graph["20"] = {"class_type": "VAELoader", "inputs": {}}
    (problem,) = preflight.problems(Workflow(graph, {**NODE_CLASS_MAPPINGS, "VAELoader": loader}))
    assert problem.input == "decoder" and "decodes by its own" in problem.message and problem.severity == "error"
    assert "Make Trainable" in problem.fix


def test_rewards_none_of_which_has_a_gradient_are_named(small_graph):
    jpeg = {"class_type": "OTCA_RewardJpegCompressibility", "inputs": {"coefficient": 1.0}}
    (problem,) = followed(small_graph, n4=jpeg)
    assert (problem.severity, problem.input) == ("error", "scores")
    assert problem.message.startswith("no trained reward has a gradient (compressibility)")
    assert "GRPO Step or Matching Step" in problem.fix


def test_a_reward_without_a_gradient_beside_one_that_has_it_is_only_watched(small_graph):
    jpeg = {"class_type": "OTCA_RewardJpegCompressibility", "inputs": {"coefficient": 1.0}}
    (problem,) = followed(small_graph, n5=jpeg)
    assert problem.severity == "warning" and "'compressibility' has no gradient: it is watched" in problem.message


@pytest.mark.parametrize(
    ("changes", "named", "says"),
    [
        ({"OTCA_RewardGradientStep": {"mode": "leap", "steps": 0}}, "steps", "only mode = last_steps takes 0"),
        ({"OTCA_RewardGradientStep": {"mode": "last_steps", "steps": 30}}, "steps", "the sampler has"),
        ({"OTCA_SDESampler": {"keep_graph": "on"}}, "keep_graph", "has no use for the sampler's graph"),
    ],
)
def test_what_the_gradient_has_no_use_for(small_graph, changes, named, says):
    (problem,) = followed(small_graph, changes)
    assert problem.input == named and says in problem.message


def test_beside_grpo_the_sampler_has_to_add_noise(small_graph):
    """Advantages make it two updates in one, and each refuses what it always did."""
    credit = {
        "class_type": "OTCA_StepCredit",
        "inputs": {"trajectories": ["3", 0], "method": "uniform", "timestep_fraction": 1.0, "seed": 0},
    }
    fusion = {
        "class_type": "OTCA_MinNormFuse",
        "inputs": {"scores": ["7", 0], "credit": ["20", 0], "std_scope": "group"},
    }
    together = {"advantages": ["21", 0], "also": "grpo"}
    (problem,) = followed(small_graph, {"OTCA_RewardGradientStep": together}, n20=credit, n21=fusion)
    assert problem.input == "kind" and "kind = ode adds no noise" in problem.message
    with_noise = {"OTCA_RewardGradientStep": together, "OTCA_SDESampler": {"kind": "dance_sde"}}
    assert followed(small_graph, with_noise, n20=credit, n21=fusion) == []


@pytest.mark.parametrize(
    ("mode", "method", "named"),
    [
        *(("leap", "tcd", []), ("last_steps", "tcd", ["mode"]), ("last_steps", "uniform", [])),
        *(("leap", "pcpo", ["advantages", "method"]), ("one_call", "inverse_variance", ["advantages"])),
    ],
)
def test_credit_alone_is_checked_as_what_it_says(small_graph, mode, method, named):
    inputs = {"trajectories": ["3", 0], "method": method, "timestep_fraction": 1.0, "seed": 0, "model": ["1", 0]}
    credit = {"class_type": "OTCA_StepCredit", "inputs": inputs}
    if method == "tcd":
        rest = {"w_min": 0.2, "floor": "affine", "normalize": "mean"}
        credit = {"class_type": "OTCA_TCDWeights", "inputs": {"trajectories": ["3", 0], **rest}}
    fusion = {
        "class_type": "OTCA_MinNormFuse",
        "inputs": {"scores": ["7", 0], "credit": ["20", 0], "std_scope": "group"},
    }
    step = {"OTCA_RewardGradientStep": {"mode": mode, "advantages": ["21", 0], "also": "credit"}}
    assert sorted(problem.input for problem in followed(small_graph, step, n20=credit, n21=fusion)) == named


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"also": "credit"}, ["also"]),
        ({"reference_guidance": 4.5, "kl_coefficient": 0.0}, ["reference_guidance"]),
        ({"reference_guidance": 4.5}, []),
    ],
)
def test_inputs_that_change_nothing_are_warned_of(small_graph, inputs, named):
    problems = followed(small_graph, {"OTCA_RewardGradientStep": inputs})
    assert [(problem.input, problem.severity) for problem in problems] == [(name, "warning") for name in named]
    assert all("changes nothing" in problem.message and problem.fix for problem in problems)


@pytest.mark.parametrize(("lowest", "highest", "named"), [(0.9, 0.1, ["lowest_level"]), (0.1, 0.9, [])])
def test_levels_have_a_range(small_graph, lowest, highest, named):
    levels = {"lowest_level": lowest, "highest_level": highest}
    content = small_graph(
        {"OTCA_MatchingStep": levels, "OTCA_TrainingRun": {"evaluation_prompts": ""}}, "matching.json"
    )
    problems = preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS))
    assert [problem.input for problem in problems if problem.severity == "error"] == named


@pytest.mark.parametrize(("rate", "told"), [(0.0, ["learning_rate"]), (1e-6, [])])
def test_a_training_that_moves_nothing_is_warned_of(small_graph, rate, told):
    content = small_graph({"OTCA_GRPOStep": {"learning_rate": rate}})
    found = preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS))
    assert [problem.input for problem in found] == told and all(problem.severity == "warning" for problem in found)
    assert all("nothing is trained" in problem.message and "1e-4 to 3e-4" in problem.fix for problem in found)


@pytest.mark.parametrize(
    ("judged_by", "says"),
    [
        ('["sharpness"]', []),
        ('"sharpness"', []),
        ("[]", ["no reward that is trained"]),
        ('["text"]', ["names 'text'"]),
        ("3", ["not a list of names"]),
    ],
)
def test_rewards_that_a_line_names_are_in_the_stack(small_graph, judged_by, says):
    line = f'{{"prompt": "a red circle", "judged_by": {judged_by}}}'
    content = small_graph({"OTCA_PromptDataset": {"prompts": line, "file": ""}})
    problems = [
        problem for problem in preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS)) if problem.severity == "error"
    ]
    assert [problem.input for problem in problems] == ["prompts"] * len(says)
    assert all(word in problem.message and problem.fix for word, problem in zip(says, problems, strict=True))


@pytest.mark.parametrize("name", ["evaluation_width", "evaluation_frames"])
def test_what_evaluations_have_apart_fits_the_model(small_graph, name):
    """shapes-flux makes pictures, with sides of a multiple of 8: its grid is asked about 52 and 5."""
    values = {"evaluation_width": 44, "evaluation_frames": 5}
    for every, named in ((1, [name]), (0, [])):
        content = small_graph({"OTCA_TrainingRun": {name: values[name], "evaluate_every": every}})
        problems = preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS))
        assert [problem.input for problem in problems if problem.severity == "error"] == named
        assert all(problem.node_id == "12" and problem.fix for problem in problems if named)


def test_a_size_far_from_the_models_own_is_warned_of(small_graph):
    """shapes-flux is made for 40 x 40; 80 x 80 has four times its pixels."""
    graph = small_graph()
    sampler = next(entry for entry in graph.values() if entry["class_type"] == "OTCA_SDESampler")
    loader = next(entry for entry in graph.values() if entry["class_type"] == "OTCA_LoadFlowModel")
    loader["inputs"]["model"] = "shapes-flux"
    sampler["inputs"] |= {"width": 80, "height": 80}

    def warned():
        found = preflight.problems(Workflow(graph, NODE_CLASS_MAPPINGS), 1)
        return [problem.message for problem in found if problem.severity == "warning" and problem.input == "width"]

    assert ["80 x 80 is far from 40 x 40" in message for message in warned()] == [True]
    sampler["inputs"] |= {"width": 40, "height": 40}
    assert not warned()


@pytest.mark.parametrize(
    ("file", "text", "model", "warned"),
    [
        ("", "", "scenes-flux", ["scenes_train.txt"]),
        ("general.txt", "a hare", "shapes-flux", ["shapes_train.txt"]),
        ("", "a hare in a park", "scenes-flux", []),
        ("signs.txt", "", "scenes-flux", []),
    ],
)
def test_prompts_that_the_tiny_models_have_never_seen(small_graph, file, text, model, warned):
    """A new Prompt Dataset has general.txt: a model of circles was trained on "a bronze statue of a hare" without a word."""
    graph = small_graph({"OTCA_PromptDataset": {"file": file, "prompts": text}, "OTCA_LoadFlowModel": {"model": model}})
    problems = preflight.problems(Workflow(graph, NODE_CLASS_MAPPINGS), 1)
    assert [each.fix for each in problems if "never seen" in each.message] == [f"file = {name}" for name in warned]


@pytest.mark.parametrize(
    ("unet", "told"),
    [
        ("z_image_turbo_bf16.safetensors", True),
        ("krea2_raw_fp8_scaled.safetensors", False),
        ("mine.safetensors", False),
    ],
)
def test_pictures_for_a_model_that_comfyui_loads_and_takes_none(small_graph, monkeypatch, tmp_path, unet, told):
    """By its file's name; of a name that is not known the first prompt tells."""
    monkeypatch.setattr(MakeTrainable, "NEEDS_COMFYUI", False)
    monkeypatch.setenv("OTCA_INPUT", str(tmp_path))
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "edits.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "image": "a.png"}')
    content = small_graph({"OTCA_PromptDataset": {"prompts": "", "file": "edits.jsonl"}})
    made_trainable(content)
    content["loader"] = {"class_type": "UNETLoader", "inputs": {"unet_name": unet}}
    problems = preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS | {"UNETLoader": loader("unet_name")}))
    found = [problem for problem in problems if problem.input == "file"]
    assert len(found) == told, list(map(str, problems))
    for problem in found:
        assert "line 2 has 1 pictures, and this model takes none" in problem.message and problem.severity == "error"
        assert problem.fix.startswith("name fewer, or choose another model")


@pytest.mark.parametrize(
    ("layer", "size", "more", "told"),
    [
        ("transformer.transformer_blocks.0.attn.to_k", (8, 8), {}, ""),
        ("diffusion_model.double_blocks.0.img_attn.qkv", (24, 8), {}, ""),
        ("lora_unet_double_blocks_0_img_attn_qkv", (24, 8), {}, ""),
        ("transformer.transformer_blocks.9.attn.to_k", (8, 8), {}, "here is no such layer"),
        ("transformer.transformer_blocks.0.attn.to_k", (9, 8), {}, "is [9, 8] in the file"),
        ("transformer.transformer_blocks.0.attn.to_k", (8, 9), {}, "is [8, 9] in the file"),
        ("transformer.transformer_blocks.9.attn.to_k", (8, 8), {"x.comfy_quant": (1,)}, ""),
    ],
)
def test_an_adapter_of_another_network_than_the_loaders_file_is_named(
    small_graph, monkeypatch, tmp_path, layer, size, more, told
):
    """By the headers of both files; of weights that may be packed the network itself decides."""
    monkeypatch.setattr(MakeTrainable, "NEEDS_COMFYUI", False)
    monkeypatch.setenv(weights_variable("diffusion_models"), str(tmp_path))
    weights = {"model.diffusion_model.double_blocks.0.img_attn.qkv.weight": (24, 8), **more}
    pair = {f"{layer}.lora_A.weight": (2, size[1]), f"{layer}.lora_B.weight": (size[0], 2)}
    for name, tensors in (("net", weights), ("start", pair)):
        save_file(
            {key: np.zeros(shape, np.float32) for key, shape in tensors.items()}, tmp_path / f"{name}.safetensors"
        )
    content = small_graph({})
    made_trainable(content, start_from=str(tmp_path / "start.safetensors"))
    content["loader"] = {"class_type": "UNETLoader", "inputs": {"unet_name": "net.safetensors"}}
    problems = preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS | {"UNETLoader": loader("unet_name")}))
    assert [problem.input for problem in problems if problem.input == "start_from"] == ["start_from"] * bool(told)
    assert told in "".join(map(str, problems))


def test_an_adapter_is_not_merged_into_what_comfyui_loaded(small_graph, monkeypatch):
    monkeypatch.setattr(MakeTrainable, "NEEDS_COMFYUI", False)
    content = small_graph({"OTCA_SDESampler": {"merge_adapter": True}})
    made_trainable(content)
    content["loader"] = {"class_type": "UNETLoader", "inputs": {"unet_name": "net.safetensors"}}
    [merged] = preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS | {"UNETLoader": loader("unet_name")}))
    assert merged.input == "merge_adapter" and "ComfyUI owns these weights" in merged.message


def test_a_missing_file_of_comfyuis_loader_hides_no_other_problem(small_graph, monkeypatch):
    monkeypatch.setattr(MakeTrainable, "NEEDS_COMFYUI", False)
    content = small_graph({"OTCA_SDESampler": {"merge_adapter": True}})
    made_trainable(content)
    content["loader"] = {"class_type": "UNETLoader", "inputs": {"unet_name": "gone.safetensors"}}
    lists = loader("unet_name")
    lists.INPUT_TYPES = classmethod(lambda cls: {"required": {"unet_name": (["here.safetensors"], {})}})
    lists.FOREIGN, lists.folder = True, classmethod(lambda cls, name: Path("models"))
    problems = preflight.problems(Workflow(content, NODE_CLASS_MAPPINGS | {"UNETLoader": lists}))
    assert [problem.input for problem in problems] == ["unet_name", "merge_adapter"]


def asking(small_graph, prompts, kinds):
    """What is said of rewards that look for what these prompts ask for, beside nothing else that is trained."""
    content = small_graph({})
    first = {entry["class_type"]: entry["inputs"] for entry in content.values()}
    stack = first["OTCA_RewardStack"]
    for name in [name for name in stack if name.startswith("reward_")]:
        del stack[name]
    for number, kind in enumerate(kinds, 1):
        content[kind] = {"class_type": f"OTCA_Reward{kind}", "inputs": {"coefficient": 1.0}}
        stack[f"reward_{number}"] = [kind, 0]
    first["OTCA_PromptDataset"].update({"prompts": prompts, "file": ""})
    return list(preflight.applying(preflight.CheckedGraph(Workflow(content, NODE_CLASS_MAPPINGS), 1)))


@pytest.mark.parametrize(
    ("prompts", "kinds", "told"),
    [
        ("a red circle", ["Text"], [("error", "Text")]),
        ('a red circle\na sign that says "OPEN"', ["Text"], []),
        ("a red circle", ["Text", "Sharpness"], [("warning", "Text")]),
        ("a photo of a dog", ["Scenes", "Objects"], [("error", "Scenes"), ("error", "Objects")]),
        ('{"prompt": "a cat", "include": [{"class": "cat", "color": null}]}', ["Objects"], []),
    ],
)
def test_a_reward_that_applies_to_no_prompt_is_named(small_graph, prompts, kinds, told):
    problems = asking(small_graph, prompts, kinds)
    assert [(problem.severity, problem.message.split(" ")[0]) for problem in problems] == told
    for problem in problems:
        assert "applies to no prompt of the 1 of" in problem.message and problem.input.startswith("reward_")


@pytest.mark.parametrize(
    ("line", "kind", "told"),
    [
        ('{"prompt": "a sign", "text": 24}', "Text", "say text = 24"),
        (
            '{"prompt": "a cup", "include": [{"class": "cup", "color": "gray"}]}',
            "Objects",
            "say include.0.color = 'gray'",
        ),
        ('{"prompt": "a cup", "exclude": [{"class": "cup", "count": "2"}]}', "Objects", "say exclude.0.count = '2'"),
    ],
)
def test_a_line_that_a_reward_cannot_read_is_said_before_the_first_iteration(small_graph, line, kind, told):
    [problem] = asking(small_graph, f"a red circle\n{line}", [kind])
    assert (problem.severity, problem.input) == ("error", "prompts") and told in problem.message
