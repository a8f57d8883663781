"""Image to video. Of Wan 2.2 5B a prompt's picture is the first frame, which is not noised, not trained and not looked at by
credit; the 14 B model sees it beside all frames, which it makes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline, WanPipeline
from PIL import Image

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.training import assert_recomputed, whole_and_resumed
from comfyui_otca.trainer.checks import preflight
from comfyui_otca.trainer.flow import FlowModelError, load_flow_model
from comfyui_otca.trainer.prompts import PromptError
from comfyui_otca.trainer.sde import transition
from comfyui_otca.trainer.types import Prompt
from comfyui_otca.trainer.workflow.running import Workflow

TEXTS = ["a red circle rises", "a green square turns"]


@pytest.fixture(scope="module")
def folder(tiny_folder):
    return tiny_folder("wan22-5b")


@pytest.fixture(scope="module")
def model(folder, perturb):
    return perturb(load_flow_model(folder, lora_rank=2, lora_alpha=3.0, device="cpu"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two files of 64 x 32 pixels, in a folder that may be read."""
    folder, generator = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    files = [folder / "first.png", folder / "second.png"]
    for file in files:
        Image.fromarray(generator.integers(0, 256, (32, 64, 3), np.uint8)).save(file)
    return [str(file) for file in files]


@pytest.fixture(scope="module")
def prompts(pictures):
    return [Prompt(text, {"image": name}) for text, name in zip(TEXTS, pictures, strict=True)]


@pytest.fixture
def video(small_settings):
    return lambda **changes: small_settings(**{**tiny.SIZES["wan22-5b"], "guidance": 1.0, **changes})


def pipeline_of(folder):
    if folder.name == "wan22-i2v":
        return WanImageToVideoPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    parts = WanPipeline.from_pretrained(folder, torch_dtype=torch.float32, transformer_2=None).components
    parts = {name: part for name, part in parts.items() if name != "transformer_2"}
    return WanImageToVideoPipeline(**parts, expand_timesteps=True)


@pytest.fixture(scope="module")
def beside(tiny_folder):
    """The model that sees the picture beside all frames."""
    return tiny_folder("wan22-i2v")


@pytest.mark.parametrize(("guidance", "negative"), [(1.0, ""), (5.0, "a blue square")])
@pytest.mark.parametrize("family", ["wan22-5b", "wan22-i2v"])
def test_the_deterministic_sampler_is_the_pipelines(
    family, folder, beside, video, prompts, pictures, guidance, negative
):
    path = folder if family == "wan22-5b" else beside
    model, settings = load_flow_model(path, device="cpu"), video(guidance=guidance, negative_prompt=negative)
    pipeline = pipeline_of(path)
    shape = model.latent_shape(settings.height, settings.width, settings.frames)
    given = int(family == "wan22-5b")
    assert model.sample_shape(prompts, settings) == (shape[0], shape[1] - given, *shape[2:])
    assert model.sample_shape(TEXTS, settings) == shape, "without pictures it makes all of the video"
    noise = torch.randn((2, *shape), generator=torch.Generator().manual_seed(11))
    condition, sigmas, x = model.condition(prompts, settings), model.sigmas(settings), noise[:, :, given:]
    with torch.no_grad():
        for sigma, sigma_next in zip(sigmas, sigmas[1:], strict=False):
            x = transition("ode", model.velocity(x, sigma, condition, guidance), x, sigma, sigma_next, eta=0.0).mean
    videos = model.decode(x, 1, prompts)
    for row, (text, file) in enumerate(zip(TEXTS, pictures, strict=True)):
        asked = dict(
            image=Image.open(file),
            prompt=text,
            negative_prompt=negative,
            height=settings.height,
            width=settings.width,
            num_frames=settings.frames,
            num_inference_steps=settings.steps,
            guidance_scale=guidance,
            latents=noise[row : row + 1],
            max_sequence_length=model.max_sequence_length,
        )
        latents = pipeline(output_type="latent", **asked).frames
        torch.testing.assert_close(x[row : row + 1], latents[:, :, given:], rtol=0, atol=1e-4)
        frames = torch.from_numpy(pipeline(output_type="np", **asked).frames)
        torch.testing.assert_close(videos[row : row + 1], frames, rtol=0, atol=1e-4)


def test_noise_log_probs_and_credit_know_the_other_frames_alone(model, sample, video, prompts):
    settings = video(guidance=5.0)
    trajectories = sample(model, settings, prompts=tuple(prompts))
    channels, frames, height, width = model.latent_shape(settings.height, settings.width, settings.frames)
    assert trajectories.latents.shape == (6, 5, channels, frames - 1, height, width)
    assert trajectories.images.shape == (6, 5, 32, 64, 3), "rewards see the whole video"
    assert_recomputed(model, trajectories)


def test_the_picture_matters_and_belongs_to_its_prompt(model, video, pictures):
    settings = video()
    texts = [Prompt(TEXTS[0], {"image": name}) for name in (*pictures, pictures[0])]
    x = torch.randn(model.sample_shape(texts, settings), generator=torch.Generator().manual_seed(3)).expand(
        3, -1, -1, -1, -1
    )
    one, other, again = model.velocity(x, 0.7, model.condition(texts, settings), 1.0)
    assert (one - other).abs().max() > 1e-3
    torch.testing.assert_close(one, again, rtol=0, atol=1e-6)


def test_what_is_wrong_with_pictures(model, video, pictures, tmp_path):
    with_picture, without = Prompt("a", {"image": pictures[0]}), Prompt("b")
    with pytest.raises(PromptError, match="prompt 'b' has no image, and others have one. Fix: "):
        model.sample_shape([with_picture, without], video())
    with pytest.raises(PromptError, match="has 7 for its image, which is not the name of a picture. Fix: "):
        model.sample_shape([Prompt("c", {"image": 7})], video())
    with pytest.raises(ValueError, match="frames 1: the prompts give the first one. Fix: 5 or more"):
        model.sample_shape([with_picture], video(frames=1))
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(PromptError, match="image '.*broken.png' of a prompt: is not one of .*Fix: put a plain picture"):
        model.condition([Prompt("d", {"image": str(tmp_path / "broken.png")})], video())


def graph_of(small_graph, folder, lines, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    changes = {
        "OTCA_LoadFlowModel": {"path": str(folder)},
        "OTCA_PromptDataset": {"file": str(file), "prompts": ""},
        "OTCA_SDESampler": {**tiny.SIZES["wan22-5b"], "guidance": 4.5, "steps": 4, "group_size": 3},
        "OTCA_TrainingRun": {"iterations": 2, "checkpoint_every": 1, "evaluate_every": 2, "evaluation_seeds": 1},
    }
    changes["OTCA_TrainingRun"]["evaluation_prompts"] = json.dumps(lines[0])
    return small_graph(changes)


def test_a_model_of_pictures_alone(beside, perturb, sample, video, prompts, small_graph, tmp_path):
    model, settings = perturb(load_flow_model(beside, lora_rank=2, lora_alpha=3.0, device="cpu")), video(guidance=5.0)
    with pytest.raises(PromptError, match="has no image, and this model makes videos of pictures. Fix: "):
        model.condition(TEXTS, settings)
    graph = graph_of(small_graph, beside, [{"prompt": "a"}], tmp_path)
    problems = preflight.problems(Workflow(graph, NODE_CLASS_MAPPINGS))
    [problem] = [each for each in problems if each.node_id == "2"]  # a reward of shapes applies to none of them
    assert problem.input == "file" and "makes videos of pictures" in problem.message
    assert model.graph_bytes(settings) > 0
    assert_recomputed(model, sample(model, settings, prompts=tuple(prompts))).backward()
    assert all(parameter.grad is not None for parameter in model.policy.trainable_parameters()), "both experts learn"


def test_another_encoder_is_refused_before_loading(beside, tmp_path):
    copied = shutil.copytree(beside, tmp_path / "model")
    index = json.loads((copied / "model_index.json").read_text())
    (copied / "model_index.json").write_text(json.dumps(index | {"image_encoder": ["transformers", "CLIPVisionModel"]}))
    shutil.copytree(copied / "text_encoder", copied / "image_encoder")
    with pytest.raises(FlowModelError, match="has a component image_encoder.*Fix: choose a model of Wan 2.2"):
        load_flow_model(copied, device="cpu")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({}, "prompts.jsonl, line 2 has no image"),
        ({"image": "nowhere.png"}, "image 'nowhere.png' of a prompt"),
        ({"image": "/etc/hostname.png"}, "/etc/hostname.png"),
    ],
)
def test_pictures_are_looked_for_before_anything_is_loaded(small_graph, folder, pictures, tmp_path, second, message):
    lines = [{"prompt": "a", "image": pictures[0]}, {"prompt": "b", **second}]
    graph = graph_of(small_graph, folder, lines, tmp_path)
    problems = preflight.problems(Workflow(graph, NODE_CLASS_MAPPINGS))
    [problem] = [each for each in problems if each.node_id == "2"]  # a reward of shapes applies to none of them
    assert problem.input == "file" and problem.severity == "error" and message in problem.message and problem.fix


@pytest.mark.parametrize("family", ["wan22-5b", "wan22-i2v"])
def test_trains_on_prompts_with_pictures_and_resumes_to_the_bit(
    family, small_graph, folder, beside, pictures, tmp_path
):
    folder = folder if family == "wan22-5b" else beside
    lines = [{"prompt": text, "image": name} for text, name in zip(TEXTS, pictures, strict=True)]
    workflow = tmp_path / "workflow.json"
    workflow.write_text(json.dumps(graph_of(small_graph, folder, lines, tmp_path)))
    assert all(row["gradient_norm"] > 0 for row in whole_and_resumed(workflow, tmp_path))
