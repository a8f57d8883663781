"""Training what ComfyUI has loaded: tiny random models of its families, in its own interpreter, asked by `native/`."""

from __future__ import annotations

import pytest

from comfyui_otca.tests.comfyui.native.table import BEGIN, COLUMNS, END, FRONT_FAMILIES, GAPS, PAGE, in_front
from comfyui_otca.tests.comfyui.server import installations
from comfyui_otca.trainer.families import family_class, names
from comfyui_otca.trainer.native import trial
from comfyui_otca.trainer.types import GRADIENT_MODES

NEWEST = max(installations(), key=lambda found: found.age, default=None)
# Some of each kind of network in the newest ComfyUI, and two in others. `--everything` asks for all that each has: 62 in 0.33.
FAMILIES = ("Flux", "Chroma", "SD3", "ZImage", "QwenImage", "Krea2", "WAN21_I2V", "LTXV")
OLD_FAMILIES = ("Flux", "QwenImage")
# Gradients with shared cast buffers ("low") and blocks computed again; of weights in float32 and in float8.
FORMS = (
    "plain",
    "checkpointing",
    "checkpointing kept",
    "low",
    "low checkpointing",
    "plain fp8",
    "low checkpointing fp8",
)
SHORT_FORMS = ("plain", "low checkpointing kept")
SAMPLERS = ("plain", "guidance", "patched")


@pytest.fixture
def new(inside):
    """For what 0.3.64 has not."""
    if inside.installation.version.startswith("0.3."):
        pytest.skip("this ComfyUI has no quantized compute")
    return inside


@pytest.fixture
def once(inside, everything):
    """For what is not different in each ComfyUI."""
    if inside.installation != NEWEST and not everything:
        pytest.skip("once, in the newest ComfyUI, is enough")
    return inside


@pytest.fixture(params=FAMILIES)
def family(request, inside):
    if inside.installation != NEWEST and request.param not in OLD_FAMILIES:
        pytest.skip("tried by --everything")
    if request.param not in inside.ask("families")["families"]:
        pytest.skip(f"this ComfyUI has no {request.param}")
    return request.param


# -- every family -----------------------------------------------------------------------------------------------------------


def check_ratio(inside, family, iterations=2):
    found = inside.ask("ratio", family, iterations=iterations)
    assert found["trained"] == 3
    assert found["difference"] == found["drift"] == 0, "on-policy the ratio is 1, to the bit"


def check_gradients(inside, family, forms=FORMS):
    if (family, "fp8") in GAPS:
        forms = [form for form in forms if not form.endswith(" fp8")]
    found = inside.ask("gradients", family, forms=forms)
    assert {form: error for form, error in found.items() if form != "seconds" and error > 5e-3} == {}


def check_sampler(inside, family, forms=SAMPLERS):
    found = inside.ask("sampler", family, forms=forms)
    assert max(found[form] for form in forms) <= 1e-5, found


def check_tuned(inside, family):
    found = inside.ask("tuned_model", family)
    assert found["moved"] > 1e-3, "the adapter matters"
    assert max(found["tuned"], found["file"], found["base"]) <= 1e-5, found
    assert found["left"] == [] and found["keys"] == 2 * found["patches"] > 0, "every key of the file is taken"


def check_encoded(inside, family):
    found = inside.ask("encoded", family)
    assert found["shapes"] and found["apart"] <= 1e-5 and found["spread"] > 0.01 and found["texts"] in ([""], []), found


CHECKS = {
    "ratio": check_ratio,
    "gradients": check_gradients,
    "sampler": check_sampler,
    "tuned": check_tuned,
    "encoded": check_encoded,
}


# What is asked of the few families that are tried without `--everything`.
SHORT = {"ratio": {"iterations": 1}, "gradients": {"forms": SHORT_FORMS}, "sampler": {"forms": ("guidance", "patched")}}


@pytest.mark.parametrize("check", CHECKS)
def test_family(inside, family, check):
    CHECKS[check](inside, family, **SHORT.get(check, {}))


# -- prompts with pictures -----------------------------------------------------------------------------------------------------

EDITS = ("Flux", "Flux2", "QwenImage", "Krea2", "Omnigen2", "LongCatImage")
OLD_EDITS = ("Flux", "QwenImage", "Omnigen2")


@pytest.fixture(params=EDITS)
def edit(request, inside):
    if inside.installation != NEWEST and request.param not in OLD_EDITS:
        pytest.skip("this ComfyUI has no such model, or takes no pictures for it")
    return request.param


def test_pictures_of_a_prompt_become_what_comfyuis_nodes_make_of_them(inside, edit):
    found = inside.ask("as_stock", edit)
    assert found["same"] and found["apart"] <= 1e-6, found
    assert len(set(map(tuple, found["sizes"]))) == 2, "one is wide, the other tall"


def test_pictures_enter_the_prediction_as_in_comfyuis_sampler(inside, edit):
    forms = ["plain", "guidance"] + ["two"] * (edit != "LongCatImage")
    found = inside.ask("edited", edit, forms=forms)
    assert max(found[form] for form in forms) <= 1e-5, found
    assert found["another"] > 1e-2 and found["left_out"] > 1e-2, "another picture, and none, predict something else"


def test_the_gradient_and_the_file_of_an_adapter_that_sees_pictures(inside, edit):
    found = inside.ask("edit_gradients", edit, forms=["off", "on"])
    assert max(found["off"], found["on"]) <= 5e-3, found
    found = inside.ask("edit_lora", edit)
    assert found["file"] <= 1e-5 < 1e-2 < found["moved"] and found["keys"] == 2 * found["patches"] > 0, found


def test_a_model_that_takes_no_pictures_says_so(once):
    found = once.ask("pictures_refused")
    assert found["SD3"].startswith("prompts name pictures, and SD3 takes no pictures. Fix: "), found
    assert "Chroma takes no pictures" in found["Chroma"], "it would leave them out without a word"
    assert "looks at none" in found["QwenImage"] and "names 4 pictures, and this model takes 3" in found["Krea2"]


def test_one_weight_of_a_model_stored_in_float8(inside):
    check_gradients(inside, "SD3", ("plain fp8", "low checkpointing fp8"))


@pytest.mark.parametrize("check", CHECKS)
def test_every_family(inside, everything, check):
    if not everything:
        pytest.skip("the long form: --everything")
    wrong = {}
    for family in inside.ask("families")["families"]:
        if (family, check) in GAPS or family in GAPS:
            continue
        try:
            CHECKS[check](inside, family)
        except AssertionError as error:
            wrong[family] = str(error)[:500]
    assert wrong == {}


def test_a_network_keeps_nothing_of_a_prompt_for_its_next_step(once):
    """As Qwen-Image 2.1's would: the adapter has changed by then, and the reference is without it."""
    assert set(once.ask("prefix_cache", "Flux")["told"]) == {False}


@pytest.mark.parametrize("mode", ["", "one_call"])
def test_resumed_to_the_bit(once, mode):
    found = once.ask("resume", "Flux", mode=mode, checkpointing="on")
    assert found["same"] and found["same_moments"]
    assert found["iteration"] == 2 and found["moved"] > 0.01


def test_float16_trains_with_a_scale_of_the_loss(inside):
    """As on a GPU without bfloat16."""
    found = inside.ask("float16", "Flux")
    assert (found["dtype"], found["first"]) == ("torch.float16", 2**16)
    assert found["held"] == [True, 0, 2**16]
    assert found["overflowed"] == [False, 1, 2**59], "nothing moved, and the scale is halved"
    assert found["grew"] == [True, 0, 2**13]
    assert found["same"] and found["scales"] == [[2**13, 1]] * 2, "a checkpoint has the scale and its patience"


@pytest.mark.parametrize("form", ["float8_e4m3fn", "int8_tensorwise", "nvfp4", "mxfp8"])
def test_quantized_compute_is_near_its_bfloat16_twin(new, everything, form):
    for family in ("Flux", "QwenImage") if everything else ("QwenImage",):
        found = new.ask("quantized", family, form=form)
        assert found["is_quantized"]
        velocity, cosine, norm = LIMITS[form]
        assert 0 < found["velocity"] <= velocity, (family, found)
        assert found["cosine"] >= cosine and abs(found["norm"] - 1) <= norm, (family, found)


# Velocity at most, cosine of the gradients at least, and how far their norms may be apart: rounding to four bits is coarse.
LIMITS = {
    "float8_e4m3fn": (0.1, 0.95, 0.1),
    "int8_tensorwise": (0.1, 0.95, 0.1),
    "nvfp4": (0.35, 0.8, 0.25),
    "mxfp8": (0.1, 0.95, 0.1),
}


# -- the three silent faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["Flux", "Chroma"])
def test_torchs_checkpointing_would_be_silently_wrong(once, family):
    found = once.ask("checkpointing", family)
    assert found["with"] <= 1e-6 and found["without"] > 0.05, found


def test_shared_cast_buffers_would_be_silently_wrong(inside):
    found = inside.ask("cast_buffers", "Flux")
    assert found["with"] <= 1e-6 and found["without"] > 0.2, found


def test_scales_from_shared_cast_buffers_would_be_silently_wrong(new):
    found = new.ask("kernel_scales", "Anima")
    assert found["with"] <= 1e-6 and found["without"] > 0.1, found


def test_unloaded_models_would_silently_lose_the_adapter(inside):
    found = inside.ask("unloaded", "Flux")
    assert found["with"] == 0
    assert found["without"] > 1e-3 and found["without is bare"]


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_weights_without_room_stay_in_main_memory_as_counted(inside, share):
    if inside.installation.version.startswith("0.3."):
        pytest.skip("this ComfyUI has at least 128 MB there, more than a tiny model")
    found = inside.ask("short_of_memory", "Flux", share=share)
    assert found["streamed"] == pytest.approx(share * found["weights"], rel=1e-6), found
    # ComfyUI moves whole layers, so that less than counted may be there; what runs is the same.
    assert 0 < found["there"] <= found["weights"] - found["streamed"] and found["apart"] <= 1e-6, found
    assert "in main memory: each call" in found["sentence"]


# -- compiled blocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["Flux", "LTXV", "QwenImage", "SD3", "WAN21_T2V"])
def test_compiled_blocks_are_the_plain_ones(inside, everything, family):
    """FLUX and LTX write over what they are given, so that a compiler that trusts it is silently wrong, by 4 % in LTX."""
    if family not in ("Flux", "LTXV") and not everything:
        pytest.skip("tried by --everything")
    found = inside.ask("compiled", family, forms=["off", "on", "kept"])
    assert max(found["apart"].values()) <= 1e-5 and found["graphs"] > 0, found
    assert found["breaks"] == 0 and found["log"] == [], "nothing falls back"


def test_compiled_blocks_share_their_graphs(inside):
    depths = [{"depth": 2, "depth_single_blocks": 2}, {"depth": 4, "depth_single_blocks": 3}]
    few, again, more, last = inside.ask("graphs_of_depth", "Flux", depths=depths)["counts"]
    assert (few[0], more[0]) == (4, 7) and few[1] == again[1] == more[1] == last[1] > 0


def test_blocks_whose_weights_are_cast_or_that_another_node_works_in_are_not_compiled(inside):
    found = inside.ask("left_out", "Flux")
    assert found["apart"] == 0 and found["graphs"] == 0
    [fetched], [patched] = found["fetched"], found["patched"]
    assert fetched.startswith("compile: 4 of 4 blocks stay as they are, since their weights are in main memory, or not")
    assert patched.startswith(
        "compile: 4 of 4 blocks stay as they are, since another node's functions are on the MODEL."
    )


def test_the_guard_passes_compiled_blocks(once):
    assert once.ask("guarded", "Flux")["moved"]


# -- the guard --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn"])
def test_the_guard_passes_what_is_right(once, everything, dtype):
    for family in ("Flux", "SD3", "WAN21_T2V", "HunyuanVideo") if everything else ("Flux",):
        found = once.ask("guard", family, dtype=dtype)
        assert found["refused"] == "" and found["log"] == [] and found["moved"] and found["checked"] == 1, (
            family,
            found,
        )


def test_the_guard_passes_quantized_compute(new, everything):
    for form in ("float8_e4m3fn", "int8_tensorwise", "nvfp4", "mxfp8") if everything else ("nvfp4",):
        found = new.ask("guard", "Flux", quantized=form)
        assert found["refused"] == "" and found["moved"], (form, found)


@pytest.mark.parametrize(
    ("fault", "options"),
    [
        ("checkpointing", {"checkpointing": "on"}),
        ("checkpointing", {"checkpointing": "on", "dtype": "bfloat16"}),
        ("cast buffers", {}),
        ("cast buffers", {"dtype": "bfloat16"}),
        ("scaled", {}),
    ],
)
def test_the_guard_refuses_what_is_wrong(once, fault, options):
    found = once.ask("guard", "Flux", fault=fault, **options)
    assert "the gradient of Flux is wrong by" in found["refused"] and "Nothing was trained. Fix:" in found["refused"]
    other = "off" if options.get("checkpointing") == "on" else "on"
    assert f"set checkpointing to {other}" in found["refused"]
    assert not found["moved"] and found["checked"] == 0


def test_the_guard_says_when_it_cannot_decide(once):
    found = once.ask("guard", "Flux", fault="noise")
    assert found["refused"] == "" and found["moved"]
    assert len(found["log"]) == 1 and "cannot decide whether its gradient is right" in found["log"][0]


# -- refusals ---------------------------------------------------------------------------------------------------------------

REASONS = {
    "no flow matching": "does no flow matching",
    "flow matching in another parametrisation": "is a flow in another parametrisation",
    "a flow from a picture to a picture": "does no flow matching: it predicts noise or turns pictures into pictures",
    "makes sound": "",  # Stable Audio 1 is no flow, the others make no pictures
    "makes 3D shapes": "makes no pictures and no videos",
    "its noise is scaled by 8": "starts from noise 8 times as strong",
    "looks at pictures": "makes no pictures and no videos",
}


def test_what_is_no_flow_of_pictures_is_refused_by_name_and_reason(inside):
    wrong = {}
    for name, told in inside.ask("families")["not"].items():
        reason = next(ours for start, ours in REASONS.items() if told.startswith(start))
        message = inside.ask("refused", name)["message"]
        if not (
            message.startswith("model: ") and reason in message and "Fix: connect a flow-matching model" in message
        ):
            wrong[name] = message
    assert wrong == {}


def test_parts_of_other_models_are_refused(once):
    found = once.ask("wrong_parts", "Flux", vae="LTXV")
    assert (
        found["clip"].startswith("clip: Flux cannot take what this CLIP makes of a prompt") and "Fix:" in found["clip"]
    )
    assert found["vae"].startswith("vae: its latents have 128 channels, and those of Flux have 16. Fix:")
    assert found["decoder"].startswith("decoder: its latents have 128 channels, and those of Flux have 16. Fix:")
    of_pictures = once.ask("wrong_parts", "LTXV", vae="Flux")["decoder"]
    assert of_pictures.startswith("decoder: it decodes pictures, and LTXV makes videos. Fix:")


def test_a_lora_that_is_patched_in_already_is_said(once):
    found = once.ask("patched", "Flux")
    assert found["log"] == [
        "model: its weights carry 1 patches already, as of a LoRA. They are part of what is trained upon"
    ]


def test_a_lora_in_front_trains_along_and_is_not_in_the_file(once):
    found = once.ask("training_adapter", "Flux")
    assert found["moved"] > 0.1 and max(found["behind it"], found["alone"]) < 1e-5, found


def test_weights_that_nobody_can_read_are_refused(once):
    found = once.ask("strange_weights", "Flux")
    assert f"stored as _Strange ({found['layer']}.weight)" in found["message"] and "Fix:" in found["message"]


# -- nodes in front of Make Trainable ---------------------------------------------------------------------------------------

# By family what is tried without `--everything`, and how the answer begins.
IN_FRONT = {
    "Flux": {
        "NAGuidance": "trained",
        "LoraLoaderBypassModelOnly": "trained",
        "LoraLoaderModelOnly": "trained",
        "EasyCache": "refused: model: EasyCache or LazyCache works around a whole sampling",
        "CFGOverride": "trained",
    },
    "SD3": {
        "SkipLayerGuidanceSD3": "trained",
        "Mahiro": "trained",
        "APG": "in part refused: model: Adaptive Projected Guidance: the same call of SD3 gives another velocity",
    },
}


@pytest.mark.parametrize("family", IN_FRONT)
def test_what_ksampler_would_sample_is_what_is_trained(new, family):
    found = new.ask("cells", family, names=list(IN_FRONT[family]))
    assert {name: found[name][: len(begin)] for name, begin in IN_FRONT[family].items()} == IN_FRONT[family], found


def test_every_node_in_front_of_every_kind_of_network(inside, everything):
    if not everything:
        pytest.skip("the long form: --everything")
    asked = {family: inside.ask("cells", family) for family in FRONT_FAMILIES}
    found = {family: {node: told for node, told in each.items() if node != "seconds"} for family, each in asked.items()}
    assert {
        f"{node} before {each}": told for each in found for node, told in found[each].items() if told[:3] == "off"
    } == {}
    table = in_front(found)
    assert inside.installation != NEWEST or table in PAGE.read_text(encoding="utf-8"), (
        f"docs/models.md has to say:\n{table}"
    )


STRANGE = {
    "raises": "Strange Guidance raises in a call of SD3: three rows are wanted. Fix: ",
    "remembers": "Strange Guidance: the same call of SD3 gives another velocity after a call at another noise level",
    "draws": "Strange Guidance: the same call of SD3 gives another velocity",
}


@pytest.mark.parametrize("kind", ["", "mixes", "first_level", "at_a_few_levels", *STRANGE])
def test_a_node_that_nobody_has_seen_is_tried(once, kind):
    found = once.ask("strange", "SD3", kind=kind)
    assert found["calls"] <= trial.CALLS
    if kind in STRANGE:
        assert STRANGE[kind] in found["refused"] and "Fix:" in found["refused"], found
    else:
        assert found["refused"] == "" and found["rows"] <= 1e-5 and found["alone"] == bool(kind), found


def test_a_conditioning_that_training_would_not_follow_is_refused(once):
    found = once.ask("conditioned", "Flux")
    assert found.pop("seconds") and found.pop("unclip_conditioning") == "", "KSampler does nothing with it either"
    assert "nothing besides embeddings" in found.pop("style")
    words = {"mask": "mask", "time": "end_percent, start_percent", "two": "2 prompts in one", "area": "area, strength"}
    assert [name for name, told in found.items() if f"it has {words.get(name, name)}" not in told] == []


def test_a_conditioning_that_ksampler_follows_is_followed(once):
    found = once.ask("taken_along", "Flux")
    assert found.pop("seconds") and found.pop("ConditioningZeroOut") == [0, 0], "its embeddings are those of the prompt"
    assert [name for name, (apart, effect) in found.items() if apart > 1e-5 or effect < 0.01] == [], found


# -- Stop -------------------------------------------------------------------------------------------------------------------

# Of one update of each kind; what is a mark of its own is tried at every layer by `--everything`, else at every ninth.
STOPPED = {
    "grpo": {"kind": "grpo"},
    "grpo, two epochs with a reference": {"kind": "grpo", "epochs": 2, "kl_coefficient": 0.1},
    "grpo, float16": {"kind": "grpo", "half": True},
    "grpo, before its record": {"kind": "grpo", "is_recorded": True},
    "matching": {"kind": "matching"},
    "matching, two epochs": {"kind": "matching", "epochs": 2},
    "matching, float16": {"kind": "matching", "half": True},
    "gradient with a reference": {"kind": "gradient", "kl_coefficient": 0.1},
    "gradient, float16": {"kind": "gradient", "half": True},
}
LONG_STOPS = ("matching, float16", "gradient, float16")


@pytest.mark.parametrize("case", STOPPED)
def test_an_update_that_is_stopped_is_whole_or_nothing(inside, everything, case):
    if not everything and case != "grpo" and (inside.installation != NEWEST or case in LONG_STOPS):
        pytest.skip("tried by --everything")
    found = inside.ask("stops", "Flux", every=1 if everything else 9, **STOPPED[case])
    assert found["broken"] == [] and found["moved"] and found["raised"] and found["whole"], found
    assert found["asks_as_before"], "ComfyUI's own function is back in its place"


# -- what else can go wrong ---------------------------------------------------------------------------------------------------


def test_two_experts_share_the_noise_levels(once):
    found = once.ask("experts", "WAN21_T2V")
    assert found["high"] == found["low"] == 0 and found["differ"] > 0.1
    assert found["drift"] == 0 and found["moved"]["high"] > 0 and found["moved"]["low"] > 0
    assert found["tuned"] <= 1e-5


def test_guidance_without_the_gradient_of_its_negative_half(once):
    """Its velocity is that of both halves in one call, up to the rounding of a matrix product of twice as many rows."""
    found = once.ask("one_sided", "SD3")
    assert found["apart"] <= 1e-5
    assert found["off"] <= 1e-5 and found["on"] > 0.1


def test_the_gradient_through_both_halves_of_guidance(once):
    found = once.ask("gradients", "SD3", forms=["plain", "low checkpointing"], guidance=3.5)
    assert max(found["plain"], found["low checkpointing"]) <= 5e-3


def test_weights_of_inference_mode_train(inside):
    found = inside.ask("inference_mode", "Flux")
    assert found["inference"] and found["same"] and found["with a gradient"] == 0


def test_other_nodes_have_the_model_back_to_the_bit(once):
    found = once.ask("in_use", "Flux")
    assert found["back"] and found["same"]


@pytest.mark.parametrize("mode", ["", "leap", "last_steps"])
@pytest.mark.parametrize("checkpointing", ["off", "on"])
def test_a_kept_graph_gives_the_same_update(once, checkpointing, mode):
    found = once.ask("kept_graph", "Flux", checkpointing=checkpointing, mode=mode)
    assert found["apart"] <= 1e-5 and found["kept"]


@pytest.mark.parametrize("checkpointing", ["off", "on"])
def test_a_rewards_gradient_comes_through_sampler_and_autoencoder(inside, checkpointing):
    found = inside.ask("exact", "Flux", checkpointing=checkpointing)
    assert found["norm"] > 0 and found["slope"] == pytest.approx(found["norm"], rel=2e-2) and found["decoders"] <= 1e-5


@pytest.mark.parametrize("mode", GRADIENT_MODES)
@pytest.mark.parametrize("family", ["Flux", "LTXV"])
def test_each_mode_follows_the_slope_of_what_it_claims_to(once, family, mode):
    found = once.ask("followed", family, mode=mode)
    assert found["norm"] > 0 and found["slope"] == pytest.approx(found["norm"], rel=1e-2)


@pytest.mark.parametrize(("kind", "frames"), [("flux", 1), ("wan21", 1), ("wan21", 5), ("wan22", 1), ("hunyuan", 5)])
def test_a_decoder_computes_its_blocks_again_with_the_same_gradient(inside, kind, frames):
    """Of a video the blocks hand numbers on to the next frames; in 0.3.64, and in Wan 2.2's always, those of a picture too."""
    answer = inside.ask("decoder_again", kind, frames=frames)
    assert answer["apart"] <= 1e-6 and answer["free"], answer
    is_old = inside.installation.version.startswith("0.3.")
    keeps_little = kind == "flux" or (kind == "wan21" and frames == 1 and not is_old)
    assert (answer["kept"] < 0.6) == keeps_little or kind == "hunyuan", answer


def test_another_decoder_stands_in_for_the_gradient_and_by_tiles(once):
    """Scores are of the model's own pictures; the slope is that of the other decoder's."""
    found = once.ask("followed", "LTXV", mode="last_steps", stand_in=True, tile=16)
    assert found["norm"] > 0 and found["slope"] == pytest.approx(found["norm"], rel=1e-2)


def test_an_autoencoder_of_comfyui_gives_back_nearly_the_same_through_tiles(once):
    """Not the same: its norms and its attention look at the whole picture."""
    assert 0.8 < once.ask("tiles", "Flux", side=24, tile=64)["cosine"] < 1


OURS = {  # families of diffusers that ComfyUI has too
    **{
        "Flux": "FluxPipeline",
        "Flux2": "Flux2KleinPipeline",
        "SD3": "StableDiffusion3Pipeline",
        "Krea2": "Krea2Pipeline",
    },
    **{"QwenImage": "QwenImagePipeline", "ZImage": "ZImagePipeline", "WAN21_T2V": "WanPipeline"},
}


@pytest.mark.parametrize("family", OURS)
def test_an_adapters_file_means_here_what_it_means_to_comfyuis_own_loader(once, family):
    """In each layout that it takes; and all that training writes of the family of diffusers is in one of them."""
    answer, kind = once.ask("layouts", family), family_class(OURS[family])
    assert answer["worst"] < 1e-6 and len(answer["layouts"]) > 2
    wan = [theirs.partition("#.")[2] for theirs in names.published(OURS[family])] if family == "WAN21_T2V" else None
    for end in wan or kind.LORA_TARGETS:
        assert any(name.startswith(kind.LORA_PREFIX) and name.endswith(f".{end}") for name in answer["names"]), end


def test_every_class_of_comfyui_is_known(inside):
    known = inside.ask("families")
    named = {*known["families"].values(), *known["not"]}
    assert set(known["classes"]) - named == set(), "build it tiny, or say in tiny.NOT why not"
    assert {*known["families"].values()} & {*known["not"]} == set()


def test_the_table_in_the_documents_is_whole(inside):
    page = PAGE.read_text(encoding="utf-8")
    table = page[page.index(BEGIN) : page.index(END)]
    known = inside.ask("families")
    rows = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}
    assert set(known["families"]) - set(rows) == set(), "python -m comfyui_otca.tests.comfyui.native.table"
    for family in known["families"]:
        assert inside.installation.version in rows[family]
        for column, cell in zip(COLUMNS, rows[family].split("|")[3:], strict=False):
            assert cell.strip() not in ("", "–") or column == "video" or f"- {family}, " in table, (
                f"{family}: no reason"
            )
    assert [name for name, reason in known["not"].items() if name not in table or reason not in table] == []
