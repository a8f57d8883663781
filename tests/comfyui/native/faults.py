"""What must not happen, and what is said where it would: each function is a question, and returns figures."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from unittest import mock

import torch

from comfyui_otca.tests.comfyui import tiny
from comfyui_otca.tests.comfyui.native.made import TEXTS, Loss, Made, apart, attribute, furthest, make, trainable
from comfyui_otca.tests.comfyui.native.proofs import logged, stock_velocity
from comfyui_otca.tests.comfyui.native.remedies import shared_buffer, torchs_checkpointing, without_frozen_layers
from comfyui_otca.tests.comfyui.tiny.parts import Text, tiny_clip
from comfyui_otca.trainer.families.options import FlowModelError
from comfyui_otca.trainer.memory import fitting
from comfyui_otca.trainer.memory.case import RESERVE, Machine
from comfyui_otca.trainer.native import kernels, suitable
from comfyui_otca.trainer.native.expert import Expert
from comfyui_otca.trainer.native.guard import Tried, WrongGradient
from comfyui_otca.trainer.types import NextRollout

# -- the three silent faults, each with its remedy and without it ------------------------------------------------------------


def checkpointing(family: str) -> dict:
    """The gradient with our checkpointing and with torch's, against the one without any."""
    plain = _gradient(make(family, all_layers=True))
    ours = _gradient(make(family, all_layers=True, checkpointing="on"))
    made = make(family, all_layers=True, checkpointing="on")
    with torchs_checkpointing():
        theirs = _gradient(made)
    return {"with": furthest(ours, plain), "without": furthest(theirs, plain)}


def cast_buffers(family: str, checkpointing: str = "off") -> dict:
    """The gradient where layers share one buffer, against the one where each has its own weights."""
    return _of_shared_buffer(family, without_frozen_layers, checkpointing=checkpointing)


def kernel_scales(family: str) -> dict:
    """The same for norms whose scale a network fetches itself and hands to a kernel: autograd has to keep a copy of it."""
    return _of_shared_buffer(family, lambda: attribute(kernels, "_is_vector", lambda value: False))


def _of_shared_buffer(family: str, fault, **options) -> dict:
    plain, made = _gradient(make(family)), make(family, **options)
    with shared_buffer(made):
        ours = _gradient(made)
        made.model.policy.load_trained_state(make(family).model.policy.trained_state())
        with fault():
            theirs = _gradient(made)
    return {"with": furthest(ours, plain), "without": furthest(theirs, plain)}


def _gradient(made: Made) -> dict[str, torch.Tensor]:
    made.move()
    return Loss(made).gradients()


def unloaded(family: str) -> dict:
    """The velocity after all models were unloaded; the remedy is that the model notices it."""
    import comfy.model_management

    made = make(family)
    made.move()
    loss = Loss(made)
    with torch.no_grad():
        before = loss.velocity()
        with made.model.policy.reference():
            bare = loss.velocity()
        comfy.model_management.unload_all_models()
        with attribute(Expert, "is_ready", True):
            lost = loss.velocity()
        after = loss.velocity()
    return {"with": apart(after, before), "without": apart(lost, before), "without is bare": torch.equal(lost, bare)}


def short_of_memory(family: str, share: float) -> dict:
    """An iteration where a pretend GPU has not the memory for this share of the weights: what ComfyUI put there, by the count and
    in fact, and how far it ends from the same iteration with all of them there."""
    import comfy.model_management as management

    def after(made: Made) -> list[torch.Tensor]:
        made.update(made.sample(seed=0))
        return made.parameters()

    plain, made = make(family), make(family)
    case = made.model.case(made.settings())
    weights, gpu = case.weights_bytes, dataclasses.replace(case, machine=Machine("cuda:0"))
    has = gpu.needs.total - round(share * weights)
    machine = Machine("cuda:0", has, ram=10**12)
    expert = made.model.wrapped["model"]

    def free(device=None, torch_free_too=False):
        size = has - gpu.needs.parts["adapter"] - RESERVE - expert.patcher.loaded_size()
        return (size, size) if torch_free_too else size

    with ExitStack() as stack:
        for owner, name, value in (
            (fitting, "here", lambda device=None: machine),
            (management, "is_device_cpu", lambda device: False),
            (management, "vram_state", management.VRAMState.NORMAL_VRAM),
            (management, "MIN_WEIGHT_MEMORY_RATIO", 0.0),  # NVIDIA's
            (management, "get_free_memory", free),
            (management, "extra_reserved_memory", lambda: 0),
            (management, "minimum_inference_memory", lambda: 0),
        ):
            stack.enter_context(attribute(owner, name, value))
        made.model.memo.keep(fitting.Decisions())
        values = after(made)
        counted = made.model.case(made.settings())
    return {
        "weights": weights,
        "streamed": counted.streamed,
        "there": expert.patcher.loaded_size(),
        "sentence": counted.sentence(has),
        "apart": max((one - other).abs().max().item() for one, other in zip(values, after(plain), strict=True)),
    }


# -- the guard ------------------------------------------------------------------------------------------------------------


def guard(
    family: str, fault: str = "", dtype: str = "float32", quantized: str | None = None, checkpointing: str = "off"
) -> dict:
    """An update with the guard on: what it logs, or how it refuses, and whether anything moved.

    Faults: "checkpointing" (torch's), "cast buffers" (without frozen layers), "scaled" (a gradient 1.3 times too long), "noise"
    (a model whose output jumps, so that differences say nothing).
    """
    build = {"quantized": quantized} if quantized else {"dtype": getattr(torch, dtype)}
    made = make(family, build, checkpointing=checkpointing, check_gradients=True, all_layers=True)
    taken = made.sample(seed=0)
    before = made.parameters()
    found = {"refused": "", "log": []}
    with ExitStack() as stack:
        if fault == "checkpointing":
            stack.enter_context(torchs_checkpointing())
        if fault == "cast buffers":
            stack.enter_context(shared_buffer(made))
            stack.enter_context(without_frozen_layers())
        if fault in ("scaled", "noise"):
            stack.enter_context(_changed(made, fault))
        log = stack.enter_context(logged())
        try:
            made.update(taken)
        except WrongGradient as error:
            found["refused"] = str(error)
        found["log"] = [line for line in log if "differences" in line]
    found["moved"] = not all(map(torch.equal, before, made.parameters()))
    found["checked"] = len(made.model.memo[Tried].forms)
    return found


class _TooLong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.3 * gradient


def _changed(made: Made, fault: str):
    velocity, random = made.model.velocity, torch.Generator().manual_seed(0)

    def scaled(*args):
        return _TooLong.apply(velocity(*args))

    def noisy(*args):
        found = velocity(*args)
        return found + torch.randn(found.shape, generator=random) * found.detach().abs().mean()

    return attribute(made.model, "velocity", scaled if fault == "scaled" else noisy)


# -- refusals -------------------------------------------------------------------------------------------------------------


def refused(name: str) -> dict:
    """What is said of a class of comfy.supported_models, which is made without its network."""
    import comfy.supported_models

    message = _refusal(lambda: suitable.check(_without_network(getattr(comfy.supported_models, name))))
    return {"message": message}


def _without_network(cls):
    import comfy.model_base
    import comfy.model_patcher

    sizes = {"in_channels": 4, "hidden_size": 64, "timestep_features_type": "learned"}
    config = cls({**sizes, **cls.unet_config, "disable_unet_model_creation": True})
    config.set_inference_dtype(torch.float32, None)
    with (
        torch.no_grad(),
        mock.patch.object(comfy.model_base.BaseModel, "get_dtype", lambda core: torch.float32),
        mock.patch.object(comfy.model_base.BaseModel, "diffusion_model", torch.nn.Linear(1, 1), create=True),
        mock.patch.object(torch.nn.Module, "load_state_dict"),
        mock.patch.object(torch.Tensor, "copy_"),
    ):
        core = config.get_model(Anything())
    core.diffusion_model = torch.nn.Linear(1, 1)
    return comfy.model_patcher.ModelPatcher(core, torch.device("cpu"), torch.device("cpu"))


class Anything(dict):
    """A checkpoint's state for classes that take a weight or two from it while they are built."""

    def __missing__(self, key):
        return torch.zeros(1, 768)


def _refusal(act) -> str:
    try:
        act()
    except FlowModelError as error:
        return str(error)
    return ""


def wrong_parts(family: str, vae: str) -> dict:
    """A text encoder whose embeddings are wider, and the autoencoder of another family, as its own and for gradients alone."""
    made = tiny.build(family)
    with_clip = dataclasses.replace(made, clip=tiny_clip(Text(48, pooled=24), 1))
    with_vae = dataclasses.replace(made, vae=tiny.build(vae).vae)
    found = {
        name: _refusal(lambda each=each: trainable(each)) for name, each in (("clip", with_clip), ("vae", with_vae))
    }
    return found | {"decoder": _refusal(trainable(made).model.decoder((), with_vae.vae).__enter__)}


def patched(family: str) -> dict:
    """What is said of a MODEL that carries a LoRA already."""
    made = tiny.build(family)
    model = made.model.clone()
    name, weight = next((key, each) for key, each in model.model.state_dict().items() if each.ndim == 2)
    model.add_patches({name: ("diff", (torch.full(weight.shape, 0.01),))}, 1.0)
    with logged() as lines:
        trainable(dataclasses.replace(made, model=model))
    return {"log": [line for line in lines if "patches" in line]}


class _Strange(torch.Tensor):
    """A tensor whose numbers nobody here can read."""


def strange_weights(family: str) -> dict:
    made = tiny.build(family)
    network = made.model.model.diffusion_model
    name, layer = next((n, m) for n, m in network.named_modules() if isinstance(m, torch.nn.Linear))
    layer.weight = torch.nn.Parameter(layer.weight.detach().as_subclass(_Strange), requires_grad=False)
    return {"message": _refusal(lambda: trainable(made)), "layer": name}


# -- what else can go wrong -------------------------------------------------------------------------------------------------


def experts(family: str) -> dict:
    """Two MODELs of one family: which of them is asked, what is trained of each, and both as tuned MODELs."""
    from comfyui_otca.trainer.native.loading import tuned

    high, low = tiny.build(family, seed=0), tiny.build(family, seed=7)
    both = trainable(high, low_noise=low.model, boundary=0.875)
    alone = [make(family), trainable(dataclasses.replace(high, model=low.model))]
    noise, text = both.noise(1), TEXTS[0]
    found = {}
    for each in (both, *alone):
        each.condition = each.model.condition([text], each.settings())
    with torch.no_grad():
        for sigma, single, name in ((0.9, alone[0], "high"), (0.8, alone[1], "low")):
            one, other = (each.model.velocity(noise, sigma, each.condition, 1.0) for each in (both, single))
            found[name] = apart(one, other)
        found["differ"] = apart(*(each.model.velocity(noise, 0.9, each.condition, 1.0) for each in alone))
    before = both.parameters()
    metrics = both.update(both.sample(steps=6))
    moved = [not torch.equal(a, b) for a, b in zip(before, both.parameters(), strict=True)]
    names = list(both.model.policy.trainable_named())
    found["drift"] = metrics["ratio/drift"]
    found["moved"] = {
        expert: sum(
            is_moved
            for name, is_moved in zip(names, moved, strict=True)
            if name.startswith("low_noise") == (expert == "low")
        )
        for expert in ("high", "low")
    }
    both.condition = both.model.condition([text], both.settings())
    with both.model.policy.averaged(), torch.no_grad():
        own = {sigma: both.model.velocity(noise, sigma, both.condition, 1.0) for sigma in (0.9, 0.8)}
    patchers = tuned(both.model)
    stock = {
        sigma: stock_velocity(both, patchers[name], noise, sigma, text)
        for sigma, name in ((0.9, "model"), (0.8, "low_noise_model"))
    }
    found["tuned"] = max(apart(stock[sigma], own[sigma]) for sigma in own)
    return found


def one_sided(family: str) -> dict:
    """Classifier-free guidance whose negative half has no gradient: that of g·v⁺ alone."""
    guidance = 3.5
    made = make(family)
    made.move()
    made.model.memo.keep(NextRollout(unconditional_gradient=False))
    off = Loss(made, guidance=guidance)
    value, gradient = off.recorded().detach(), off.gradients()
    made.model.memo.keep(NextRollout(unconditional_gradient=True))
    on = off.gradients()
    positive = {name: guidance * each for name, each in Loss(made, guidance=1.0).gradients().items()}
    with torch.no_grad():
        batched = off.velocity()  # without a gradient ComfyUI calls the network once for both halves
    return {"off": furthest(gradient, positive), "on": furthest(on, positive), "apart": apart(value, batched)}


def inference_mode(family: str, dtype: str = "float32", quantized: str | None = None) -> dict:
    """A model that was loaded inside torch.inference_mode, as a node loads it, trained as one that was not."""
    build = {"quantized": quantized} if quantized else {"dtype": getattr(torch, dtype)}
    with torch.inference_mode():
        loaded = tiny.build(family, **build)
        inference = all(p.is_inference() for p in loaded.model.model.diffusion_model.parameters())
    with torch.inference_mode(False):
        inside, outside = trainable(loaded), make(family, build)
        for each in (inside, outside):
            each.update(each.sample(seed=0))
    weights = [p for each in (inside, outside) for p in each.tiny.model.model.diffusion_model.parameters()]
    same = all(map(torch.equal, inside.parameters(), outside.parameters()))
    return {"inference": inference, "same": same, "with a gradient": sum(p.grad is not None for p in weights)}


def ksampler(made: tiny.Tiny) -> torch.Tensor:
    """Latents of three steps of KSampler's euler on the simple schedule, with guidance."""
    import comfy.sample

    noise, prompts = made.noise(made.batch), (made.conditioning(TEXTS[0]), made.conditioning(""))
    arguments = (made.model, noise, 3, 2.0, "euler", "simple", *prompts, torch.zeros_like(noise))
    return comfy.sample.sample(*arguments, disable_pbar=True, seed=0)


def in_use(family: str) -> dict:
    """A KSampler that uses the same MODEL between two updates: it sees the model as it was, and training goes on as if alone."""
    untouched = ksampler(tiny.build(family))
    shared, alone = make(family), make(family)
    between = []
    for each in (alone, shared):
        for seed in range(2):
            taken = each.sample(seed=seed, keep_graph=False)
            if each is shared:
                between.append(ksampler(each.tiny))
            each.update(taken)
            if each is shared:
                between.append(ksampler(each.tiny))
    return {
        "back": all(torch.equal(latents, untouched) for latents in between),
        "same": all(map(torch.equal, alone.parameters(), shared.parameters())),
    }


def kept_graph(family: str, checkpointing: str = "off", mode: str = "") -> dict:
    """An update from the graphs that the rollout kept, against one that computes them again; a KSampler runs in between.

    `mode`: of Reward Gradient Step, which has made one update before.
    """
    found = []
    for keep in (False, True):
        made = make(family, checkpointing=checkpointing)
        made.move()
        for wished in (False, True) if mode else (True,):
            taken = made.sample(
                seed=0, keep_graph=keep and wished, **({"kind": "ode", "shared_noise": False} if mode else {})
            )
            kept = bool(taken.kept)
            ksampler(made.tiny)
            made.follow(taken, mode) if mode else made.update(taken, learning_rate=0.0)
        found.append(
            {name: p.grad.clone() for name, p in made.model.policy.trainable_named().items() if p.grad is not None}
        )
    return {"apart": furthest(*found), "kept": kept}
