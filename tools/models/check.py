"""Samples the finished world with plain diffusers and judges it: accuracy by pixels, and what the world's CLIP makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import FluxPipeline
from diffusers.pipelines.flux.pipeline_output import FluxPipelineOutput
from PIL import Image
from transformers import CLIPModel, CLIPProcessor

from .draw import SIZE
from .worlds import CLIP_TOKENS, World


@torch.no_grad()
def check(world: World, folder: Path, steps: int = 16) -> None:
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
