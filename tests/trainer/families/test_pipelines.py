"""Every family against diffusers' own pipelines, each on a tiny checkpoint."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import diffusers
import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from comfyui_otca.host import extras
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.training import assert_recomputed
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.checks import preflight
from comfyui_otca.trainer.families import loading
from comfyui_otca.trainer.families.configured import read_configuration
from comfyui_otca.trainer.families.latents import packed, unpacked
from comfyui_otca.trainer.families.pipeline import PipelineModel
from comfyui_otca.trainer.families.qwen import QwenImage21
from comfyui_otca.trainer.flow import FlowModelError, load_flow_model
from comfyui_otca.trainer.policy import lora
from comfyui_otca.trainer.sde import transition
from comfyui_otca.trainer.workflow.running import Workflow

TEXTS = ["a red circle on a blue background", "a green square"]


@dataclass(frozen=True)
class Case:
    """How a pipeline is asked for what our sampler does.

    Attributes:
        guidance: what the pipeline calls it.
        off: the guidance at which nothing is guided.
        shift: its timestep shift at 2 x 2 units and four steps.
        unit: pixels; a side has a multiple of so many.
        alone: other prompts of its batch change the pipeline's pictures, so that each is asked for by itself.
        seen: the pipeline's pictures as ours.
        painted: colours [B, 3, …] as the autoencoder takes them.
        packed, unpacked: our latents as the pipeline takes them, and a model's latents of so many rows and columns as ours.
        frames: the shape of the autoencoder's frames, () where it knows pictures alone.
        negative: how the pipeline is told of the negative prompt, by a model and that prompt.
        absent: components that the pipeline has to be told of that they are left out on purpose.
    """

    guidance: str = "guidance_scale"
    off: float = 1.0
    shift: float = 3.0
    unit: int = 16
    alone: bool = False
    seen: Callable[[Tensor], Tensor] = lambda pictures: pictures
    painted: Callable[[Tensor], Tensor] = lambda pixels: pixels
    packed: Callable[[Tensor], Tensor] = lambda latents: latents
    unpacked: Callable[..., Tensor] = lambda model, latents, height, width: latents
    frames: tuple[int, ...] = ()
    negative: Callable[[PipelineModel, str], dict] = lambda model, text: {"negative_prompt": [text] * 2}
    absent: tuple[str, ...] = ()


def without_negative_prompt(model, text):
    """FLUX.2 takes embeddings alone: klein's pipeline has "" for a negative prompt, dev's none."""
    return {"negative_prompt_embeds": model.embeddings([text] * 2).tensors["tokens"].cpu()} if model.guides(4.5) else {}


def normalised(model, latents):
    """What klein's pipeline returns, as ours: it has undone the patches and their normalisation."""
    mean, std = (statistic.cpu() for statistic in model._latent_statistics())
    return (model.pipeline._patchify_latents(latents) - mean) / std


def on_white(pictures):
    """Of pictures that may be transparent: what is seen of them."""
    alpha = pictures[..., 3:]
    return pictures[..., :3] * alpha + 1 - alpha


TOKENS = {"packed": packed, "unpacked": lambda model, latents, *size: unpacked(latents, *size)}
SIZES = tiny.SIZES | {"sd3-without-t5": tiny.PICTURE, "flux-dev": tiny.PICTURE}
SHIFT = math.exp(0.5 - 0.65 / 3840 * (256 - 16))  # of a scheduler for 256 to 4096 tokens, at 4 x 4 of them
CASES = {
    "flux-dev": Case(shift=SHIFT, unit=8, negative=lambda *_: {}, **TOKENS),
    "sd3": Case(),
    "sd3-without-t5": Case(absent=("text_encoder_3", "tokenizer_3")),
    "wan21": Case(frames=(5,), absent=("transformer_2",)),
    "wan22": Case(frames=(5,)),
    "wan22-5b": Case(frames=(5,), absent=("transformer_2",), unit=32),
    "z-image": Case(off=0.0, shift=6.0),
    "qwen-image": Case("true_cfg_scale", shift=1.62890, frames=(1,), **TOKENS),
    "qwen-image-2.1": Case(
        "true_cfg_scale",
        shift=SHIFT,
        unit=32,
        alone=True,
        seen=on_white,
        painted=lambda pixels: torch.cat([pixels, torch.ones_like(pixels[:, :1])], 1),
        packed=lambda latents: latents.flatten(2).mT,
        unpacked=lambda model, latents, *size: latents.mT.unflatten(-1, size),
        frames=(1,),
    ),
    "krea2": Case(off=0.0, shift=1.60739, frames=(1,), **TOKENS),
    "flux2-klein-base": Case(
        shift=7.02367, unpacked=lambda model, latents, *_: normalised(model, latents), negative=without_negative_prompt
    ),
    "flux2-dev": Case(
        shift=7.02367,
        unpacked=lambda model, latents, *size: latents.mT.unflatten(-1, size),
        negative=without_negative_prompt,
    ),
}


VARIANTS = ("sd3-without-t5", "wan21")  # they differ from sd3 and wan22 in what is left out alone
each_variant = pytest.mark.parametrize("family", list(CASES), indirect=True)


@pytest.fixture(scope="module", params=[name for name in CASES if name not in VARIANTS])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, tiny_folder):
    return tiny_folder(family)


@pytest.fixture(scope="module")
def load(folder, device):
    settings = {"lora_rank": 2, "lora_alpha": 3.0, "device": device, "dtype": "float32"}
    return lambda **options: load_flow_model(folder, **(settings | options))


@pytest.fixture(scope="module")
def still(load, perturb):
    """A model with a visible adapter, only to be looked at."""
    return perturb(load())


@pytest.fixture
def settings(family, small_settings):
    """settings(guidance=…), of a size that the family can make."""
    return lambda **changes: small_settings(**{**SIZES[family], "guidance": CASES[family].off, **changes})


def noise_for(model, settings, count=2):
    shape = model.latent_shape(settings.height, settings.width, settings.frames)
    return torch.randn((count, *shape), generator=torch.Generator().manual_seed(11))


def walked(model, settings, noise):
    """Latents by our deterministic sampler."""
    sigmas, x, condition = model.sigmas(settings), noise, model.condition(TEXTS, settings)
    with torch.no_grad():
        for sigma, sigma_next in zip(sigmas, sigmas[1:], strict=False):
            velocity = model.velocity(x.to(model.device), sigma, condition, settings.guidance).cpu()
            x = transition("ode", velocity, x, sigma, sigma_next, eta=0.0).mean
    return x


def theirs(case, folder, model, asked, dtype):
    """The family's own pipeline, and how it is asked for the same."""
    absent = dict.fromkeys(case.absent)
    pipeline = getattr(diffusers, model.PIPELINE).from_pretrained(folder, torch_dtype=dtype, **absent)
    arguments = {"height": asked.height, "width": asked.width, "num_inference_steps": asked.steps}
    more = {"max_sequence_length": model.max_sequence_length, "num_frames": asked.frames}
    taken = inspect.signature(pipeline.__call__).parameters
    return pipeline, arguments | {case.guidance: asked.guidance} | {n: v for n, v in more.items() if n in taken}


@each_variant
@pytest.mark.anywhere
@pytest.mark.parametrize(("guided", "negative"), [(0.0, ""), (3.5, ""), (3.5, "a blue square")])
@pytest.mark.parametrize(("columns", "rows"), [(2, 2), (3, 1)])
def test_the_deterministic_sampler_is_the_pipelines(family, folder, load, settings, guided, negative, columns, rows):
    case, model = CASES[family], load()
    width, height = columns * case.unit, rows * case.unit
    asked = settings(guidance=case.off + guided, negative_prompt=negative, width=width, height=height)
    pipeline, arguments = theirs(case, folder, model, asked, torch.float32)
    noise = noise_for(model, asked)

    def sampled(kind):  # Z-Image's pipeline writes into the lists that it is given
        arguments["output_type"], latents = kind, case.packed(noise)
        if not case.alone:
            return pipeline(prompt=list(TEXTS), latents=latents, **case.negative(model, negative), **arguments)[0]
        arguments["negative_prompt"] = negative
        each = [pipeline(text, latents=row, **arguments)[0] for text, row in zip(TEXTS, latents.split(1), strict=True)]
        return (torch.cat if kind == "latent" else np.concatenate)(each)

    expected = sampled("latent")
    x = walked(model, asked, noise)
    torch.testing.assert_close(model.sigmas(asked), tuple(pipeline.scheduler.sigmas.tolist()), rtol=0, atol=1e-6)
    torch.testing.assert_close(x, case.unpacked(model, expected, *noise.shape[-2:]), rtol=0, atol=1e-4)
    pictures = case.seen(torch.from_numpy(sampled("np")))
    torch.testing.assert_close(model.decode(x), pictures, rtol=0, atol=1e-4)
    if guided:
        assert (x - walked(model, settings(width=width, height=height), noise)).abs().max() > 1e-3


def test_in_bfloat16_the_network_is_told_the_pipelines_times(family, folder, load, settings, device):
    """FLUX.1 was told 824, 728, 486 of 1000 where its pipeline says 828, 724, 488."""
    case, model, told = CASES[family], load(dtype="bfloat16"), []
    asked = settings(steps=8, width=case.unit, height=case.unit)
    pipeline, arguments = theirs(case, folder, model, asked, torch.bfloat16)

    def watch(network, given, named):
        arguments = inspect.signature(network.forward).bind(*given, **named).arguments
        told.append(arguments.get("timestep", arguments.get("t")).flatten()[0].float().item())

    for one in (pipeline, model.pipeline):
        for network in filter(None, (one.transformer, getattr(one, "transformer_2", None))):
            network.register_forward_pre_hook(watch, with_kwargs=True)
    noise = noise_for(model, asked, 1)
    pipeline(prompt=TEXTS[:1], latents=case.packed(noise).to(torch.bfloat16), output_type="latent", **arguments)
    expected = told.copy()
    told.clear()
    condition = model.condition(TEXTS[:1], asked)
    with torch.no_grad():
        for sigma in model.sigmas(asked)[:-1]:
            model.velocity(noise.to(model.device), sigma, condition, asked.guidance)
    assert told == pytest.approx(expected, rel=1e-5) and len(told) == 8  # bfloat16 has steps of 4e-3


def test_the_checkpoints_own_shift(family, still, settings):
    assert still.shift(settings()) == pytest.approx(CASES[family].shift, rel=1e-4)
    expected = (1.0, 6 / 7, 2 / 3, 0.4, 0.0)  # 2u / (1 + u), whatever the checkpoint has
    if family.startswith(("sd3", "wan")):  # they ask a scheduler for four levels
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=2.0)
        scheduler.set_timesteps(4)
        expected = tuple(scheduler.sigmas.tolist())
    assert still.sigmas(settings(shift=2.0)) == pytest.approx(expected)


@each_variant
def test_the_noise_levels_are_the_pipelines_own(family, folder, still, settings):
    case, asked = CASES[family], settings(width=CASES[family].unit, height=CASES[family].unit)
    pipeline, arguments = theirs(case, folder, still, asked, torch.float32)
    make = pipeline.scheduler.set_timesteps

    @functools.wraps(make)
    def made(*given, **named):
        make(*given, **named)
        raise InterruptedError("its levels are made")

    pipeline.scheduler.set_timesteps = made
    for steps in (4, 10, 28):
        with pytest.raises(InterruptedError, match="its levels are made"):
            pipeline(prompt=TEXTS[0], **arguments | {"num_inference_steps": steps})
        levels = still.sigmas(replace(asked, steps=steps))
        assert levels == pytest.approx(pipeline.scheduler.sigmas.tolist(), abs=1e-6), steps


@pytest.mark.anywhere
def test_a_picture_becomes_the_autoencoders_latents(family, still, settings, monkeypatch):
    case, frames = CASES[family], settings().frames
    height, width = case.unit, 2 * case.unit
    pictures = torch.rand((3, *[frames] * (frames > 1), height, width, 3), generator=torch.Generator().manual_seed(2))
    vae, seen = still.pipeline.vae, []
    latents = still.encode(pictures, batch_size=2)
    assert latents.shape == (3, *still.latent_shape(height, width, frames))
    own, decode = [], vae.decode
    for picture in pictures.to(still.device):
        pixels = case.painted(2 * picture.movedim(-1, 0)[None] - 1)
        pixels = pixels.reshape(*pixels.shape[:2], *case.frames, height, width)
        with torch.no_grad():
            own.append(vae.encode(pixels).latent_dist.mode()[0])
    monkeypatch.setattr(vae, "decode", lambda given, **options: (seen.append(given), decode(given, **options))[1])
    still.decode(latents)
    torch.testing.assert_close(seen[0], torch.stack(own), rtol=0, atol=1e-5)


def test_other_prompts_of_a_batch_change_nothing(family, still, settings):
    """The shorter one is padded there, and not where it is alone."""
    asked = settings(guidance=CASES[family].off + 3.5)
    noise, both = noise_for(still, asked).to(still.device), still.condition(TEXTS, asked)
    together = still.velocity(noise, 0.7, both, asked.guidance)
    for row, text in enumerate(TEXTS):
        for alone in (still.condition([text], asked), both.rows(torch.tensor([row]))):
            velocity = still.velocity(noise[row : row + 1], 0.7, alone, asked.guidance)
            torch.testing.assert_close(velocity, together[row : row + 1], rtol=0, atol=2e-5)


@pytest.mark.anywhere
def test_the_gradient_reaches_every_target_and_only_those(load, settings, perturb, family):
    model, asked = perturb(load()), settings(guidance=CASES[family].off + 3.5)
    x = noise_for(model, asked).to(model.device)
    model.velocity(x, 0.7, model.condition(TEXTS, asked), asked.guidance).square().mean().backward()
    adapters = model.policy.trainable_named()
    assert adapters and all("lora_" in name for name in adapters)
    touched = [name for name, parameter in adapters.items() if parameter.grad is not None]
    for target in model.LORA_TARGETS:
        assert any(f"{target}.lora_A" in name for name in touched), target
    named = [item for network in model.experts.values() for item in network.named_parameters()]
    assert [name for name, p in named if "lora_" not in name and p.grad is not None] == []


@pytest.mark.parametrize("guided", [0.0, 3.5])
def test_the_gradient_is_what_finite_differences_say(load, settings, perturb, family, guided):
    """Along itself it is as steep as it is long. All weights together, and a step that cancels the third derivative (Richardson),
    leave 2e-5 of what float32 rounds off the sum."""
    model, asked = perturb(load()), settings(guidance=CASES[family].off + guided)
    x, condition = noise_for(model, asked).to(model.device), model.condition(TEXTS, asked)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))

    def value():
        return (model.velocity(x, 0.7, condition, asked.guidance).double() * direction).sum()

    value().backward()
    weights = [weight for weight in model.policy.trainable_parameters() if weight.grad is not None]
    gradients = [weight.grad for weight in weights]
    length = math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients))

    @torch.no_grad()
    def moved(step):
        before = [weight.data for weight in weights]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.data = weight.data + gradient * (step / length)
        found = value().item()
        for weight, data in zip(weights, before, strict=True):
            weight.data = data
        return found

    wide, narrow = ((moved(step) - moved(-step)) / (2 * step) for step in (0.08, 0.04))
    assert (4 * narrow - wide) / 3 == pytest.approx(length, rel=3e-4)


@each_variant
@pytest.mark.anywhere
def test_recomputed_log_probs_are_the_rollouts(still, sample, settings, family):
    asked = settings(guidance=CASES[family].off + 3.5, negative_prompt="a blue square")
    trajectories = sample(still, asked)
    made = still.latent_shape(asked.height, asked.width, asked.frames)
    assert trajectories.latents.shape == (6, 5, *made)
    assert trajectories.images.shape == (6, *[asked.frames] * (asked.frames > 1), asked.height, asked.width, 3)
    assert_recomputed(still, trajectories)


@pytest.mark.anywhere
def test_saved_it_is_the_same_here_and_in_its_own_pipeline(still, load, settings, tmp_path, caplog):
    """Also of a scale that is not 1, and in each of two networks."""
    paths = lora.save(still, tmp_path / "a.safetensors", {})
    fresh, again, asked = load(), load(), settings()
    x = noise_for(still, asked).to(still.device)
    lora.load(again, tmp_path / "a.safetensors")
    for sigma in (0.9, 0.5):  # in Wan 2.2 of either network
        before, loaded, trained = (
            model.velocity(x, sigma, model.condition(TEXTS, asked), asked.guidance) for model in (fresh, again, still)
        )
        torch.testing.assert_close(loaded, trained, rtol=0, atol=2e-6)
        assert (before - trained).abs().max() > 1e-4
    assert "distilled" not in caplog.text, "an undistilled checkpoint warns of nothing"
    if not hasattr(still.pipeline, "load_lora_weights"):
        return  # Qwen-Image 2.1, whose pipeline has no loader
    theirs = type(still.pipeline).from_pretrained(still.path)
    for expert, path in zip(still.experts, paths, strict=True):
        second = {"load_into_transformer_2": True} if expert == "transformer_2" else {}
        theirs.load_lora_weights(path.parent, weight_name=path.name, adapter_name=expert, **second)
        for layer, pair in still.adapters[expert].pairs().items():
            change = getattr(theirs, expert).get_submodule(layer).get_delta_weight(expert)
            torch.testing.assert_close(change, (pair.scale * pair.b @ pair.a).to(change.device), rtol=0, atol=1e-6)


def test_ways_to_save_memory_change_no_gradient(still, load, settings, perturb, family):
    asked = settings(guidance=CASES[family].off + 3.5)
    spared = perturb(load(gradient_checkpointing=True, offload_encoders=True, offload_vae=True))
    found = []
    for model in (still, spared):
        x = noise_for(model, asked).to(model.device)
        model.velocity(x, 0.7, model.condition(TEXTS, asked), asked.guidance).square().mean().backward()
        found.append([p.grad for p in model.policy.trainable_parameters() if p.grad is not None])
        model.policy.forget_gradients()
    assert len(found[0]) == len(found[1]) > 20
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_exported_it_is_the_trained_model(load, settings, perturb, tmp_path):
    model, asked = perturb(load()), settings()
    x = noise_for(model, asked).to(model.device)
    trained = model.velocity(x, 0.7, model.condition(TEXTS, asked), asked.guidance).detach()
    model.export(tmp_path / "whole")
    again = load_flow_model(tmp_path / "whole", lora_rank=2, device="cpu")
    velocity = again.velocity(x, 0.7, again.condition(TEXTS, asked), asked.guidance)
    torch.testing.assert_close(velocity, trained, rtol=0, atol=2e-5)


def test_what_is_known_before_it_is_loaded(family, folder, small_graph, settings):
    """A size that the family refuses and the checkpoint's own noise levels, by its configuration files."""
    changes = {"OTCA_LoadFlowModel": {"path": str(folder)}}
    sampler = {**SIZES[family], "guidance": CASES[family].off, "shift": 0.0}
    assert problems(small_graph, changes | {"OTCA_SDESampler": sampler}) == []
    [problem] = problems(small_graph, changes | {"OTCA_SDESampler": sampler | {"width": 30}})
    assert problem.input == "width" and "must be multiples of" in problem.message


# -- refused before anything is loaded ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["sd3", "qwen-image", "qwen-image-2.1", "flux2-dev", "wan21"])
def test_a_prompt_that_the_text_encoder_cuts_is_named(family, small_graph, tiny_folder):
    folder = tiny_folder(family)
    changes = {
        "OTCA_LoadFlowModel": {"path": str(folder), "max_sequence_length": 40},
        "OTCA_SDESampler": {**SIZES[family], "guidance": 3.0},
        "OTCA_PromptDataset": {"prompts": "a red circle\na green square " + "on a very long road " * 30, "file": ""},
    }
    [problem] = [each for each in problems(small_graph, changes) if each.node_id == "2"]
    assert (problem.input, problem.severity, problem.fix) == ("prompts", "warning", "shorten it")
    assert "prompt 2, 'a green square on" in problem.message and "the text encoder reads 40" in problem.message
    changes["OTCA_PromptDataset"]["prompts"] = "a red circle"
    assert not [each for each in problems(small_graph, changes) if each.node_id == "2"]


def test_a_modular_pipeline_is_refused_by_name(small_graph, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "modular_model_index.json").write_text("{}")
    with pytest.raises(
        FlowModelError, match="is a modular pipeline of diffusers.*Fix: train the model as ComfyUI load"
    ):
        load_flow_model(tmp_path / "model", device="cpu")
    [problem] = problems(small_graph, {"OTCA_LoadFlowModel": {"path": str(tmp_path / "model")}})
    assert problem.input == "path" and "modular pipeline" in problem.message


def test_libraries_that_lack_something(monkeypatch, tiny_folder):
    folder = tiny_folder("qwen-image-2.1")

    def lacking(*_, **__):
        raise ImportError("requires the Torchvision library")

    monkeypatch.setattr(transformers.LlavaProcessor, "from_pretrained", lacking)
    monkeypatch.setattr(loading, "load_network", lambda *_: pytest.fail("it is seen before the networks are loaded"))
    with pytest.raises(
        FlowModelError, match="its processor reads pictures.*Torchvision.*Fix: .*pip install torchvision"
    ):
        load_flow_model(folder, device="cpu")
    monkeypatch.setattr(QwenImage21, "PIPELINE", "QwenImage9Pipeline")
    with pytest.raises(
        FlowModelError, match="is a QwenImage9Pipeline, which diffusers .* does not know. Fix: .*pip install -U"
    ):
        load_flow_model(folder, device="cpu")


def test_a_folder_of_a_newer_transformers_is_refused_with_both_versions(monkeypatch, flux_folder):
    monkeypatch.setattr(
        extras, "installed", {"diffusers": "0.38", "peft": "1", "accelerate": "2", "transformers": "4.50.3"}.get
    )
    monkeypatch.setattr(loading, "load_pipeline", None)
    with pytest.raises(
        FlowModelError, match="saved by transformers 5, and 4.50.3, which is here, .*Fix: .*pip install -U"
    ):
        load_flow_model(flux_folder, device="cpu")


# -- distilled checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "off"),
    [("z-image-turbo", 0.0), ("flux2-klein", 1.0), ("krea2-turbo", 0.0), ("qwen-image-2.1-turbo", 1.0)],
)
def test_a_distilled_checkpoint_says_what_it_is_not_for(family, off, small_graph, small_settings, caplog, tiny_folder):
    folder = tiny_folder(family)
    sampler = {"width": 32, "height": 32, "guidance": off + 3.5}
    changes = {"OTCA_LoadFlowModel": {"path": str(folder)}, "OTCA_SDESampler": sampler}
    [problem] = problems(small_graph, changes)
    assert problem.input == "guidance" and problem.fix == f"set guidance to {off:g}"
    assert "this checkpoint is distilled" in problem.message
    assert problems(small_graph, changes | {"OTCA_SDESampler": sampler | {"guidance": off}}) == []
    with caplog.at_level(logging.WARNING):
        model = load_flow_model(folder, lora_rank=2, device="cpu")
    assert "become blurred. Fix: kl_coefficient" in caplog.text
    with pytest.raises(ValueError, match=f"distilled.*Fix: set guidance to {off:g}"):
        rollout.generate(model, TEXTS[:1], small_settings(**sampler), [1])
    assert model.unguided(small_settings(**sampler)).guidance == off


def test_noise_levels_that_a_checkpoint_was_distilled_to(small_settings, tiny_folder, tmp_path):
    """Qwen-Image 2.1 Turbo's lie in its index; its shift comes on top."""
    folder = shutil.copytree(tiny_folder("qwen-image-2.1-turbo"), tmp_path / "model")
    model, size = load_flow_model(folder, lora_rank=2, device="cpu"), tiny.SIZES["qwen-image-2.1"]
    pipeline = diffusers.QwenImage21Pipeline.from_pretrained(folder)
    own = small_settings(**size, guidance=1.0, steps=4)
    noise = noise_for(model, own, 1)
    expected = pipeline(TEXTS[0], width=64, height=64, latents=noise.flatten(2).mT, output_type="latent").images
    x, condition, sigmas = noise, model.condition(TEXTS[:1], own), model.sigmas(own)
    for sigma, sigma_next in pairwise(sigmas):
        x = x + (sigma_next - sigma) * model.velocity(x, sigma, condition, 1.0).detach()
    torch.testing.assert_close(x.flatten(2).mT, expected, rtol=0, atol=1e-4)

    def shifted(*levels):
        return pytest.approx([SHIFT * u / (1 + (SHIFT - 1) * u) for u in levels])

    assert list(sigmas) == shifted(1, 0.9, 0.7, 0.3, 0)
    assert list(model.sigmas(replace(own, steps=8))) == shifted(1, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.15, 0)
    assert model.sigmas(replace(own, shift=1.0)) == (1.0, 0.75, 0.5, 0.25, 0.0), "evenly spaced by their own shift"
    index = folder / "model_index.json"
    for levels in ([1.0, 0.5, 0.5], [1.2, 0.5], [0.5, 0.0]):
        index.write_text(json.dumps(json.loads(index.read_text()) | {"sample_sigmas": levels}))
        with pytest.raises(FlowModelError, match="sample_sigmas .* do not fall from 1 towards 0"):
            read_configuration(folder)


def problems(small_graph, changes):
    return preflight.problems(Workflow(json.loads(json.dumps(small_graph(changes))), NODE_CLASS_MAPPINGS))
