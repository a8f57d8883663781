"""Samples the finished world with plain diffusers and judges it: accuracy by pixels, and what shapes-clip makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import FluxPipeline
from diffusers.pipelines.flux.pipeline_output import FluxPipelineOutput
from PIL import Image
from transformers import CLIPModel, CLIPProcessor

from ...trainer.rewards.shapes import parse_caption, recognise
from .draw import SIZE
from .tokenizers import CAPTION_TOKENS, captions


@torch.no_grad()
def check(folder: Path, steps: int = 16) -> None:
    pipeline = FluxPipeline.from_pretrained(folder / "shapes-flux", torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    output = pipeline(
        captions(),
        height=SIZE,
        width=SIZE,
        num_inference_steps=steps,
        max_sequence_length=CAPTION_TOKENS,
        generator=torch.Generator().manual_seed(0),
        output_type="np",
    )
    assert isinstance(output, FluxPipelineOutput)  # a tuple only with return_dict=False
    pictures = np.asarray(output.images)
    seen, asked = [recognise(picture) for picture in pictures], [parse_caption(text) for text in captions()]
    for part in ("color", "shape", "background"):
        print(
            f"{part}: {np.mean([getattr(s, part) == getattr(a, part) for s, a in zip(seen, asked, strict=True)]):.3f} right"
        )
    print(f"all three: {np.mean([s == a for s, a in zip(seen, asked, strict=True)]):.3f} right")
    clip = CLIPModel.from_pretrained(folder / "shapes-clip")
    processor = CLIPProcessor.from_pretrained(folder / "shapes-clip")
    images = [Image.fromarray((255 * picture).round().astype(np.uint8)) for picture in pictures]
    padded = processor(text=captions(), images=images, padding="max_length", max_length=77, return_tensors="pt")  # pyright: ignore[reportCallIssue]  # the tokenizer's arguments
    logits = clip.float()(**padded).logits_per_image / clip.logit_scale.exp()
    first = (logits.argmax(1) == torch.arange(len(images))).float().mean()
    print(f"cosine to the own caption {logits.diag().mean():.3f}, to all {logits.mean():.3f}; top-1 {first:.3f}")
    rows = [np.concatenate(list(pictures[i : i + 21]), 1) for i in range(0, 168, 21)]
    grid = Image.fromarray((255 * np.concatenate(rows)).round().astype(np.uint8))
    grid.resize((grid.width * 2, grid.height * 2), Image.Resampling.NEAREST).save(folder / "check.png")
    print(f"pictures: {folder / 'check.png'}")
