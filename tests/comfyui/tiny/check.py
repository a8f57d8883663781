"""Builds every family of this ComfyUI, samples it with KSampler's own code and says what its velocity depends on.

<ComfyUI's python> tests/comfyui/tiny/check.py <ComfyUI's folder> [--only Flux SD3 …]
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from pathlib import Path
from unittest import mock

CAT, DOGS = "a cat", "three dogs in a green field"


def start(comfyui: str) -> None:
    """ComfyUI's packages, on the CPU."""
    sys.path[:0] = [comfyui, str(Path(__file__).resolve().parents[1])]
    sys.argv = sys.argv[:1]
    from comfy.cli_args import args

    args.cpu = True
    logging.disable(logging.ERROR)


def kind(name: str) -> str:
    """What ComfyUI says of a class: the sampling that its model would get, read before a network is built."""
    import comfy.model_base
    import comfy.model_sampling as sampling
    import comfy.supported_models

    def tell(self, model_config, model_type=comfy.model_base.ModelType.EPS, **others):
        raise Told(model_type)

    cls = getattr(comfy.supported_models, name)
    config = cls({"in_channels": 4, "hidden_size": 64, **cls.unet_config})
    with mock.patch.object(comfy.model_base.BaseModel, "__init__", tell):
        try:
            config.get_model(Anything())
        except Told as told:
            found = comfy.model_base.model_sampling(config, told.args[0])
    if isinstance(found, getattr(sampling, "IMG_TO_IMG_FLOW", ())) or not isinstance(found, sampling.CONST):
        return "no flow"
    return "flow" if getattr(found, "noise_scale", 1.0) == 1.0 else "flow, noise scaled"


class Told(Exception):
    """The type of a model, on the way out of its class."""


class Anything(dict):
    """A checkpoint's state for classes that take a weight or two from it while they are built."""

    def __missing__(self, key):
        import torch

        return torch.zeros(1, 768)


def unnamed() -> list[str]:
    """Classes of this ComfyUI that are in neither table, in both, or in the wrong one."""
    import comfy.supported_models
    import tiny

    wrong = []
    for cls in comfy.supported_models.models:
        name = cls.__name__
        ours = [family for family in tiny.FAMILIES if (tiny.FAMILIES[family].of or family) == name]
        if bool(ours) == (name in tiny.NOT):
            wrong.append(f"{name}: in {'both' if ours else 'no'} table")
        reason = tiny.NOT.get(name)
        if reason in (tiny.others.NO_FLOW, tiny.others.COSMOS) and kind(name) != "no flow":
            wrong.append(f"{name}: {reason}, but it is {kind(name)}")
        if ours and kind(name) != "flow":
            wrong.append(f"{name}: in our table, but it is {kind(name)}")
    return wrong


def velocity(made, noise, sigma: float, text: str):
    """The model's velocity by the functions that ComfyUI's samplers call."""
    import comfy.model_management
    import comfy.sampler_helpers
    import comfy.samplers
    import comfy.utils
    import torch

    patcher = made.model
    comfy.model_management.load_models_gpu([patcher])
    patcher.pre_run()
    model, options = patcher.model, patcher.model_options
    shapes = {}
    if getattr(noise, "is_nested", False):
        noise, latent_shapes = comfy.utils.pack_latents(noise.unbind())
        model.latent_shapes = latent_shapes
        shapes = {"latent_shapes": latent_shapes}
    conds = {"positive": comfy.sampler_helpers.convert_cond(made.conditioning(text))}
    conds = comfy.samplers.process_conds(model, noise, conds, noise.device, noise * 0, None, 0, **shapes)
    # Some networks look their noise level up in the schedule, which ComfyUI's samplers put here.
    schedule = torch.tensor([1.0, sigma, 0.0])
    options = {**options, "transformer_options": options["transformer_options"] | {"sample_sigmas": schedule}}
    level = torch.full((len(noise),), sigma)
    clean = comfy.samplers.sampling_function(model, noise, level, None, conds["positive"], 1.0, options)
    return (noise - clean) / sigma


def sample(made):
    """Three steps of KSampler's euler on the simple schedule, with guidance, decoded."""
    import comfy.sample
    import comfy.samplers
    import torch

    noise = made.noise(made.batch)
    empty = noise.unbind() if getattr(noise, "is_nested", False) else [noise]
    latents = [torch.zeros_like(stream) for stream in empty]
    if len(latents) > 1:
        from comfy.nested_tensor import NestedTensor

        latents = NestedTensor(latents)
    else:
        latents = latents[0]
    done = comfy.sample.sample(
        made.model, noise, 3, 2.0, "euler", "simple", made.conditioning(CAT), made.conditioning(""), latents,
        disable_pbar=True, seed=0,
    )  # fmt: skip
    return done.unbind()[0] if getattr(done, "is_nested", False) else done


def apart(one, other) -> float:
    return float((one - other).norm() / one.norm())


def row(name: str, **how) -> str:
    import tiny
    import torch

    began = time.monotonic()
    made = tiny.build(name, **how)
    with torch.no_grad():
        noise = made.noise(1)
        base = velocity(made, noise, 0.7, CAT)
        found = {
            "x": apart(base, velocity(made, made.noise(1, seed=9), 0.7, CAT)),
            "text": apart(base, velocity(made, noise, 0.7, DOGS)),
            "sigma": apart(base, velocity(made, noise, 0.4, CAT)),
        }
        again = apart(base, velocity(made, noise, 0.7, CAT))
        latents = sample(made)
        pixels = made.vae.decode(latents.float())
        if how["dtype"] != torch.float32 or how["quantized"]:  # how far from the weights that it was made of
            found["float32"] = apart(velocity(tiny.build(name), noise, 0.7, CAT), base)
    size = sum(part.numel() for part in made.model.model.diffusion_model.parameters())
    problems = [f"does not depend on {what}" for what, change in found.items() if not change > 1e-5]
    if not (base.isfinite().all() and latents.isfinite().all()):
        problems.append("not finite")
    if again:
        problems.append(f"not repeatable: {again:.1e}")
    if pixels.shape[-3:] != (made.height, made.width, 3) or (made.is_video and pixels.shape[1] != made.frames):
        problems.append(f"pixels {tuple(pixels.shape)}, expected {made.frames} × {made.height} × {made.width}")
    if pixels.min() < 0 or pixels.max() > 1:
        problems.append("pixels outside of [0, 1]")
    changes = " ".join(f"{what} {change:.0e}" for what, change in found.items())
    words = made.conditioning(CAT)[0][0].shape[1], made.conditioning(DOGS)[0][0].shape[1]
    return (
        f"{name:24} {size / 1e6:5.2f}M |v| {float(base.std()):8.2e} {changes} tokens {words} latent {tuple(latents.shape)} "
        f"pixels {tuple(pixels.shape)} {time.monotonic() - began:.1f} s  {'; '.join(problems) or 'ok'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("comfyui")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantized")
    parser.add_argument("--trace", action="store_true")
    asked = parser.parse_args()
    start(asked.comfyui)
    import tiny
    import torch

    failed = unnamed()
    for line in failed:
        print(line)
    for name in asked.only or tiny.families():
        try:
            line = row(name, dtype=getattr(torch, asked.dtype), quantized=asked.quantized)
        except Exception as error:
            line = f"{name:24} {type(error).__name__}: {str(error)[:300]}"
            if asked.trace:
                traceback.print_exc(limit=-4)
        print(line, flush=True)
        if not line.endswith("  ok"):
            failed.append(line)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
