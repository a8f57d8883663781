"""ComfyUI's own nodes between a loader and Make Trainable: is what KSampler would sample what is trained?

`cells` is a question. It puts a node with valid values in front of a tiny model and compares with ComfyUI's own sampler.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from comfyui_otca.tests.comfyui import tiny
from comfyui_otca.tests.comfyui.native.made import TEXTS, Loss, Made, apart, attribute, entries, trainable
from comfyui_otca.tests.comfyui.native.proofs import by_sampler
from comfyui_otca.tests.comfyui.tiny import weights
from comfyui_otca.trainer.families.options import FlowModelError
from comfyui_otca.trainer.native import guard
from comfyui_otca.trainer.native.loading import tuned
from comfyui_otca.trainer.native.model import HIGH, NativeModel

GUIDANCES, NEGATIVES = (0.5, 1.0, 3.5), ("blurry", "")
STEPS, TRIED = 20, (1, 4, 17)  # the levels after so many steps; some nodes act at the first alone, some at the last
LIMIT, STEP_LIMIT, SLOPE_LIMIT = 1e-5, 1e-3, 5e-3
ROUNDED = guard.THRESHOLD  # in place of these where a node has the network compute in bfloat16
LORA = "tried.safetensors"
# Values that a schema cannot give: tiny models have two or three blocks, and two frames of latents.
VALUES = {
    **dict.fromkeys(("layers", "double_layers", "single_layers", "blocks"), "0"),
    **{"lora_name": LORA, "context_overlap": 0, "dim": 2, "backend": "eager"},  # another one compiles for minutes
}


@functools.cache
def nodes() -> dict[str, type]:
    """Every node of ComfyUI's core, with a MODEL in and a MODEL out."""
    import nodes as core

    asyncio.run(core.init_extra_nodes(init_custom_nodes=False, init_api_nodes=False))
    with_model = {}
    for name, cls in core.NODE_CLASS_MAPPINGS.items():
        kinds = [kind for kind, _ in _inputs(cls).values()]
        if "MODEL" in kinds and "MODEL" in cls.RETURN_TYPES:
            with_model[name] = cls
    gc.freeze()  # as in `inside.start`
    return with_model


def _inputs(cls: type) -> dict[str, tuple]:
    given = cls.INPUT_TYPES()
    return {
        name: (entry[0], entry[1] if len(entry) > 1 else {})
        for part in ("required", "optional")
        for name, entry in given.get(part, {}).items()
    }


def cells(family: str, names: list[str] | None = None) -> dict:
    """By node: "trained", "not for it: …" or "refused: …"; else what is off, with figures."""
    made = tiny.build(family)
    with tempfile.TemporaryDirectory() as folder:
        _write_lora(made, Path(folder))
        return {name: cell(made, name) for name in names or sorted(nodes())}


def cell(made: tiny.Tiny, name: str) -> str:
    """At a node's defaults, and with its numbers away from them; `_compared` whole once, at the first that do anything."""
    answers, tried = [], []
    for active in (False, True):
        try:
            values = dict(_values(made, name, active))
            plain_values = {key: value for key, value in values.items() if isinstance(value, int | float | str)}
            if plain_values in tried:
                break
            tried.append(plain_values)
            model = _run(nodes()[name], values)
            theirs, plain = (_at_two_guidances(made, each) for each in (model, made.model))
        except Exception as error:  # whatever a node or its sampler raises: that is what is asked
            told = str(error).splitlines()[0][:80] if str(error) else ""
            answers.append(f"not for it: {type(error).__name__}: {told}")
            continue
        try:
            # Made anew, for it may remember what the stock sampler had.
            ready = trainable(dataclasses.replace(made, model=_run(nodes()[name], values)))
        except FlowModelError as error:
            answers.append(f"refused: {error}")
            continue
        is_idle = max(map(apart, theirs, plain)) == 0
        answers.append("not for it: without effect" if is_idle else _compared(ready, whole="trained" not in answers))
    order = ("not for it", "trained", "refused", "off")
    worst = max(answers, key=lambda answer: order.index(answer.split(":")[0]))
    return f"in part {worst}" if worst.startswith("refused") and "trained" in answers else worst


def _at_two_guidances(made: tiny.Tiny, model) -> list[Tensor]:
    return [velocity for guidance in GUIDANCES[1:] for velocity in stock(made, model, guidance, NEGATIVES[0])]


def _run(cls: type, values: dict, kind: str = "MODEL"):
    """What a node returns of that kind."""
    with torch.inference_mode():
        if hasattr(cls, "EXECUTE_NORMALIZED"):
            result = cls.PREPARE_CLASS_CLONE(None).EXECUTE_NORMALIZED(**values)
            result = getattr(result, "result", result)
        else:
            result = getattr(cls(), cls.FUNCTION)(**values)
    return result[list(cls.RETURN_TYPES).index(kind)]


def _values(made: tiny.Tiny, name: str, active: bool) -> Iterator[tuple[str, object]]:
    """A valid value for each input. `active`: numbers away from their defaults, at which some nodes do nothing."""
    picture = torch.rand((1, made.height, made.width, 3), generator=torch.Generator().manual_seed(4))
    seen = tiny.seeded((1, 20, 9, 8), 7)
    sockets = {
        "MODEL": made.model,
        "CLIP": made.clip,
        "VAE": made.vae,
        "CONDITIONING": made.conditioning("a line"),  # none that is sampled: some nodes divide by the difference
        "IMAGE": picture,
        "MASK": picture[..., 0],
        "LATENT": {"samples": torch.zeros((1, *made.shape))},
        "LATENT_OPERATION": lambda latent, **_: 0.9 * latent,
        "LORA_MODEL": _lora(made),
        "CLIP_VISION_OUTPUT": SimpleNamespace(all_hidden_states=seen, penultimate_hidden_states=seen[:, -2]),
    }
    for key, (kind, options) in _inputs(nodes()[name]).items():
        optional = key in nodes()[name].INPUT_TYPES().get("optional", {})
        if key in VALUES:
            yield key, VALUES[key]
        elif key == "context_length":
            yield key, 1 if made.frames > 1 else made.shape[-1] // 2
        elif kind == "MODEL_PATCH":
            yield key, _patch(made.name)
        elif key == "model2":
            yield key, tiny.build(made.name, seed=3).model
        elif isinstance(kind, list) or kind == "COMBO":
            choices = kind if isinstance(kind, list) else options.get("options", [])
            yield key, options.get("default", choices[-1 if active else 0])
        elif kind in ("FLOAT", "INT") and active and "percent" not in key:
            yield key, _changed(kind, options)
        elif kind in ("FLOAT", "INT", "BOOLEAN", "STRING"):
            yield key, options.get("default", options.get("min", {"BOOLEAN": active, "STRING": ""}.get(kind, 0)))
        elif kind in sockets:
            yield key, sockets[kind]
        elif not optional:
            raise ValueError(f"needs a {kind}")


def _changed(kind: str, options: dict) -> float:
    default, low, high = options.get("default", 0), options.get("min", 0), options.get("max", 1)
    value = min(high, max(low, 0.5 if default == 0 else 0.8 * default))
    return int(default) if kind == "INT" else value


def _lora(made: tiny.Tiny) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(11)
    modules = made.model.model.diffusion_model.named_modules()
    linear = [(name, layer) for name, layer in modules if hasattr(layer, "in_features")]
    state = {}
    for name, layer in linear[2:8]:
        for part, shape in (("A", (2, layer.in_features)), ("B", (layer.out_features, 2))):
            state[f"diffusion_model.{name}.lora_{part}.weight"] = 0.3 * torch.randn(shape, generator=generator)
    return state


def _patch(family: str):
    """A MODEL_PATCH for this family, tiny and with random weights."""
    import comfy.model_patcher
    import comfy.ops
    import comfy_extras.nodes_model_patch as patches
    from comfy.ldm.lumina.controlnet import ZImage_Control

    options = {"operations": comfy.ops.manual_cast}
    kinds = {
        "Flux": lambda: patches.SigLIPMultiFeatProjModel(9, 4, 8, 64, **options),
        "QwenImage": lambda: patches.QwenImageBlockWiseControlNet(2, 64, 0, 64, **options),
        "ZImage": lambda: ZImage_Control(256, 8, 8, ffn_dim_multiplier=0.5, n_control_layers=1, **options),
        "WAN21_T2V": lambda: patches.comfy.ldm.wan.uni3c.WanUni3CControlnet(
            36, 64, 64, 64, 2, 2, 64, 64, 7, 16, **options
        ),
    }
    if family not in kinds:
        raise ValueError("there is no MODEL_PATCH for it")
    network = kinds[family]()
    weights.fill(network, seed=9)
    patcher = getattr(comfy.model_patcher, "CoreModelPatcher", comfy.model_patcher.ModelPatcher)
    return patcher(network, torch.device("cpu"), torch.device("cpu"))


def _write_lora(made: tiny.Tiny, folder: Path) -> None:
    import folder_paths
    from safetensors.torch import save_file

    save_file(_lora(made), folder / LORA)
    folder_paths.folder_names_and_paths["loras"] = ([str(folder)], {".safetensors"})
    folder_paths.filename_list_cache.clear()


def stock(made: tiny.Tiny, model, guidance: float, negative: str) -> list[Tensor]:
    """ComfyUI's own sampler as the truth: the velocities at three levels."""
    import comfy.samplers

    schedule = comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), "simple", STEPS)
    x = torch.randn((1, *made.shape), generator=torch.Generator().manual_seed(5))
    positive = made.conditioning(TEXTS[0])
    if model.model.model_config.unet_config.get("guidance_embed"):
        positive, guidance = [[cond, {"guidance": guidance, **keys}] for cond, keys in positive], 1.0
    return by_sampler(model, x, schedule[list(TRIED)], schedule, positive, made.conditioning(negative), guidance)


def _compared(made: Made, whole: bool) -> str:
    """What does not hold of a model that was made trainable; without `whole` of its velocities alone."""
    given, wrong = made.tiny, {}
    for guidance in GUIDANCES:
        for negative in NEGATIVES if whole else NEGATIVES[:1]:
            theirs = stock(given, given.model, guidance, negative)
            ours, name = _velocities(made, guidance, negative), f"velocity at {guidance:g}"
            wrong[name] = max(wrong.get(name, 0), *map(apart, ours, theirs))
    wrong["second trajectory"] = max(map(apart, _velocities(made, guidance, negative), ours))
    wrong["rows"] = _rows(made)
    limits = dict.fromkeys((*wrong, "Tuned Model"), LIMIT)
    if whole:
        wrong["Tuned Model"] = _tuned(made)
        wrong["gradient"], limits["gradient"] = _slope(made), SLOPE_LIMIT
        wrong["batch_size"], limits["batch_size"] = _steps(given), STEP_LIMIT
    if made.model.dtype != torch.float32:
        limits = dict.fromkeys(wrong, ROUNDED)
    off = [f"{key} {value:.2g}" for key, value in wrong.items() if not value <= limits[key]]
    return f"off: {', '.join(off)}" if off else "trained"


@torch.no_grad()
def _velocities(made: Made, guidance: float, negative: str) -> list[Tensor]:
    settings = made.settings(guidance=guidance, negative_prompt=negative, steps=STEPS)
    condition, x, levels = made.model.condition([TEXTS[0]], settings), made.noise(1), made.model.sigmas(settings)
    return [made.model.with_frames(made.model.velocity(x, levels[step], condition, guidance)) for step in TRIED]


@torch.no_grad()
def _rows(made: Made) -> float:
    """Two prompts of different length at two levels, and at one, in one call against single calls."""
    settings = made.settings(guidance=3.5, steps=STEPS)
    both, x, worst = made.model.condition(TEXTS, settings), made.noise(2), 0.0
    levels = made.model.sigmas(settings)
    for pair in ((levels[1], levels[17]), (levels[1], levels[1]), (levels[17], levels[2])):
        together = made.model.velocity(x, torch.tensor(pair, dtype=torch.float64), both, 3.5)
        for row, level in enumerate(pair):
            alone = made.model.velocity(x[row : row + 1], level, both.rows(torch.tensor([row])), 3.5)
            worst = max(worst, apart(together[row : row + 1], alone))
    return worst


def _slope(made: Made) -> float:
    if made.model.dtype != torch.float32:  # where numbers one by one move nothing
        return guard.compare(made.model, made.model.wrapped[HIGH], made.sample(guidance=3.5), 0).error
    made.move()
    loss = Loss(made, guidance=3.5)
    gradients = loss.gradients()
    errors = []
    for place in entries(gradients):
        derivative, slope = gradients[place[0]].flatten()[place[1]].item(), loss.slope(*place)
        errors.append(abs(derivative - slope) / max(abs(derivative), abs(slope)))
    return max(errors)


def _tuned(made: Made) -> float:
    made.move()
    [patched] = tuned(made.model).values()
    theirs = stock(made.tiny, patched, 3.5, NEGATIVES[0])
    return max(map(apart, _velocities(made, 3.5, NEGATIVES[0]), theirs))


def _steps(given: tiny.Tiny) -> float:
    """How far the step of an update with three rows in a call is from that with one."""
    found = []
    for size in (1, 3):
        made = trainable(given, check_gradients=False)
        taken = made.sample(guidance=3.5, batch_size=0)
        made.update(taken, batch_size=size, sampled_steps=2, ema_decay=0.0, learning_rate=1e-3)
        gradient = [p.grad.flatten() for p in made.model.policy.trainable_parameters() if p.grad is not None]
        found.append(torch.cat(gradient))
    return apart(*found)


# -- a node of another pack --------------------------------------------------------------------------------------------------


class StrangeNode:
    """Hooks that no ComfyUI has: each is wrong in another way where a call holds several samples, or in all calls."""

    FUNCTION = "patch"

    def patch(self, model, kind: str):
        before: list[Tensor] = []

        def mixes(args: dict) -> Tensor:
            return args["denoised"] + args["denoised"].mean(0, keepdim=True)

        def first_level(args: dict) -> Tensor:
            return args["denoised"] * (1 + args["sigma"].flatten()[0])

        def at_a_few_levels(args: dict) -> Tensor:
            return mixes(args) if 0.55 < args["sigma"].flatten()[0] < 0.65 else args["denoised"]

        def remembers(args: dict) -> Tensor:
            before.append(args["denoised"])
            return before[-1] + 0.1 * before[-2] if len(before) > 1 else before[-1]

        def draws(args: dict) -> Tensor:
            return args["denoised"] + 0.1 * torch.randn(args["denoised"].shape)

        def raises(args: dict) -> Tensor:
            raise ValueError("three rows are wanted")

        kinds = (mixes, first_level, at_a_few_levels, remembers, draws, raises)
        patched = model.clone()
        patched.set_model_sampler_post_cfg_function(next(each for each in kinds if each.__name__ == kind))
        return (patched,)


def strange(family: str, kind: str) -> dict:
    """What is made of such a node: refused in which words, or how far a batch is from single calls; and the trial's calls."""
    import nodes as core

    made, calls = tiny.build(family), []
    velocity, name = NativeModel.velocity, "StrangeNode"

    def counted(*call):
        calls.append(call)
        return velocity(*call)

    core.NODE_CLASS_MAPPINGS[name], core.NODE_DISPLAY_NAME_MAPPINGS[name] = StrangeNode, "Strange Guidance"
    model = StrangeNode().patch(made.model, kind)[0] if kind else made.model
    try:
        with attribute(NativeModel, "velocity", counted):
            other = trainable(dataclasses.replace(made, model=model))
    except FlowModelError as error:
        return {"refused": str(error), "calls": len(calls)}
    finally:
        del core.NODE_CLASS_MAPPINGS[name], core.NODE_DISPLAY_NAME_MAPPINGS[name]
    return {"refused": "", "calls": len(calls), "rows": _rows(other), "alone": other.model.wrapped["model"].is_alone}


def conditioned(family: str) -> dict:
    """By node that changes a CONDITIONING: how Make Trainable refuses it; empty where it takes it along."""
    import nodes as core

    made, found = tiny.build(family), {}
    plain = made.conditioning("")
    mask, kept = torch.ones(1, 8, 8), ("control", "gligen", "hooks", "attention_mask", "unclip_conditioning")
    changed = {
        "area": core.ConditioningSetArea().append(plain, 64, 64, 0, 0, 1.0)[0],
        "mask": core.ConditioningSetMask().append(plain, mask, "default", 1.0)[0],
        "time": core.ConditioningSetTimestepRange().set_range(plain, 0.0, 0.5)[0],
        "style": [[torch.cat([plain[0][0]] * 2, 1), plain[0][1]]],
        "two": core.ConditioningCombine().combine(plain, plain)[0],
        **{key: [[plain[0][0], {**plain[0][1], key: object()}]] for key in kept},
    }
    for name, conditioning in changed.items():
        try:
            trainable(made, conditioning=conditioning)
            found[name] = ""
        except FlowModelError as error:
            found[name] = str(error)
    return found


def taken_along(family: str) -> dict:
    """By node that changes a CONDITIONING: how far our velocity is from KSampler's, and KSampler's from that without the node."""
    import nodes as core

    nodes()
    made, found = tiny.build(family), {}
    plain, without = made.conditioning(""), _at_two_guidances(made, made.model)
    for name, values in {
        "ReferenceLatent": {"latent": {"samples": made.noise()}},
        "FluxGuidance": {"guidance": 2.0},
        "FluxDisableGuidance": {},
        "ConditioningZeroOut": {},
    }.items():
        [[_, keys]] = _run(core.NODE_CLASS_MAPPINGS[name], {"conditioning": plain, **values}, "CONDITIONING")
        given = dataclasses.replace(made, extra={key: keys[key] for key in keys.keys() - plain[0][1].keys()})
        other, theirs = trainable(given), _at_two_guidances(given, made.model)
        ours = [velocity for guidance in GUIDANCES[1:] for velocity in _velocities(other, guidance, NEGATIVES[0])]
        found[name] = [max(map(apart, ours, theirs)), max(map(apart, theirs, without))]
    return found
