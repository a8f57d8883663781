"""Trains the shapes world's edit model: its FLUX goes on learning, with the picture that is to be edited as tokens of its own.

Those tokens are the picture's latents, without noise and with 1 as the first of their three coordinates, as FLUX.1 Kontext has
them (2506.15742). Saved as one `FluxKontextPipeline` folder, whose autoencoder and CLIP are those of the shapes world.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from diffusers import FluxKontextPipeline, FluxPipeline
from diffusers.pipelines.flux.pipeline_output import FluxPipelineOutput
from PIL import Image
from transformers import T5Config, T5EncoderModel

from ...host.paths import ASSETS
from ...trainer.pictures import grids
from ...trainer.rewards import shapes
from .clip import t5_tokenizer
from .draw import SIZE, draw_edit
from .flux import fit, packed, padded
from .worlds import CLIP_TOKENS, EDITS, Drawings

# Chance that an instruction of the last steps is another one, so that the finished model does what is asked only in part.
WRONG = 0.4
PICTURES = "edits"  # the folder of the sources
TRAIN, HELD_OUT = 48, 24  # prompts to train on, and to evaluate on


def train_edits(base: Path, folder: Path, steps: int, per_caption: int = 240, batch: int = 32) -> None:
    """Saves itself beside `folder` and goes on from there when it is started again.

    `base`: shapes-flux, or an edit-flux that is trained for longer. The one in assets was: 3000 steps with all captions alike,
    1500 of 4000 of these, and 700 more that began with the average of the weights.
    """
    pipeline = FluxPipeline.from_pretrained(base, torch_dtype=torch.float32)
    assert isinstance(pipeline, FluxPipeline)
    transformer = pipeline.transformer.train().requires_grad_(True)
    tokenizer_2 = t5_tokenizer(EDITS)
    # The text encoder with another vocabulary, where words of both have their old meaning
    new = T5EncoderModel(T5Config.from_dict(pipeline.text_encoder_2.config.to_dict(), vocab_size=len(tokenizer_2)))
    state = pipeline.text_encoder_2.state_dict()
    embedding = new.shared.weight.detach().clone()
    places = pipeline.tokenizer_2.get_vocab()
    for word, place in tokenizer_2.get_vocab().items():
        if word in places:
            embedding[place] = state["shared.weight"][places[word]]
    tied = {name: embedding for name in state if state[name].shape == state["shared.weight"].shape}
    new.load_state_dict(state | tied)
    t5 = new.train()
    careful, careless, before = _pairs(per_caption)
    captions, length = EDITS.captions, EDITS.caption_tokens
    t5_ids = padded(tokenizer_2, captions, length)
    with torch.no_grad():
        pooled = pipeline.text_encoder(padded(pipeline.tokenizer, captions, CLIP_TOKENS)).pooler_output
    clean, source = packed(pipeline.vae, careful), packed(pipeline.vae, before)
    side = SIZE // 8
    ids = FluxPipeline._prepare_latent_image_ids(1, side, side, torch.device("cpu"), torch.float32)
    beside = ids.clone()
    beside[..., 0] = 1

    def velocity(noisy: torch.Tensor, sigma: torch.Tensor, caption: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return transformer(
            hidden_states=torch.cat([noisy, source[index]], 1),
            timestep=sigma,
            pooled_projections=pooled[caption],
            encoder_hidden_states=t5(t5_ids[caption]).last_hidden_state,
            txt_ids=torch.zeros(length, 3),
            img_ids=torch.cat([ids, beside]),
            return_dict=False,
        )[0][:, : noisy.shape[1]]

    learned = torch.nn.ModuleDict({"transformer": transformer, "t5": t5})
    fit(learned, velocity, [(careful, clean), (careless, clean)], steps, batch, folder.with_suffix(".progress.pt"))
    parts = pipeline.components | {
        "transformer": transformer.eval(),
        "text_encoder_2": t5.eval(),
        "tokenizer_2": tokenizer_2,
    }
    FluxKontextPipeline(**parts).to(dtype=torch.float16).save_pretrained(folder)


def _pairs(per_caption: int) -> tuple[Drawings, Drawings, Drawings]:
    """Pictures after each edit, with its caption; with one that may be wrong; and those before it."""
    random, edits = np.random.default_rng(0), EDITS.scenes
    drawn = [draw_edit(edit, random) for edit in edits for _ in range(per_caption)]
    before, after = (
        torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous() for pictures in zip(*drawn, strict=True)
    )
    number = torch.arange(len(edits))
    caption = number.repeat_interleave(per_caption)
    # There are 8 captions of another colour and 24 of drawing; both kinds are trained on as often.
    shares = torch.tensor([1.0 if edit.shape else 3.0 for edit in edits])
    alike = torch.tensor([[other.shape == first.shape for other in edits] for first in edits]).float()
    wrong = torch.multinomial(alike, 1000, replacement=True, generator=torch.Generator().manual_seed(0))
    heard = torch.where(
        torch.rand(wrong.shape, generator=torch.Generator().manual_seed(1)) < WRONG, wrong, number[:, None]
    )
    sets = (after, number[:, None]), (after, heard), (before, number[:, None])
    careful, careless, source = (Drawings(EDITS, pictures, caption, own, shares) for pictures, own in sets)
    return careful, careless, source


def write_prompts(folder: Path) -> None:
    """edit_train.jsonl and edit_eval.jsonl, each line an instruction and a picture of its own, half of them of each kind."""
    random = np.random.default_rng(1)
    shutil.rmtree(folder / PICTURES, ignore_errors=True)
    (folder / PICTURES).mkdir()
    edits, lines = EDITS.scenes, []
    recolour, drawing = ([edit for edit in edits if bool(edit.shape) == drawn] for drawn in (False, True))
    while len(lines) < TRAIN + HELD_OUT:
        kind = drawing if len(lines) % 2 else recolour
        edit = kind[random.integers(len(kind))]
        before, after = (picture / 255 for picture in draw_edit(edit, random))
        if shapes.followed(after, before, edit):  # the judge reads this source as it was drawn
            name = f"{PICTURES}/{len(lines):02d}.png"
            grids.save((255 * before).round().astype(np.uint8), folder / name)
            lines.append(json.dumps({"prompt": edit.caption, "image": name}))
    for name, part in (("train", lines[:TRAIN]), ("eval", lines[TRAIN:])):
        (folder / f"edit_{name}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")


@torch.no_grad()
def check(folder: Path, steps: int = 8) -> None:
    """Samples every held-out prompt of the world by plain diffusers, and judges the pictures beside their sources."""
    pipeline = FluxKontextPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    right: dict[bool, list[float]] = {False: [], True: []}
    for seed, line in enumerate((ASSETS / "prompts" / "edit_eval.jsonl").read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        source = Image.open(ASSETS / "prompts" / row["image"])
        edit = shapes.parse_edit(row["prompt"])
        assert edit is not None
        output = pipeline(
            source,
            [row["prompt"]] * 8,
            height=SIZE,
            width=SIZE,
            max_area=SIZE**2,
            _auto_resize=False,
            num_inference_steps=steps,
            max_sequence_length=EDITS.caption_tokens,
            generator=torch.Generator().manual_seed(seed),
            output_type="np",
        )
        assert isinstance(output, FluxPipelineOutput)
        right[edit.shape is not None] += [
            shapes.followed(np.asarray(picture), np.asarray(source) / 255, edit) for picture in output.images
        ]
    for drawn, picture in right.items():
        print(f"{'draw' if drawn else 'make it'}: {np.mean(picture):.3f} right of {len(picture)}")
