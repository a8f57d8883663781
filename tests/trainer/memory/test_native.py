"""The estimate against numbers worked out by hand, and the page of recipes against what the code prints."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from comfyui_otca.tools import recipes
from comfyui_otca.trainer.memory.case import GB, RESERVE, Iteration, Judge, Machine, Pull
from comfyui_otca.trainer.memory.native import (
    ARCHITECTURES,
    FLUX_VAE,
    WAN21_VAE,
    Architecture,
    Autoencoder,
    NativeCase,
    architecture_of,
)

ROOT = Path(__file__).resolve().parents[3]
# Sixteen pixels a side are a token, and the text has nine: ten of width 100 in bfloat16 are 2,000 bytes a vector for each row.
NO_VAE = Autoencoder(0, (0, 0))
SMALL = Architecture("small", 2500, 100, 3, 0, 0, NO_VAE, saved=20.0, text_tokens=9, values=0, sizes=())


def case(batch=1, sampling_batch=1, steps=1, checkpointing=True, samples=9, model=SMALL, weights=5000, **options):
    of_iteration = {
        name: options.pop(name) for name in ("copies", "kept_calls", "rewards", "pull", "references") if name in options
    }
    it = Iteration((16, 16, 1), samples, 1, 1, steps, steps, batch, sampling_batch, **of_iteration)
    return NativeCase(model, weights, 7, it, checkpointing, **options)


def parts(**options):
    return case(**options).needs.parts


def test_activations_of_all_blocks_are_kept_without_checkpointing():
    # a block keeps 20 vectors of 2,000 bytes and has 10 of gradients in its backward pass; three blocks, two rows
    assert parts(batch=2, checkpointing=False)["activations"] == 2 * (3 * 20 + 10) * 2000 == 280_000


def test_with_checkpointing_each_block_keeps_its_input_and_one_is_computed_again():
    # 3 inputs and 2 vectors outside of blocks, one block of 20 and its 10 of gradients, two rows
    assert parts(batch=2, checkpointing=True)["activations"] == 2 * (3 + 2 + 20 + 10) * 2000 == 140_000


def test_the_last_blocks_that_are_not_computed_again_keep_theirs():
    # 3 inputs and 2 vectors outside; a block of 20 in place of its input is gone when another one is computed again
    assert parts(checkpointing=True, kept_blocks=1)["activations"] == (2 + 2 + 20 + 10) * 2000 == 68_000
    assert parts(checkpointing=True, kept_blocks=2)["activations"] == (1 + 2 + 2 * 20 + 10) * 2000 == 106_000


@pytest.mark.parametrize(
    ("has", "blocks"), [(0, 0), (2 * 68_000 - 1, 0), (2 * 68_000, 1), (2 * 106_000 - 1, 1), (2 * 106_000, 2)]
)
def test_as_many_blocks_are_computed_again_as_the_memory_asks_for(has, blocks):
    beside = sum(size for part, size in case().needs.phases["the update"].items() if part != "activations")
    there = Machine(has=beside + has)
    assert case(checkpointing=True, kept_blocks=None, machine=there).decided.kept_blocks == blocks


def test_pictures_that_a_prompt_works_on_stand_in_the_sequence():
    # beside the picture's token and the text's nine, for each of two pictures a token and three that the text encoder sees
    seeing = replace(SMALL, seen_tokens=3)
    assert parts(batch=2, checkpointing=False, references=2)["activations"] == 2 * (3 * 20 + 10) * 2400
    assert parts(batch=2, checkpointing=False, references=2, model=seeing)["activations"] == 2 * (3 * 20 + 10) * 3600
    assert ARCHITECTURES["qwen_image"].tokens(1024, 1024, 1, 1) == 4096 + 256 + 4096 + 14 * 14


def test_a_kept_graph_takes_the_place_of_the_updates_own():
    kept = {"kept_calls": 5, "samples": 1, "steps": 5}
    assert parts(checkpointing=False, **kept)["kept graph"] == 5 * 120_000
    # what is left is a call of the untrained model, without a graph: a block, and 2 vectors outside
    assert parts(checkpointing=False, **kept)["activations"] == 44_000
    assert parts(checkpointing=True, **kept)["kept graph"] == 5 * (3 + 2) * 2000
    assert parts(checkpointing=True, **kept)["activations"] == (20 + 10) * 2000, "a block that is computed again"
    some = parts(checkpointing=False, **kept | {"kept_calls": 2})
    assert (some["kept graph"], some["activations"]) == (2 * 120_000, 120_000 + 20_000), "the others have their own"


@pytest.mark.parametrize("pull", [None, Pull(False, calls=5)])
@pytest.mark.parametrize(
    ("left", "count"), [(0, 0), (239_999, 0), (240_000, 1), (959_999, 3), (960_000, 4), (1_200_000, 5)]
)
def test_as_many_calls_keep_their_graphs_as_half_of_what_is_left_holds(left, count, pull):
    """Five calls of 120,000 bytes, of GRPO and of the rewards' gradient; beside an update that computes them again."""
    same = {"samples": 1, "steps": 5, "checkpointing": False, "pull": pull}
    machine = Machine("", case(**same).needs.total + left, 0)
    assert case(**same, kept_calls=None, machine=machine).decided.iteration.kept_calls == count


def test_an_adapters_parameter_takes_16_bytes_and_20_with_an_average():
    both = parts()
    assert both["adapter"] + both["gradients"] + both["optimizer"] == 7 * 16
    averaged = parts(copies=1)
    assert averaged["adapter"] + averaged["gradients"] + averaged["optimizer"] == 7 * 20


def test_the_total_is_that_of_the_largest_phase():
    def needs(rewards=0, encoder_bytes=0, vae_bytes=0, **options):
        it = {"rewards": (Judge(rewards, True),)}
        found = case(**it, encoder_bytes=encoder_bytes, vae_bytes=vae_bytes, **options).needs
        return found.phase, found.total - always

    always = 7 * 12 + GB  # the gradients are there in the update alone
    update = {"batch": 2, "checkpointing": False}
    assert needs(**update) == ("the update", 7 * 4 + 5000 + 280_000)
    # Encoder, VAE and rewards are never on the GPU together; the model is there while rewards score, not while the others work.
    assert needs(700_000, 900_000, 800_000, **update) == ("encoding prompts", 900_000)
    assert needs(700_000, 0, 800_000, **update) == ("decoding", 800_000)
    assert needs(700_000, **update) == ("scoring", 5000 + 700_000)
    assert needs(sampling_batch=9) == ("sampling", 5000 + 9 * 44_000)


def test_latents_count_too():
    """By hand: 16 × 16 pixels are one token of 64 numbers in float32; 2 · (steps + 1) that were visited and 8 of a step."""
    found = case(model=replace(SMALL, values=64), steps=4, sampling_batch=2).needs.parts
    assert found["sampling"] == 2 * 44_000 + 2 * (2 * 5 + 8) * 64 * 4
    assert found["activations"] == 35 * 2000 + 8 * 64 * 4


# Decoding keeps 50 numbers a pixel of two bytes and has 4 beside: of 16 × 16 pixels 25,600 and 2,048 bytes.
DECODED = replace(SMALL, vae=Autoencoder(30_000, (10, 10), (50, 50), (4, 4)))
PICTURE = 16 * 16 * 3 * 4


def pulled(holds_a_call=True, tile=0, rewards=(), batch=2, adds=False, **options):
    it = {"pull": Pull(holds_a_call, tile, adds), "rewards": rewards}
    return case(batch=batch, model=DECODED, checkpointing=False, vae_bytes=30_000, **it, **options)


def test_the_rewards_gradient_has_decoder_and_judge_and_the_call_that_led_there():
    judges = (Judge(1_000, graph=300_000), Judge(500_000, True), Judge(70_000, True, 299_000))
    phases = pulled(rewards=judges).needs.phases
    beside = {name: phases["the update"][name] for name in ("adapter", "optimizer", "gradients", "weights", "reserve")}
    call = 2 * 3 * 20 * 2000  # two rows, three blocks
    # of the judges 1,000 stay; the last one's weights and graph are more than the first one's graph; the other is only watched
    assert phases["the rewards' gradient"] == beside | {
        **{"VAE": 30_000, "activations": call, "decoding": 2 * 25_600},
        **{"rewards": 71_000, "judging": 2 * 299_000 + 6 * 2 * PICTURE},
    }
    assert phases["the decoder's gradient"] == beside | {
        **{"VAE": 30_000, "activations": call, "decoding": 2 * (25_600 + 2_048) + 2 * 2 * PICTURE, "rewards": 1_000}
    }
    later = pulled(holds_a_call=False, rewards=judges).needs.phases
    assert "activations" not in later["the rewards' gradient"], "one call after another, and all of them later"
    assert later["the update"] == phases["the update"]


def test_a_tile_is_decoded_with_eight_latent_positions_around():
    size = (512, 256, 1)
    vae = replace(DECODED.vae, decode=(1, 1))
    one = replace(pulled(tile=64, batch=1), model=replace(DECODED, vae=vae))
    one = replace(one, iteration=replace(one.iteration, size=size))
    phases = one.needs.phases
    picture = 512 * 256 * 3 * 4
    # 64 pixels are eight positions, and eight on either side: 24 of 8 pixels
    assert phases["the decoder's gradient"]["decoding"] == 192 * 192 * 2 * (50 + 4) + 2 * picture
    assert "decoding" not in phases["the rewards' gradient"]
    whole = replace(one, iteration=replace(one.iteration, pull=Pull(True, 4096))).needs.phases
    assert whole["the decoder's gradient"]["decoding"] == 512 * 256 * 2 * (50 + 4) + 2 * picture
    # where the network of a tile is small, the picture that was decoded before without a gradient is the most
    plain = replace(one, model=replace(DECODED, vae=replace(vae, decode=(99, 99)))).needs.phases
    assert plain["the decoder's gradient"]["decoding"] == 512 * 256 * 2 * 99 + 2 * picture


def test_what_makes_the_rewards_gradient_fit_from_cheap_to_costly():
    words = list(pulled(rewards=(Judge(9_000_000, graph=40_000), Judge(9_000_000, graph=40_000))).changes())
    first = ["offload on every reward", "batch_size 1 on every reward", "the update's batch_size 1"]
    assert words[:4] == [*first, "Reward Gradient Step tile 512 (an estimate of the gradient)"]


def test_judges_that_stay_are_there_in_every_phase():
    phases = dict(case(rewards=(Judge(1_000), Judge(500, True))).needs.phases)
    assert phases.pop("scoring")["rewards"] == 1_500
    assert {parts["rewards"] for parts in phases.values()} == {1_000}


@pytest.mark.parametrize("phase", ["scoring", "the rewards' gradient"])
def test_a_judge_comes_block_by_block_where_it_would_take_more_than_half_of_the_room(phase):
    judges = (Judge(1_000, graph=300_000), Judge(70_000, True, 299_000))
    others = {name: size for name, size in pulled(rewards=judges).needs.phases[phase].items() if name != "rewards"}
    held = 1_000 + sum(size for name, size in others.items() if name not in ("weights", "judging", "reserve"))
    for room, there in ((140_000, 70_000), (139_999, 14_700)):
        parts = pulled(rewards=judges, machine=Machine(has=held + room)).estimate().phases[phase]
        assert parts["rewards"] == 1_000 + there and "weights" not in parts, (
            "a fifth of it, and the weights left before"
        )


def test_a_sentence_says_what_makes_it_fit():
    needs = case(batch=2, checkpointing=False)
    assert needs.needs.total == GB + 7 * 16 + 5000 + 280_000
    assert needs.sentence(2 * GB) == ("needs about 1.0 GB for the update (an estimate), 2.0 GB free: fits")
    assert needs.sentence(GB + 150_000).endswith("does not fit. Fix: the update's batch_size 1 (1.0 GB)")
    assert needs.sentence(GB + 80_000).endswith(
        "does not fit. Fix: the update's batch_size 1, Make Trainable checkpointing on (1.0 GB)"
    )
    assert needs.sentence(GB).endswith("(1.0 GB, which does not fit either; a larger GPU)")


def test_tokens():
    flux, wan, klein = (ARCHITECTURES[name] for name in ("flux1", "wan22_5b", "flux2_klein_4b"))
    assert flux.tokens(1024, 512) == 64 * 32 + 256  # 16 × 16 pixels each, and the text
    assert klein.tokens(512, 512) == 32 * 32 + 512
    assert (
        wan.tokens(1280, 704, 121) == 40 * 22 * 31
    )  # 32 × 32 pixels by four frames; the text is in no sequence with it


def test_decoding_takes_what_comfyui_says():
    # comfy/sd.py: 2178 · h/8 · w/8 · 64 values of two bytes
    assert FLUX_VAE.decoding((1024, 1024, 1), tiled=False) == 2178 * 128 * 128 * 64 * 2
    assert FLUX_VAE.decoding((1024, 256, 1), tiled=True) == 2178 * 512 * 256 * 2
    assert WAN21_VAE.decoding((64, 64, 5), tiled=False) == 7000 * 64 * 64 * 2
    assert WAN21_VAE.decoding((64, 64, 1), tiled=False) == 2200 * 64 * 64 * 2
    found = case(model=replace(SMALL, vae=WAN21_VAE), vae_bytes=254_000_000).needs
    assert found.totals["decoding"] == RESERVE + 7 * 12 + 254_000_000 + 2200 * 16 * 16 * 2, "beside the file"


def test_weights_leave_as_far_as_a_phase_needs_their_room():
    """Of 5,100 bytes in three blocks one has to be there; an encoder of 24 layers likewise; the adapter has 7 numbers."""
    rewards, beside = (Judge(3000, True),), RESERVE + 7 * 12
    of = partial(case, weights=5100, encoder_bytes=4800, rewards=rewards)
    update = of().needs.phases["the update"]

    def there(less, **options):
        phases = of(**options, machine=Machine(has=sum(update.values()) - less)).needs.phases
        return [phases[phase].get("weights", 0) for phase in ("sampling", "the update")]

    assert there(0) == [5100, 5100] and there(1) == [5100, 5099]
    assert there(3400)[1] == there(3500)[1] == 1700 and there(0, is_low_memory=True) == [1700, 1700]
    tight = of(machine=Machine(has=beside + 3100))
    assert (tight.needs.phases["scoring"]["weights"], tight.needs.phases["encoding prompts"]["text encoder"]) == (
        100,
        3100,
    )
    assert of(machine=Machine(has=beside)).needs.phases["encoding prompts"]["text encoder"] == 200
    assert of(machine=Machine("", has=beside)).needs.phases["scoring"]["weights"] == 5100, (
        "without a GPU nothing leaves"
    )


def test_what_travels_is_said():
    roomy = case(weights=5100)
    update = roomy.needs.totals["the update"]
    assert roomy.travelling == "" == case(weights=5100, machine=Machine(has=update)).travelling
    tight = case(weights=5100, machine=Machine(has=update - 10))
    assert tight.streamed == 10 and tight.sentence(update - 10).endswith("a trained one 3 times")
    two = case(weights=5100, machine=Machine(has=update - 2600), model=replace(SMALL, networks=2))
    assert two.streamed == 50, "of two networks the other one leaves first"


@pytest.mark.parametrize("template", recipes.TEMPLATES)
def test_with_more_memory_a_template_gives_up_less(template):
    before, (ways, _) = None, recipes.case_of(template, 4).together(4 * GB)
    assert len({way.kind or way.words for way in ways}) == len(ways), "of two sizes, or two tiles, the last one is said"
    for gpu in recipes.GPUS:
        ways, case = recipes.case_of(template, gpu).together(gpu * GB)
        state = case.needs.total > gpu * GB, len(ways), case.streamed
        assert before is None or state <= before, (template, gpu)
        before = state


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
    assert recipes.recipes_table() in (ROOT / "docs" / "models.md").read_text(encoding="utf-8"), (
        "put what `python -m comfyui_otca.tools.recipes` prints into docs/models.md"
    )


def test_neither_torch_nor_comfyui_is_imported():
    code = "import sys, comfyui_otca.trainer.memory.native; print([m for m in ('torch', 'comfy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
