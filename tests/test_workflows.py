"""The example workflows of the large models as they are, on tiny checkpoints under the published names."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from comfyui_otca.__main__ import parser
from comfyui_otca.commands import options
from comfyui_otca.host import devices
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.tests.tiny import video_rewards as tiny_video_rewards
from comfyui_otca.tests.training import train
from comfyui_otca.tools import recipes
from comfyui_otca.tools.canvases.templates import FILES, LOADERS, TEMPLATES, models_of
from comfyui_otca.trainer.memory import needs
from comfyui_otca.trainer.memory.case import GB
from comfyui_otca.trainer.opinions.reading import read_folder
from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.rewards.base import score as score_all
from comfyui_otca.trainer.workflow.running import Workflow

ROOT = Path(__file__).resolve().parent.parent
BLUEPRINTS = sorted((ROOT / "subgraphs").glob("*.json"))
ALL = sorted(path.stem for path in (ROOT / "workflows" / "api").glob("*.json"))
# Of large models: the rewards that are trained, and those that are held out.
OTCA_REWARDS, OTCA_VIDEO_REWARDS = (
    ("clip_t hpsv2 aesthetic", "pickscore"),
    ("video_align_vq video_align_mq video_align_ta", "clip_t"),
)
OTCA = [name for name in ALL if name.startswith("otca_")]
# Lines of docs/recipes.md: {what it stands for: the arguments of `otca train`}.
RECIPES = {
    heading: shlex.split(line)[2:]
    for heading, line in re.findall(
        r"^([A-Z].*):\n\n    (otca train .*)$", (ROOT / "docs" / "recipes.md").read_text(), re.M
    )
}
OF_SHAPES = ("otca", "mix_grpo", "stepwise_flow_grpo", "vipo")  # graphs of methods, on shapes-flux
OF_LARGE_MODELS = [name for name, arguments in RECIPES.items() if Path(arguments[0]).stem not in OF_SHAPES]
LARGE = [*OTCA, *OF_LARGE_MODELS]
NATIVE = list(FILES)  # of what ComfyUI loads
# On shapes-flux, to be compared.
METHODS = ["otca", *(name for name in RECIPES if name not in OF_LARGE_MODELS)]
OF_A_GPU = {"quantize": "none"}  # what no CPU can do
SMALL = {
    "OTCA_PromptDataset": {"prompts_per_iteration": 1},
    "OTCA_SDESampler": {"group_size": 3, "steps": 4, "width": 32, "height": 32},
    "OTCA_MixGRPOWindow": {"steps": 4, "length": 2, "every": 1},
    "OTCA_ModelMemory": OF_A_GPU,
    "OTCA_TrainingRun": {
        "iterations": 2,
        "evaluate_every": 2,
        "evaluation_prompts": "a red fox",
        "evaluation_steps": 2,
    },
}
FEW = {**SMALL, "OTCA_SDESampler": {"group_size": 3}, "OTCA_MixGRPOWindow": {"every": 1}}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder of models as a user has it."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(ROOT / "assets" / "shapes-flux", folder / "black-forest-labs" / "FLUX.1-dev")
    tiny.make("sd3", folder / "stabilityai" / "stable-diffusion-3.5-medium")
    tiny.make("wan22", folder / "Wan-AI" / "Wan2.2-T2V-A14B-Diffusers")
    tiny.make("wan22-5b", folder / "Wan-AI" / "Wan2.2-TI2V-5B-Diffusers")
    tiny.make("z-image", folder / "Tongyi-MAI" / "Z-Image")
    tiny.make("qwen-image", folder / "Qwen" / "Qwen-Image-2512")
    tiny.make("qwen-image-2.1", folder / "Qwen" / "Qwen-Image-2.1")
    tiny.make("flux2-klein-base", folder / "black-forest-labs" / "FLUX.2-klein-base-4B")
    tiny.make("flux2-dev", folder / "black-forest-labs" / "FLUX.2-dev")
    tiny.make("krea2", folder / "krea" / "Krea-2-Raw")
    tiny_rewards.clip(folder / "openai" / "clip-vit-large-patch14")
    tiny_rewards.hps(folder / "HPS_v2.1_compressed.pt")
    tiny_rewards.aesthetic(folder / "sac+logos+ava1-l14-linearMSE.pth")
    tiny_rewards.pickscore(folder / "yuvalkirstain" / "PickScore_v1")
    tiny_rewards.clip(folder / "laion" / "CLIP-ViT-H-14-laion2B-s32B-b79K", projection=64)
    tiny_rewards.image_reward(folder)
    (folder / "google-bert").mkdir()
    (folder / "bert-base-uncased").rename(folder / "google-bert" / "bert-base-uncased")
    _dinov2(folder / "facebook" / "dinov2-base")
    tiny_video_rewards.video_align(folder / "KlingTeam")
    (folder / "KlingTeam" / "Qwen2-VL").rename(folder / "Qwen" / "Qwen2-VL-2B-Instruct")
    return folder


def _dinov2(folder):
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
    Dinov2Model(config).save_pretrained(folder)
    prepared = {"crop_size": {"height": 28, "width": 28}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))


def graph(name):
    """The graph in API form of a template, or of a line of docs/recipes.md."""
    if name in RECIPES:
        return options.load(parser().parse_args(["train", *RECIPES[name]])).graph
    return json.loads((ROOT / "workflows" / "api" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", LARGE)
def test_trains(name, models, real_model, tmp_path, monkeypatch):
    monkeypatch.setenv("OTCA_MODELS", str(models))
    content = graph(name)
    assert not [problem for problem in Workflow(content, NODE_CLASS_MAPPINGS).validate() if problem.severity == "error"]
    parts = max(node["inputs"].get("parts", 1) for node in content.values())
    for node in content.values():
        node["inputs"].update(SMALL.get(node["class_type"], {}))
        if "prompts_per_iteration" in node["inputs"]:
            node["inputs"]["prompts_per_iteration"] = parts  # of whole groups
        if node["inputs"].get("frames"):
            node["inputs"]["frames"] = 9
        if node["inputs"].get("window_start"):
            node["inputs"]["window_start"] = 1  # of four steps
    devices.choose("cpu")
    assert train(Workflow(content, NODE_CLASS_MAPPINGS), tmp_path) == 0
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if name in OTCA:
            wanted = OTCA_VIDEO_REWARDS if "video" in name else OTCA_REWARDS
            for kind, names in zip(("reward/", "held_out/"), wanted, strict=True):
                assert {key.split("/")[1] for key in row if key.startswith(kind)} == set(names.split())
        clipped = parts > 1 and row["clip/high"] + row["clip/low"] > 0  # all of the last part, perhaps
        assert (row["gradient_norm"] > 0 or clipped) and row["groups/masked_samples"] == 0


@pytest.mark.parametrize("name", LARGE)
def test_without_its_models_it_says_what_to_get(name, monkeypatch, tmp_path):
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    problems = Workflow(graph(name), NODE_CLASS_MAPPINGS).validate()
    errors = {problem.node_id for problem in problems if problem.severity == "error"}
    large = {
        "OTCA_LoadFlowModel",
        "OTCA_RewardClipT",
        "OTCA_RewardVideoAlign",
        "OTCA_RewardHPSv2",
        "OTCA_RewardAesthetic",
    }
    large |= {"OTCA_RewardPickScore", "OTCA_RewardImageReward", "OTCA_SpatialCredit"}
    assert errors == {id for id, node in graph(name).items() if node["class_type"] in large}


@pytest.mark.parametrize("name", OTCA)
def test_the_settings_of_the_paper(name):
    """method.md §6: G, T, η and size; the rest is what the canvas's note says."""
    nodes = {node["class_type"]: node["inputs"] for node in graph(name).values()}
    sampler = nodes["OTCA_SDESampler"]
    found = tuple(sampler.get(key) for key in ("group_size", "steps", "eta", "width", "height", "frames"))
    assert found == ((8, 16, 0.8, 416, 240, 53) if "wan" in name else (12, 16, 0.3, 512, 512, None))
    assert nodes["OTCA_GRPOStep"]["clip_range"] == 1e-4 and nodes["OTCA_TCDWeights"]["w_min"] == 0.5


def test_the_settings_of_the_other_papers():
    """Of their public code: G, T, kind, η, own noise; timestep_fraction; how rewards are added; LoRA and rate."""

    def of(name, node, *keys):
        (inputs,) = [entry["inputs"] for entry in graph(name).values() if entry["class_type"] == f"OTCA_{node}"]
        return tuple(inputs.get(key) for key in keys)

    flow_grpo = "SD3.5 with Flow-GRPO"
    sampler = "group_size", "steps", "kind", "eta", "width", "height", "shift", "shared_noise"
    assert of(flow_grpo, "SDESampler", *sampler) == (24, 10, "flow_sde", 0.7, 512, 512, 3.0, False)
    assert of(flow_grpo, "LoadFlowModel", "lora_rank", "lora_alpha") == (32, 64.0)
    assert of(flow_grpo, "GRPOStep", "learning_rate", "clip_range") == (3e-4, 1e-4)
    assert of(flow_grpo, "WeightedFuse", "mode", "std_scope") == ("weighted_sum", "batch")
    dance_grpo = of("DanceGRPO", "StepCredit", "timestep_fraction") + of("DanceGRPO", "WeightedFuse", "mode")
    assert dance_grpo == (0.6, "summed_advantages") and of("MixGRPO", "WeightedFuse", "mode") == dance_grpo[1:]
    assert of("PCPO", "GRPOStep", "objective", "kl_coefficient") == ("log_hinge", 0.0)
    for name in OF_LARGE_MODELS:
        if "GB GPU" in name:
            memory = of(name, "ModelMemory", "quantize")
            assert memory == ("none",) if "SD3" in name else memory == ("4bit",)
            assert of(name, "RewardClipT", "offload") == (True,)


def two_iterations(name, folder):
    """The metrics of a short training, in which each iteration moved the weights."""
    content = graph(name)
    assert not Workflow(content, NODE_CLASS_MAPPINGS).validate()
    for node in content.values():
        node["inputs"].update(FEW.get(node["class_type"], {}))
    assert train(Workflow(content, NODE_CLASS_MAPPINGS), folder) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and all(row["gradient_norm"] > 0 for row in rows)
    return rows


@pytest.mark.parametrize("name", [*METHODS, "matching", "quickstart"])
def test_a_method_trains_its_small_model(name, tmp_path):
    rows = two_iterations(name, tmp_path)
    trained = [int(key.removeprefix("credit/step/")) for key in rows[0] if key.startswith("credit/step/")]
    # ddim_sde is deterministic at σ = 1.
    steps = {"MixGRPO": range(4), "Stepwise-Flow-GRPO": range(1, 7), "matching": range(8), "quickstart": range(5)}
    assert trained == list(steps.get(name, range(7)))
    assert ("credit/step/0" in rows[1]) == (0 in trained and name != "MixGRPO"), "its window has moved on"


PAIRS = ROOT / "assets" / "prompts" / "shapes_pairs"


def test_pairs_train_the_embedded_model(tmp_path):
    rows = two_iterations("preference_pairs", tmp_path)
    assert rows[0]["loss"] == pytest.approx(math.log(2), abs=1e-3), "the policy is the reference"
    evaluated = [json.loads(line)["rewards"] for line in (tmp_path / "evaluation.jsonl").read_text().splitlines()]
    assert all(set(rewards) == {"colorfulness", "accuracy"} for rewards in evaluated)
    assert all(figures["held_out"] for rewards in evaluated for figures in rewards.values())


def test_of_a_pair_the_more_colourful_picture_is_chosen_and_both_show_the_prompt():
    """Judged here again, from the files: by hue, and by the exact judge of this world."""
    folder = read_folder("shapes_pairs")
    assert len(folder.pairs) >= 24 and sum(file.stat().st_size for file in PAIRS.iterdir()) <= 300_000
    assert {path.name for path in PAIRS.iterdir()} == {
        "pairs.jsonl",
        *(name for pair in folder.pairs for name in pair.files),
    }
    for pair in folder.pairs:
        pixels = [np.asarray(Image.open(io.BytesIO(folder.picture(pair, name)))) for name in pair.files]
        assert all(picture.shape == (40, 40, 3) for picture in pixels)
        opponents = [(picture @ [[1, 0.5], [-1, 0.5], [0, -1]]).reshape(-1, 2) for picture in pixels]
        chosen, rejected = (np.hypot(*values.std(0)) + 0.3 * np.hypot(*values.mean(0)) for values in opponents)
        assert chosen > rejected, pair.place
        images = torch.from_numpy(np.stack(pixels)) / 255
        assert score_all([reward_class("accuracy")()], images, [pair.prompt] * 2).tolist() == [[1], [1]], pair.place


@pytest.mark.parametrize("name", METHODS)
def test_methods_differ_in_the_method_alone(name):
    """What they are compared by is the same: model, prompts, size, group, rewards, learning rate, evaluation."""
    made = {"OTCA_CREDIT", "OTCA_ADVANTAGES"}
    method = {id for id, node in NODE_CLASS_MAPPINGS.items() if made & set(node.RETURN_TYPES)}
    method.add("OTCA_MixGRPOWindow")
    own = {"kind", "eta", "shared_noise", "window_start", "window_length", "kl_coefficient", "kl", "objective"}
    own |= {"run_name", "filename"}

    def rest(name):
        return {
            node["class_type"]: {k: v for k, v in node["inputs"].items() if k not in own and not isinstance(v, list)}
            for node in graph(name).values()
            if node["class_type"] not in method
        }

    assert rest(name) == rest("otca")
    inputs = {node["class_type"]: node["inputs"] for node in graph(name).values()}
    if name not in RECIPES:
        assert (inputs["OTCA_TrainingRun"]["run_name"], inputs["OTCA_SaveLoRA"]["filename"]) == (name, f"{name}_lora")


def test_template_numbers_in_notes_and_docs_are_those_of_their_titles():
    numbers = {template.title[:2] for template in TEMPLATES.values()}
    assert len(numbers) == len(TEMPLATES) and list(TEMPLATES) == sorted(
        TEMPLATES, key=lambda name: TEMPLATES[name].title
    )
    for template in TEMPLATES.values():
        assert {
            number for text in template.notes.values() for number in re.findall(r"template (\d\d)", text)
        } <= numbers, template


@pytest.mark.parametrize("name", NATIVE)
def test_comfyui_can_offer_every_file_that_a_loader_names(name):
    loaders = [node for node in graph(name).values() if node["class_type"] in LOADERS]
    offered = [model for node in loaders for model in models_of(name, node)]
    named = [node["inputs"][input] for node in loaders for input in LOADERS[node["class_type"]]]
    assert [model["name"] for model in offered] == named and len(set(named)) == len(FILES[name]) + 1
    folders = {"UNETLoader": "diffusion_models", "VAELoader": "vae", "OTCA_RewardHPSv2": "otca_rewards"}
    for node in loaders:
        for model in models_of(name, node):
            assert model["directory"] == folders.get(node["class_type"], "text_encoders")
            owner = model["url"].removeprefix("https://huggingface.co/").split("/")[0]
            assert owner in ("Comfy-Org", "comfyanonymous", "xswu")
            assert model["url"].endswith("/" + model["name"]) and "/resolve/main/" in model["url"]


@pytest.mark.parametrize("name", NATIVE)
def test_its_note_begins_with_what_it_needs(name):
    """Counted as `otca memory` counts, on an RTX 4090 of 80 TFLOP/s in use: two operations a parameter and token."""
    note = (ROOT / "tools" / "notes" / f"{name}.md").read_text(encoding="utf-8")
    first = r"\*\*Needs about (\d+) GB of GPU memory and (\d+) GB of RAM; "
    first += r"a Run is (\d+) forwards \(.*\), about ([\d.]+) (s|min) on an"
    gpu, ram, forwards, time, unit = re.match(rf"# .*\n\n{first}", note).groups()
    case, _ = needs.read(graph(name))
    assert int(gpu) == math.ceil(case.needs.total / GB)
    least = next(gb for gb in recipes.GPUS if recipes.case_of(name, gb).needs.total <= gb * GB)
    assert f"Slower with {least} GB: weights wait in RAM." in note
    files = (
        case.weights_bytes + case.encoder_bytes + case.vae_bytes + sum(judge.bytes for judge in case.iteration.rewards)
    )
    assert int(ram) == math.ceil(files / GB)
    seconds = int(forwards) * 2 * case.model.params * case.model.tokens(*case.iteration.size) / 80e12
    assert float(time) * {"s": 1, "min": 60}[unit] == pytest.approx(seconds, rel=0.15)
    assert len(note.split()) <= 300, "a note is one screen"


def test_one_reward_is_on_and_the_others_are_bypassed():
    for name in NATIVE:
        nodes = json.loads(TEMPLATES[name].canvas.read_text(encoding="utf-8"))["nodes"]
        rewards = {node["type"]: node["mode"] for node in nodes if node["type"].startswith("OTCA_Reward")}
        rewards = {
            kind: mode for kind, mode in rewards.items() if kind not in ("OTCA_RewardStack", "OTCA_RewardGradientStep")
        }
        assert [kind for kind, mode in rewards.items() if mode == 0] == ["OTCA_RewardHPSv2"]
        assert len(rewards) > 2 and set(rewards.values()) == {0, 4}


def test_models_are_held_to_the_untrained_one():
    for name in NATIVE:
        nodes = {node["class_type"]: node["inputs"] for node in graph(name).values()}
        step = nodes.get("OTCA_MatchingStep") or nodes["OTCA_RewardGradientStep"]
        assert step["kl_coefficient"] > 0
    assert graph("krea2")["1"]["inputs"]["unet_name"] == "krea2_raw_fp8_scaled.safetensors"


def test_pictures_before_and_after_differ_in_the_model_alone():
    content = graph("flux2_klein")
    samplers = {node["_meta"]["title"]: node["inputs"] for node in content.values() if node["class_type"] == "KSampler"}
    tuned = next(id for id, node in content.items() if node["class_type"] == "OTCA_TunedModel")
    before, after = samplers["Before"], samplers["After"]
    assert before | {"model": None} == after | {"model": None}
    make = next(node["inputs"] for node in content.values() if node["class_type"] == "OTCA_MakeTrainable")
    assert (before["model"], after["model"]) == (make["model"], [tuned, 0])


def test_both_experts_are_trained():
    content = graph("wan22_14b")
    make = content["7"]["inputs"]
    assert (make["model"], make["low_noise_model"]) == (["3", 0], ["4", 0])
    assert [content[id]["inputs"]["model"][0] for id in ("3", "4")] == ["1", "2"]
    assert "high_noise" in content["1"]["inputs"]["unet_name"] and "low_noise" in content["2"]["inputs"]["unet_name"]


def test_every_workflow_is_a_template_or_a_line_of_the_recipes():
    assert len(TEMPLATES) <= 20
    lines = {Path(arguments[0]).stem for arguments in RECIPES.values()}
    assert {template.api.stem for template in TEMPLATES.values()} | lines == set(ALL)
    files = {path.name for path in (ROOT / "workflows").iterdir() if path.is_file()}
    assert files == {file.name for template in TEMPLATES.values() for file in (template.canvas, template.picture)}


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_is_its_workflow(name):
    template = TEMPLATES[name]
    canvas, api = (json.loads(path.read_text(encoding="utf-8")) for path in (template.canvas, template.api))
    subgraphs = canvas.get("definitions", {}).get("subgraphs", [])
    nodes = [node for one in (canvas, *subgraphs) for node in one["nodes"]]
    found = {str(node["id"]): node["type"] for node in nodes if node["type"] not in {one["id"] for one in subgraphs}}
    assert len(subgraphs) == template.rewards_inside
    wanted = {id: node["class_type"] for id, node in api.items()}
    assert {id: found[id] for id in wanted} == wanted
    bypassed = {str(node["id"]) for node in nodes if node["mode"] == 4}
    added = sorted(kind for id, kind in found.items() if id not in wanted and id not in bypassed)
    assert added == ["MarkdownNote"] * len(template.notes) + ["PreviewImage"]
    notes = {node["title"]: node["widgets_values"][0] for node in nodes if node["type"] == "MarkdownNote"}
    assert notes == template.notes
    for node in nodes:
        if name in FILES and node["type"] in LOADERS:
            offered = models_of(name, api[str(node["id"])])
            assert node["properties"]["models"] == offered, "ComfyUI offers what is missing by this"
    assert 0 < os.path.getsize(template.picture) <= 100_000
    for node in nodes:
        if node["type"].startswith("OTCA_"):
            assert_inputs_are_those_of_now(node, "made before it had these inputs; make it anew")


# --- blueprints: graphs of subgraphs/ that ComfyUI can open, of nodes as they are now ----------------------------------


@pytest.mark.parametrize("path", BLUEPRINTS, ids=lambda path: path.stem)
def test_a_blueprint_is_one_node_and_its_subgraph_of_nodes_as_they_are_now(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    (outer,), (graph,) = content["nodes"], content["definitions"]["subgraphs"]
    assert outer["type"] == graph["id"] and outer["title"] == graph["name"] == path.stem
    assert [slot["name"] for slot in outer["inputs"]] == [slot["name"] for slot in graph["inputs"]]
    assert [slot["name"] for slot in outer["outputs"]] == [slot["name"] for slot in graph["outputs"]]
    assert graph["category"] == "OTCA" and len(graph["description"]) > 20
    assert all(slot["linkIds"] for slot in (*graph["inputs"], *graph["outputs"])), "each leads somewhere"
    assert len({slot["name"] for slot in graph["inputs"]}) == len(graph["inputs"])
    ours = [node for node in graph["nodes"] if node["type"].startswith("OTCA_")]
    assert ours
    for node in ours:
        renew = "make it anew: python -m comfyui_otca.tools.canvases --blueprints"
        assert_inputs_are_those_of_now(node, renew)


def assert_inputs_are_those_of_now(node, renew):
    """A Reward Stack shows as many sockets as are taken, and one more."""
    declared = NODE_CLASS_MAPPINGS[node["type"]].INPUT_TYPES()
    wanted = {**declared["required"], **declared.get("optional", {})}
    named, wanted = (
        {name for name in names if not name.startswith("reward_")}
        for names in ([slot["name"] for slot in node["inputs"]], wanted)
    )
    assert named == wanted, f"{node['type']}: {renew}"


def test_pick_best_generates_eight_and_keeps_two():
    content = json.loads((ROOT / "subgraphs" / "Pick Best.json").read_text(encoding="utf-8"))
    values = content["nodes"][0]["widgets_values_named"]
    assert (values["generate"], values["keep"]) == (8, 2)


def test_blueprints_are_in_the_package():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (data,) = re.findall(r'package-data = \{ "comfyui_otca" = (\[.*\]) \}', project)
    assert "subgraphs/**" in json.loads(data)
