"""`python -m comfyui_otca.tools.models`: trains the embedded models again, from nothing but this folder.

On two CPU cores the shapes world takes about half an hour, the scenes world longer. `--world edit` takes twenty minutes on top of
the shapes world's models. A flow goes on where it was stopped.
`--only clip|flux` makes one of its models, `--check` samples from what is there, `--round` makes that smaller in an archive.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from diffusers import FluxPipeline
from diffusers.pipelines.flux.pipeline_output import FluxPipelineOutput
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPModel, CLIPProcessor

from . import clip as clips
from . import edits
from . import flux as fluxes
from .draw import SIZE
from .worlds import CLIP_TOKENS, EDITS, WORLDS, World, drawings

ASSETS = Path(__file__).resolve().parents[2] / "assets"
LEVELS = 16


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m comfyui_otca.tools.models", description=__doc__)
    parser.add_argument(
        "--world", choices=[*WORLDS, EDITS.name], default="shapes", help="the world whose models are made"
    )
    parser.add_argument("--only", choices=["clip", "flux"], help="make just one of the two models")
    parser.add_argument(
        "--check", action="store_true", help="make nothing: sample every caption and judge the pictures"
    )
    parser.add_argument("--round", action="store_true", help="make nothing: round the weights, which a new model's are")
    parser.add_argument("--output", type=Path, default=ASSETS, help="folder that receives WORLD-clip and WORLD-flux")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=float, default=1.0, help="factor on every number of training steps")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.world == EDITS.name:
        make_edits(args)
        return
    world = WORLDS[args.world]
    clip, flux = args.output / f"{world.name}-clip", args.output / f"{world.name}-flux"
    if args.check:
        check(world, args.output)
        return
    if args.round:
        round_weights(clip, flux)
        return
    torch.manual_seed(0)
    data = drawings(world, per_caption=96, seed=0)
    if args.only != "flux":
        clips.train(data, clip, steps=round(1500 * args.steps))
    if args.only != "clip":
        vae = fluxes.train_vae(data, steps=round(2500 * args.steps))
        careless = drawings(world, per_caption=96, seed=1, careless=True) if world.careless else None
        fluxes.train_flow(data, careless, vae, clip, flux, steps=round(world.steps * args.steps))
    round_weights(*(folder for folder, other in ((clip, "flux"), (flux, "clip")) if args.only != other))


def make_edits(args: argparse.Namespace) -> None:
    """The edit model and its prompts, on top of the shapes world's FLUX."""
    flux = args.output / f"{EDITS.name}-flux"
    if not (args.check or args.round):
        torch.manual_seed(0)
        edits.write_prompts(ASSETS / "prompts")
        edits.train_edits(ASSETS / "shapes-flux", flux, steps=round(EDITS.steps * args.steps))
    if not args.check:
        round_weights(flux)
    edits.check(flux)


def round_weights(*folders: Path) -> None:
    """Rounds each row of each matrix to multiples of a power of two, about LEVELS to its standard deviation. They stay float16,
    2 % from what they were, which is less than a training's seed changes; an archive holds them in 8 bits each and not in 15.
    """
    for path in (path for folder in folders for path in sorted(folder.rglob("*.safetensors"))):
        save_file({name: _rounded(tensor) for name, tensor in load_file(path).items()}, path, {"format": "pt"})


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 2:  # biases and gains, which are few
        return tensor
    rows = tensor.float().flatten(1)
    step = torch.exp2(torch.log2(rows.square().mean(1, keepdim=True).sqrt().clamp_min(1e-8) / LEVELS).round())
    return ((rows / step).round() * step).reshape(tensor.shape).to(tensor.dtype)


@torch.no_grad()
def check(world: World, folder: Path, steps: int = 16) -> None:
    """Samples the finished world with plain diffusers: accuracy by pixels, and what the world's CLIP makes of the pictures."""
    captions = world.captions
    pipeline = FluxPipeline.from_pretrained(folder / f"{world.name}-flux", torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    output = pipeline(
        captions,
        height=SIZE,
        width=SIZE,
        num_inference_steps=steps,
        max_sequence_length=world.caption_tokens,
        generator=torch.Generator().manual_seed(0),
        output_type="np",
    )
    assert isinstance(output, FluxPipelineOutput)  # a tuple only with return_dict=False
    pictures = np.asarray(output.images)
    kinds = [world.category(scene) for scene in world.scenes]
    right = np.array([world.judge(picture, text) for picture, text in zip(pictures, captions, strict=True)])
    for kind in dict.fromkeys(kinds):
        print(f"{kind}: {right[[other == kind for other in kinds]].mean():.3f} right")
    print(f"mean: {right.mean():.3f}")
    clip = CLIPModel.from_pretrained(folder / f"{world.name}-clip")
    processor = CLIPProcessor.from_pretrained(folder / f"{world.name}-clip")
    images = [Image.fromarray((255 * picture).round().astype(np.uint8)) for picture in pictures]
    padded = processor(text=captions, images=images, padding="max_length", max_length=CLIP_TOKENS, return_tensors="pt")  # pyright: ignore[reportCallIssue]  # the tokenizer's arguments
    logits = clip.float()(**padded).logits_per_image / clip.logit_scale.exp()
    first = (logits.argmax(1) == torch.arange(len(images))).float().mean()
    print(f"cosine to the own caption {logits.diag().mean():.3f}, to all {logits.mean():.3f}; top-1 {first:.3f}")
    rows = [np.concatenate(list(pictures[i : i + 21]), 1) for i in range(0, len(pictures) // 21 * 21, 21)]
    grid = Image.fromarray((255 * np.concatenate(rows)).round().astype(np.uint8))
    grid.resize((grid.width * 2, grid.height * 2), Image.Resampling.NEAREST).save(folder / "check.png")
    print(f"pictures: {folder / 'check.png'}")


if __name__ == "__main__":
    main()
