"""The estimate against numbers worked out by hand, and the page of recipes against what the code prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from comfyui_otca.trainer.memory import native as memory
from comfyui_otca.trainer.memory.architectures import ARCHITECTURES, FLUX_VAE, WAN21_VAE, architecture_of
from comfyui_otca.trainer.memory.estimate import GB
from comfyui_otca.trainer.memory.native import estimate, recipe

ROOT = Path(__file__).resolve().parents[3]
# Ten tokens of width 100 in bfloat16: 2,000 bytes a vector for each row.
SMALL = {"weights_bytes": 5000, "params": 7, "tokens": 10, "width": 100, "layers": 3, "saved": 20.0}


def parts(**options):
    return estimate(**SMALL, **options).parts


def test_activations_of_all_blocks_are_kept_without_checkpointing():
    # a block keeps 20 vectors of 2,000 bytes; three blocks, two rows
    assert parts(batch=2, checkpointing=False)["activations"] == 2 * 3 * 20 * 2000 == 240_000


def test_with_checkpointing_each_block_keeps_its_input_and_one_is_computed_again():
    # 3 inputs of 2,000 bytes and one block of 40,000, two rows
    assert parts(batch=2, checkpointing=True)["activations"] == 2 * (3 * 2000 + 40_000) == 92_000


def test_a_kept_graph_takes_the_place_of_the_updates_own():
    without = parts(batch=2, checkpointing=False, kept_steps=5)
    assert without["kept graph"] == 5 * 120_000 and "activations" not in without
    checkpointed = parts(batch=2, checkpointing=True, kept_steps=5)
    assert checkpointed["kept graph"] == 5 * 6000 and checkpointed["activations"] == 2 * 40_000


def test_an_adapters_parameter_takes_16_bytes_and_20_with_an_average():
    both = parts(batch=1, checkpointing=True)
    assert both["adapter"] + both["gradients"] + both["optimizer"] == 7 * 16
    averaged = parts(batch=1, checkpointing=True, copies=1)
    assert averaged["adapter"] + averaged["gradients"] + averaged["optimizer"] == 7 * 20


def test_the_total_is_that_of_the_largest_phase():
    always = 7 * 12 + GB  # the gradients are there in the update alone
    update = estimate(**SMALL, batch=2, checkpointing=False)
    assert (update.phase, update.total) == ("the update", always + 7 * 4 + 5000 + 240_000)
    # Encoder, VAE and rewards are never on the GPU together; the model is there while rewards score, not while the others work.
    largest = {"text_encoder_bytes": 900_000, "vae_bytes": 800_000, "reward_bytes": 700_000}
    encoding = estimate(**SMALL, batch=2, checkpointing=False, **largest)
    assert (encoding.phase, encoding.total) == ("encoding prompts", always + 900_000)
    decoding = estimate(**SMALL, batch=2, checkpointing=False, **(largest | {"text_encoder_bytes": 0}))
    assert (decoding.phase, decoding.total) == ("decoding", always + 800_000)
    scoring = estimate(**SMALL, batch=2, checkpointing=False, reward_bytes=700_000)
    assert (scoring.phase, scoring.total) == ("scoring", always + 5000 + 700_000)
    sampling = estimate(**SMALL, batch=1, checkpointing=True, sampling_batch=9)
    assert (sampling.phase, sampling.total) == ("sampling", always + 5000 + 9 * 40_000)


def test_tokens():
    flux, wan, klein = (ARCHITECTURES[name] for name in ("flux1", "wan22_5b", "flux2_klein_4b"))
    assert flux.tokens(1024, 512) == 64 * 32 + 256  # 16 × 16 pixels each, and the text
    assert klein.tokens(512, 512) == 32 * 32 + 512
    assert (
        wan.tokens(1280, 704, 121) == 40 * 22 * 31
    )  # 32 × 32 pixels by four frames; the text is in no sequence with it


def test_decoding_takes_what_comfyui_says():
    # comfy/sd.py: 2178 · h/8 · w/8 · 64 values of two bytes, beside the file
    assert FLUX_VAE.needs(1024, 1024, 1, tiled=False) == 335_000_000 + 2178 * 128 * 128 * 64 * 2
    assert FLUX_VAE.needs(1024, 256, 1, tiled=True) == 335_000_000 + 2178 * 512 * 256 * 2
    assert WAN21_VAE.needs(64, 64, 5, tiled=False) == 254_000_000 + 7000 * 64 * 64 * 2
    assert WAN21_VAE.needs(64, 64, 1, tiled=False) == 254_000_000 + 2200 * 64 * 64 * 2


def test_flux_at_1024_by_hand():
    found = recipe(24 * GB, ARCHITECTURES["flux1"])
    assert (found.size, found.weights, found.checkpointing, found.tiling) == ((1024, 1024, 1), "fp8", True, False)
    row = (64 * 64 + 256) * 3072 * 2
    assert found.needs.parts["weights"] == 11_901_408_320 and found.streamed == 0
    assert found.needs.parts["activations"] == pytest.approx(row * (57 + 22.9), abs=1)
    adapter = sum(found.needs.parts[name] for name in ("adapter", "gradients", "optimizer"))
    assert adapter == 3_502_080 * 16 * 16
    beside = 3_502_080 * 16 * 12  # the gradients have gone when rewards score
    assert found.needs.total == 11_901_408_320 + beside + 3_900_000_000 + GB, "a reward beside the model"


@pytest.mark.parametrize("gpu", memory.GPUS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_recipe_fits_and_more_does_not(name, gpu):
    model = ARCHITECTURES[name]
    found = recipe(gpu * GB, model)
    if found is None:
        return
    assert found.needs.total <= gpu * GB
    if found.streamed:
        assert found.size == model.sizes[-1] and found.weights == "fp8" and found.checkpointing
        assert found.needs.parts["weights"] + found.streamed == model.networks * model.params
        assert found.needs.total > gpu * GB - 2, "no more of the weights is moved away than has to be"
    larger = recipe(4 * gpu * GB, model)
    assert larger.size[0] * larger.size[1] * larger.size[2] >= found.size[0] * found.size[1] * found.size[2]


def test_where_nearly_all_weights_would_have_to_wait_there_is_no_recipe():
    assert recipe(6 * GB, ARCHITECTURES["qwen_image"]) is None


def test_files_are_known_by_their_names():
    def title(name):
        found = architecture_of(name)
        return found and found.title

    assert title("z_image_turbo_bf16.safetensors") == "Z-Image"
    assert title("sub/flux-2-klein-base-9b-fp8.safetensors") == "FLUX.2 klein 9B"
    assert title("sub\\Flux1-dev.safetensors") == "FLUX.1"
    assert title("wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors") == "Wan 2.2 14B"
    assert title("sd_xl_base.safetensors") is None


def test_the_page_has_what_the_code_prints():
    assert memory.recipes_table() in (ROOT / "docs" / "models.md").read_text(encoding="utf-8"), (
        "put what `otca memory --recipes` prints into docs/models.md"
    )


def test_neither_torch_nor_comfyui_is_imported():
    code = "import sys, comfyui_otca.trainer.memory.native; print([m for m in ('torch', 'comfy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
