"""ComfyUI's own nodes between a loader and Make Trainable: is what KSampler would sample what is trained?

`cells` is a question. It puts a node with valid values in front of a tiny model and compares with ComfyUI's own sampler.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from comfyui_otca.tests.comfyui import tiny
from comfyui_otca.tests.comfyui.native.made import TEXTS, Loss, Made, apart, attribute, entries, trainable
from comfyui_otca.trainer.families.options import FlowModelError
from comfyui_otca.trainer.native.loading import tuned
from comfyui_otca.trainer.native.model import NativeModel

GUIDANCES, NEGATIVES = (0.5, 1.0, 3.5), ("blurry", "")
STEPS, TRIED = 20, (1, 4, 12)  # the levels after so many steps; the first is where layers are skipped
LIMIT, SLOPE_LIMIT = 1e-5, 5e-3
LORA = "otca_tried.safetensors"
# Values that a schema cannot give: tiny models have two or three blocks.
LAYERS = {"layers": "0", "double_layers": "0", "single_layers": "0", "blocks": "0"}


@functools.cache
def nodes() -> dict[str, type]:
    """Every node of ComfyUI's core, with a MODEL in and a MODEL out."""
    import nodes as core

    found = core.init_extra_nodes(init_custom_nodes=False, init_api_nodes=False)
    asyncio.run(found)
    with_model = {}
    for name, cls in core.NODE_CLASS_MAPPINGS.items():
        kinds = [kind for kind, _ in _inputs(cls).values()]
        if "MODEL" in kinds and "MODEL" in cls.RETURN_TYPES:
            with_model[name] = cls
    return with_model


def named(_: str = "") -> dict:
    return {"nodes": sorted(nodes())}


def _inputs(cls: type) -> dict[str, tuple]:
    given = cls.INPUT_TYPES()
    return {
        name: (entry[0], entry[1] if len(entry) > 1 else {})
        for part in ("required", "optional")
        for name, entry in given.get(part, {}).items()
    }


def cells(family: str, names: list[str] | None = None, full: bool = True) -> dict:
    """By node: "trained", "not for it: …" or "refused: …"; else what is off, with figures. `full`: also by steps of an update."""
    made = tiny.build(family)
    with tempfile.TemporaryDirectory() as folder:
        _write_lora(made, Path(folder))
        return {name: cell(made, name, full) for name in names or sorted(nodes())}


def cell(made: tiny.Tiny, name: str, full: bool) -> str:
    answers = []
    for active in (False, True):
        try:
            values = dict(_values(made, name, active))
            model = _run(nodes()[name], values)
            stock, plain = (Stock(made, each, GUIDANCES[-1])(NEGATIVES[0]) for each in (model, made.model))
        except Exception as error:  # whatever a node or its sampler raises: that is what is asked
            answers.append(
                f"not for it: {type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"
            )
            continue
        try:
            # Made anew, for it may remember what the stock sampler had.
            ready = trainable(dataclasses.replace(made, model=_run(nodes()[name], values)))
        except FlowModelError as error:
            answers.append(f"refused: {error}")
            continue
        is_idle = max(map(apart, stock, plain)) == 0
        answers.append("not for it: without effect" if is_idle else _compared(ready, full))
    return max(answers, key=lambda answer: ("not for it", "trained", "refused", "off").index(answer.split(":")[0]))


def _run(cls: type, values: dict):
    """The MODEL that a node returns."""
    with torch.inference_mode():
        if hasattr(cls, "EXECUTE_NORMALIZED"):
            result = cls.PREPARE_CLASS_CLONE(None).EXECUTE_NORMALIZED(**values)
            result = getattr(result, "result", result)
        else:
            result = getattr(cls(), cls.FUNCTION)(**values)
    return result[list(cls.RETURN_TYPES).index("MODEL")]


def _values(made: tiny.Tiny, name: str, active: bool) -> Iterator[tuple[str, object]]:
    """A valid value for each input. `active`: numbers away from their defaults, at which some nodes do nothing."""
    picture = torch.rand((1, made.height, made.width, 3), generator=torch.Generator().manual_seed(4))
    sockets = {
        "MODEL": made.model,
        "CLIP": made.clip,
        "VAE": made.vae,
        "CONDITIONING": made.conditioning(TEXTS[1]),
        "IMAGE": picture,
        "MASK": picture[..., 0],
        "LATENT": {"samples": torch.zeros((1, *made.shape))},
        "LATENT_OPERATION": lambda latent, **_: 0.9 * latent,
        "LORA_MODEL": _lora(made),
    }
    for key, (kind, options) in _inputs(nodes()[name]).items():
        optional = key in nodes()[name].INPUT_TYPES().get("optional", {})
        if key in LAYERS:
            yield key, LAYERS[key]
        elif key == "lora_name":
            yield key, LORA
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
    linear = [
        (name, layer)
        for name, layer in made.model.model.diffusion_model.named_modules()
        if hasattr(layer, "in_features")
    ]
    state = {}
    for name, layer in linear[2:8]:
        for part, shape in (("A", (2, layer.in_features)), ("B", (layer.out_features, 2))):
            state[f"diffusion_model.{name}.lora_{part}.weight"] = 0.3 * torch.randn(shape, generator=generator)
    return state


def _write_lora(made: tiny.Tiny, folder: Path) -> None:
    import folder_paths
    from safetensors.torch import save_file

    save_file(_lora(made), folder / LORA)
    folder_paths.folder_names_and_paths["loras"] = ([str(folder)], {".safetensors"})
    folder_paths.filename_list_cache.clear()


class Stock:
    """ComfyUI's own sampler as the truth: `Stock(…)(negative)` are the velocities at three levels, in one sampling."""

    def __init__(self, made: tiny.Tiny, model, guidance: float):
        self.made, self.model, self.guidance = made, model, guidance
        self.embedded = bool(model.model.model_config.unet_config.get("guidance_embed"))
        self.x = torch.randn((1, *made.shape), generator=torch.Generator().manual_seed(5))

    def __call__(self, negative: str) -> list[Tensor]:
        import comfy.sample
        import comfy.samplers

        sigmas = comfy.samplers.calculate_sigmas(self.model.get_model_object("model_sampling"), "simple", STEPS)
        found: list[Tensor] = []

        def sample(model, noise, sigmas, extra_args=None, **_):
            for level in sigmas[list(TRIED)]:
                clean = model(self.x, level * torch.ones(1), **extra_args)
                found.append((self.x - clean) / level)
            return noise

        positive = self.made.conditioning(TEXTS[0])
        if self.embedded:
            positive = [[embedding, {**keys, "guidance": self.guidance}] for embedding, keys in positive]
        comfy.sample.sample_custom(
            *(self.model, self.x, 1.0 if self.embedded else self.guidance, comfy.samplers.KSAMPLER(sample), sigmas),
            *(positive, self.made.conditioning(negative), torch.zeros_like(self.x)),
            disable_pbar=True,
            seed=0,
        )
        return found


def _compared(made: Made, full: bool) -> str:
    """What does not hold of a model that was made trainable."""
    given, wrong = made.tiny, {}
    for guidance in GUIDANCES:
        for negative in NEGATIVES:
            theirs = Stock(given, given.model, guidance)(negative)
            ours, again = (_velocities(made, guidance, negative) for _ in range(2))
            wrong[f"velocity at {guidance:g}"] = max(
                wrong.get(f"velocity at {guidance:g}", 0), *map(apart, ours, theirs)
            )
            wrong["second trajectory"] = max(wrong.get("second trajectory", 0), *map(apart, again, ours))
    wrong["rows"] = _rows(made)
    wrong["Tuned Model"] = _tuned(made)
    limits = dict.fromkeys(wrong, LIMIT)
    wrong["gradient"], limits["gradient"] = _slope(made), SLOPE_LIMIT
    if full:
        wrong["batch_size"], limits["batch_size"] = _steps(given), 1e-3
    off = [f"{key} {value:.2g}" for key, value in wrong.items() if not value <= limits[key]]
    return f"off: {', '.join(off)}" if off else "trained"


@torch.no_grad()
def _velocities(made: Made, guidance: float, negative: str) -> list[Tensor]:
    settings = made.settings(guidance=guidance, negative_prompt=negative, steps=STEPS)
    condition, x, levels = made.model.condition([TEXTS[0]], settings), made.noise(1), made.model.sigmas(settings)
    return [made.model._with_frames(made.model.velocity(x, levels[step], condition, guidance)) for step in TRIED]


@torch.no_grad()
def _rows(made: Made) -> float:
    """Two samples at two levels, and two at one, in one call against single calls."""
    settings = made.settings(guidance=3.5, steps=STEPS)
    condition, x = made.model.condition([TEXTS[0]], settings), made.noise(2)
    both, worst = condition.rows(torch.zeros(2, dtype=torch.int64)), 0.0
    levels = made.model.sigmas(settings)
    for pair in ((levels[1], levels[12]), (levels[1], levels[1]), (levels[12], levels[2])):
        together = made.model.velocity(x, torch.tensor(pair, dtype=torch.float64), both, 3.5)
        for row, level in enumerate(pair):
            alone = made.model.velocity(x[row : row + 1], level, condition, 3.5)
            worst = max(worst, apart(together[row : row + 1], alone))
    return worst


def _slope(made: Made) -> float:
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
    theirs = Stock(made.tiny, patched, 3.5)(NEGATIVES[0])
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
    mask, hooked = torch.ones(1, 8, 8), [[plain[0][0], {**plain[0][1], "hooks": object()}]]
    changed = {
        "area": core.ConditioningSetArea().append(plain, 64, 64, 0, 0, 1.0)[0],
        "mask": core.ConditioningSetMask().append(plain, mask, "default", 1.0)[0],
        "time": core.ConditioningSetTimestepRange().set_range(plain, 0.0, 0.5)[0],
        "two": core.ConditioningCombine().combine(plain, plain)[0],
        "control": [[plain[0][0], {**plain[0][1], "control": object(), "control_apply_to_uncond": True}]],
        "gligen": [[plain[0][0], {**plain[0][1], "gligen": ("position", object(), [])}]],
        "hooks": hooked,
        "unclip": [[plain[0][0], {**plain[0][1], "unclip_conditioning": []}]],
    }
    for name, conditioning in changed.items():
        try:
            trainable(made, conditioning=conditioning)
            found[name] = ""
        except FlowModelError as error:
            found[name] = str(error)
    return found
