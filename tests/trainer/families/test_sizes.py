"""One rule for sizes and shift, whether the model is loaded or its folder is only looked at: against diffusers' own figures."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from comfyui_otca.trainer.families.sizes import RULES, Checkpoint, LatentGrid
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.types import SamplerSettings

ROOT = Path(__file__).resolve().parents[3]
PICTURES = LatentGrid(channels=16, scale=8, patch=2, most=96)
VIDEOS = LatentGrid(channels=16, scale=8, patch=2, most=1024, time=4, most_frames=1024)


def config(folder, component):
    return json.loads((folder / component).read_text(encoding="utf-8"))


def test_flux_with_its_own_figures(flux_folder, still_model):
    vae, transformer = config(flux_folder, "vae/config.json"), config(flux_folder, "transformer/config.json")
    grid, pipeline = RULES["FluxPipeline"].grid(vae, transformer), still_model.pipeline
    assert (grid.channels, grid.scale) == (pipeline.vae.config.latent_channels, pipeline.vae_scale_factor)
    assert grid == still_model.latent_grid


@pytest.mark.parametrize("family", ["sd3", "wan21"])
def test_other_families_with_diffusers_own_figures(family, tiny_folder):
    folder = tiny_folder(family)
    model = load_flow_model(folder, lora_rank=2, device="cpu")
    vae, transformer = config(folder, "vae/config.json"), config(folder, "transformer/config.json")
    grid, pipeline = RULES[model.PIPELINE].grid(vae, transformer), model.pipeline
    assert grid == model.latent_grid
    if family == "sd3":
        assert (grid.channels, grid.scale) == (vae["latent_channels"], pipeline.vae_scale_factor)
        assert grid.most == model.transformer.pos_embed.pos_embed_max_size
    else:
        own = pipeline.vae_scale_factor_spatial, pipeline.vae_scale_factor_temporal
        assert (grid.scale, grid.time) == own and grid.channels == model.transformer.config.in_channels


def test_the_shift_is_diffusers_own():
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    scheduler = {"use_dynamic_shifting": True, "base_shift": 0.4, "max_shift": 1.2, "max_image_seq_len": 4000}
    expected = math.exp(calculate_shift(64 // 2 * (48 // 2), 256, 4000, 0.4, 1.2))
    settings = SamplerSettings(height=512, width=384)
    vae = {"latent_channels": 16, "block_out_channels": [1] * 4}
    assert Checkpoint("FluxPipeline", {}, scheduler, vae, {}).shift(settings) == expected
    assert Checkpoint("FluxPipeline", {}, {"shift": 3.0}, vae, {}).shift(settings) == 3.0


def test_flux2s_shift_falls_where_the_docs_say_so():
    from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu

    table = (ROOT / "docs" / "models.md").read_text().split("| FLUX.2, pixels |")[1].split("\n\n")[0].splitlines()
    steps = [int(re.match(r"\d+", cell.strip())[0]) for cell in table[0].strip("| ").split("|")]
    rows = [re.findall(r"[\d.]+", row) for row in table[2:]]
    assert len(rows) >= 5
    vae = {"latent_channels": 32, "block_out_channels": [1] * 4}
    folder = Checkpoint("Flux2Pipeline", {}, {"use_dynamic_shifting": True}, vae, {})
    for width, height, *shifts in rows:
        for count, shift in zip(steps, shifts, strict=True):
            own = folder.shift(SamplerSettings(height=int(height), width=int(width), steps=count))
            expected = math.exp(compute_empirical_mu((int(width) // 16) * (int(height) // 16), count))
            assert own == pytest.approx(expected) and f"{own:.2f}" == shift


@pytest.mark.parametrize("steps", [4, 10, 28])
def test_wans_levels_are_those_of_the_scheduler_in_its_folders(steps):
    from diffusers import UniPCMultistepScheduler

    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0)
    scheduler.set_timesteps(steps)
    wan = Checkpoint("WanPipeline", {}, dict(scheduler.config), {}, {"patch_size": [1, 2, 2]})
    levels = wan.sigmas(SamplerSettings(height=512, width=384, steps=steps))
    assert levels == pytest.approx(scheduler.sigmas.tolist(), abs=2e-6)


@pytest.mark.parametrize("times", [0, -3, "many", []])
def test_a_scheduler_whose_times_are_no_number_is_refused(times):
    vae = {"latent_channels": 16, "block_out_channels": [1] * 4}
    folder = Checkpoint("StableDiffusion3Pipeline", {}, {"shift": 3.0, "num_train_timesteps": times}, vae, {})
    with pytest.raises(ValueError, match="scheduler_config.json gives no timestep shift.*Fix: copy that file again"):
        folder.sigmas(SamplerSettings())


@pytest.mark.parametrize("flag", ["use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "invert_sigmas"])
def test_a_scheduler_with_other_levels_is_refused_by_the_flag(flag):
    folder = Checkpoint(
        "StableDiffusion3Pipeline",
        {},
        {"shift": 3.0, flag: True},
        {"latent_channels": 16, "block_out_channels": [1] * 4},
        {},
    )
    with pytest.raises(ValueError, match=f"sets {flag}, which makes noise levels .* Fix: set {flag} to false"):
        folder.sigmas(SamplerSettings())
    assert folder.sigmas(SamplerSettings(shift=3.0))[0] == 1


@pytest.mark.parametrize(
    ("grid", "size", "inputs"),
    [
        (PICTURES, (512, 384, 1), []),
        (PICTURES, (512, 8, 1), ["width"]),
        (PICTURES, (100, 100, 1), ["width", "height"]),
        (PICTURES, (1552, 512, 1), ["height"]),  # 97 tokens a side, and positions for 96
        (PICTURES, (1536, 1536, 1), []),
        (PICTURES, (512, 512, 5), ["frames"]),
        (VIDEOS, (512, 512, 1), []),
        (VIDEOS, (512, 512, 81), []),
        (VIDEOS, (512, 512, 82), ["frames"]),
        (VIDEOS, (512, 512, 4093), []),  # 1 + 1023 latent frames
        (VIDEOS, (512, 512, 4097), ["frames"]),
    ],
)
def test_which_input_does_not_fit(grid, size, inputs):
    assert [misfit.input for misfit in grid.misfits(*size)] == inputs
    if inputs:
        with pytest.raises(ValueError, match=r"Fix: "):
            grid.shape(*size)
    else:
        assert len(grid.shape(*size)) == (3 if grid is PICTURES else 4)
