"""Trains a world's FLUX: autoencoder first, then the flow transformer with its T5; saved as one `FluxPipeline` folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from diffusers.training_utils import EMAModel
from tqdm import trange
from transformers import CLIPTextModel, PreTrainedTokenizerBase, T5Config, T5EncoderModel

from .clip import WIDTH, clip_tokenizer, t5_tokenizer
from .draw import SIZE
from .worlds import CLIP_TOKENS, Drawings

LATENT_CHANNELS = 8
T5_WIDTH = 64
SAVE_EVERY = 500  # steps


def train_vae(data: Drawings, steps: int, batch: int = 16) -> AutoencoderKL:
    """A 4x-down autoencoder; its scaling and shift make the latents zero-mean and unit-variance, as FLUX's do."""
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,  # pyright: ignore[reportArgumentType]  # the library's tuple[str] has any length
        up_block_types=("UpDecoderBlock2D",) * 3,  # pyright: ignore[reportArgumentType]  # the library's tuple[str] has any length
        block_out_channels=(16, 32, 32),  # pyright: ignore[reportArgumentType]  # the library's tuple[int] has any length
        layers_per_block=1,
        norm_num_groups=8,
        sample_size=SIZE,
        latent_channels=LATENT_CHANNELS,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    progress = trange(steps, desc="autoencoder", mininterval=10)
    for _ in progress:
        pictures = data.floats(torch.randint(len(data.caption), (batch,)))
        (posterior,) = vae.encode(pictures, return_dict=False)
        (rebuilt,) = vae.decode(posterior.sample(), return_dict=False)  # pyright: ignore[reportArgumentType]  # any tensor
        kl = posterior.kl().mean() / posterior.mean[0].numel()
        loss = F.mse_loss(rebuilt, pictures) + 0.5 * F.l1_loss(rebuilt, pictures) + 2e-4 * kl
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress.set_postfix(mse=f"{F.mse_loss(rebuilt, pictures).item():.4f}", kl=f"{kl.item():.2f}")
    vae.eval().requires_grad_(False)
    latents = _encode(vae, data)
    vae.register_to_config(scaling_factor=1 / latents.std().item(), shift_factor=latents.mean().item())
    return vae


def train_flow(
    careful: Drawings,
    careless: Drawings | None,
    vae: AutoencoderKL,
    clip_folder: Path,
    folder: Path,
    steps: int,
    batch: int = 48,
) -> None:
    """Rectified flow, logit-normal noise levels, shifted as the world says; T5 learns along; CLIP is frozen.

    The last `world.careless` of the steps see the careless drawings. Saves itself beside `folder` and goes on from there when it
    is started again.
    """
    world = careful.world
    captions, length = world.captions, world.caption_tokens
    tokenizer, tokenizer_2 = clip_tokenizer(world), t5_tokenizer(world)
    text_encoder = CLIPTextModel.from_pretrained(clip_folder, torch_dtype=torch.float32).eval()
    t5, transformer = _untrained(len(tokenizer_2))
    side = SIZE // 4
    sets = [(drawn, packed(vae, drawn)) for drawn in (careful, careless) if drawn is not None]
    t5_ids = padded(tokenizer_2, captions, length)
    with torch.no_grad():
        pooled = text_encoder(padded(tokenizer, captions, CLIP_TOKENS)).pooler_output
    image_ids = FluxPipeline._prepare_latent_image_ids(1, side // 2, side // 2, "cpu", torch.float32)
    text_ids = torch.zeros(length, 3)

    def velocity(noisy: torch.Tensor, sigma: torch.Tensor, caption: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return transformer(
            hidden_states=noisy,
            timestep=sigma,
            pooled_projections=pooled[caption],
            encoder_hidden_states=t5(t5_ids[caption]).last_hidden_state,
            txt_ids=text_ids,
            img_ids=image_ids,
            return_dict=False,
        )[0]

    learned = torch.nn.ModuleDict({"transformer": transformer, "t5": t5})
    fit(learned, velocity, sets, steps, batch, folder.with_suffix(".progress.pt"))
    FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15),
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        text_encoder_2=t5.eval(),
        tokenizer_2=tokenizer_2,
        transformer=transformer.eval(),
    ).to(dtype=torch.float16).save_pretrained(folder)


def padded(tokenizer: PreTrainedTokenizerBase, captions: list[str], length: int) -> torch.Tensor:
    """The captions' tokens."""
    return tokenizer(captions, max_length=length, padding="max_length", truncation=True, return_tensors="pt").input_ids


def _untrained(vocabulary: int) -> tuple[T5EncoderModel, FluxTransformer2DModel]:
    t5 = T5EncoderModel(
        T5Config(
            vocab_size=vocabulary,
            d_model=T5_WIDTH,
            d_kv=16,
            d_ff=2 * T5_WIDTH,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            feed_forward_proj="gated-gelu",
        )
    )
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=T5_WIDTH,
        pooled_projection_dim=WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(4, 14, 14),
    )
    return t5, transformer


def fit(
    learned: torch.nn.Module,
    velocity: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    sets: Sequence[tuple[Drawings, torch.Tensor]],
    steps: int,
    batch: int,
    progress: Path,
) -> None:
    """Leaves the moving average of the weights in `learned`. `velocity` gets noisy latents, their levels, the numbers of captions
    and those of the pictures. Goes on from `progress`, where it saves itself, if that is there.

    `sets`: careful drawings and, where the world has them, careless ones, each with its latents.
    """
    world = sets[0][0].world
    optimizer = torch.optim.AdamW(learned.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.05)
    average = EMAModel(learned.parameters(), decay=0.998)
    parts = learned, average, optimizer, schedule
    begin = resume(progress, *parts) if progress.exists() else 0
    first_careless, shift = round((1 - world.careless) * steps), world.noise_shift
    steps_left, running = trange(begin, steps, desc="flow", mininterval=10), None
    for step in steps_left:
        data, latents = sets[-1 if step >= first_careless else 0]
        index = data.some(batch)
        caption, clean = data.heard_captions(index), latents[index]
        noise = torch.randn_like(clean)
        sigma = torch.sigmoid(torch.randn(batch))
        sigma = shift * sigma / (1 + (shift - 1) * sigma)
        noisy = (1 - sigma.view(-1, 1, 1)) * clean + sigma.view(-1, 1, 1) * noise
        loss = F.mse_loss(velocity(noisy, sigma, caption, index), noise - clean)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.step(learned.parameters())
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        steps_left.set_postfix(loss=f"{running:.4f}")
        if (step + 1) % SAVE_EVERY == 0:
            keep(progress, step + 1, *parts)
    average.copy_to(learned.parameters())
    progress.unlink(missing_ok=True)


def keep(path: Path, step: int, *parts: Any) -> None:
    """Saves a training half way: the states of its parts, and of the random numbers."""
    aside = path.with_suffix(".aside")
    torch.save({"step": step, "parts": [part.state_dict() for part in parts], "random": torch.get_rng_state()}, aside)
    aside.replace(path)


def resume(path: Path, *parts: Any) -> int:
    """Puts everything back, and returns the number of steps that are done."""
    saved = torch.load(path)
    for part, state in zip(parts, saved["parts"], strict=True):
        part.load_state_dict(state)
    torch.set_rng_state(saved["random"])
    return saved["step"]


def packed(vae: AutoencoderKL, data: Drawings) -> torch.Tensor:
    """Normalised latents as the transformer takes them, [N, tokens, channels]."""
    latents = (_encode(vae, data) - vae.config["shift_factor"]) * vae.config["scaling_factor"]
    side = latents.shape[-1]
    return FluxPipeline._pack_latents(latents, len(latents), LATENT_CHANNELS, side, side)


@torch.no_grad()
def _encode(vae: AutoencoderKL, data: Drawings) -> torch.Tensor:
    index = torch.arange(len(data.caption))
    return torch.cat([vae.encode(data.floats(part), return_dict=False)[0].mean for part in index.split(256)])
