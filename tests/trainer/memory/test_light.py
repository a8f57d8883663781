"""The light on Make Trainable against the count of `otca memory`, with files of true size that hold no number."""

from __future__ import annotations

import copy

import pytest

from comfyui_otca.tests.tiny import sparse
from comfyui_otca.tests.trainer.memory.test_needs import changed, graph, grpo
from comfyui_otca.trainer.memory import needs
from comfyui_otca.trainer.memory.case import GB, Machine
from comfyui_otca.trainer.memory.light import Setting, lights

MAKE = "7"
CARD = Machine("cuda:0", 24 * 2**30, 64 * GB)


@pytest.fixture
def models(tmp_path, monkeypatch):
    """ComfyUI's folder of models with Z-Image in it."""
    sparse.z_image(tmp_path)
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    return tmp_path


def light(content, machine=CARD):
    return lights(content, machine)[MAKE]


def test_a_template_fits_a_card_of_24_gb(models):
    """22.1 GB of docs/models.md; in 80 % of 25.8 GB it would fit, without weights that travel."""
    said = light(graph())
    case, _ = needs.read(graph())
    assert said.state == "fits" and not said.fix
    assert said.needs == case.needs.total / GB == pytest.approx(22.1, abs=0.05)
    # 2 bytes of 6.155e9, of 4.022e9 and of 0.167e9 numbers, and HPSv2's file
    assert said.ram == pytest.approx((2 * (6_154_908_736 + 4_022_468_096 + 167_000_000) + 3.9e9) / GB, abs=1e-3)
    assert (said.has, said.ram_has) == (24 * 2**30 / GB, 64)


def test_a_file_that_is_not_here_is_named_and_the_published_one_counted(models):
    """22.1 GB of docs/models.md with or without a GPU; a name that nobody publishes has no figure."""
    (models / "vae" / "ae.safetensors").unlink()
    for machine in (CARD, Machine("", 64 * GB, 64 * GB)):
        said = light(graph(), machine)
        assert (said.state, said.missing, said.device) == ("missing", ("ae.safetensors",), machine.device)
        assert said.needs == pytest.approx(22.1, abs=0.05) and said.has == machine.has / GB
    mine = light(changed("z_image", UNETLoader={"unet_name": "mine.safetensors"}))
    assert (mine.state, mine.missing, mine.needs) == ("missing", ("mine.safetensors", "ae.safetensors"), 0)


def test_the_one_change_that_makes_it_fit(models):
    """All 24 samples at once: one to a call of the update is enough, as the values of its inputs say."""
    content = changed(grpo(), GRPOStep={"batch_size": 0}, SDESampler={"batch_size": 1})
    said = light(content)
    assert said.state == "does not fit" and said.fix == ("the update's batch_size 1",)
    assert said.settings == (Setting("17", "batch_size", 1),)
    content["17"]["inputs"]["batch_size"] = 1
    after = light(content)
    assert after.state != "does not fit" and after.needs == pytest.approx(said.after)


def test_a_linked_input_is_not_set_by_a_click(models):
    content = changed(grpo(), GRPOStep={"batch_size": ["99", 0]}, SDESampler={"batch_size": 1})
    content["17"]["inputs"]["batch_size"] = ["99", 0]
    assert "the update's batch_size 1" not in light(content).fix


def test_where_nothing_makes_it_fit_nothing_is_offered(models):
    said = light(graph(), Machine("cuda:0", 1 * GB, 64 * GB))
    assert (said.state, said.fix, said.settings) == ("does not fit", (), ())


def test_where_what_computes_takes_above_80_percent_it_is_tight(models):
    """In the decoder's and the rewards' phases, which are larger, weights leave as far as they have to."""
    update = needs.read(graph())[0].needs.totals["the update"]
    cards = [Machine("cuda:0", round(update / part), 64 * GB) for part in (0.79, 0.81, 0.99, 1.01)]
    assert [light(graph(), card).state for card in cards] == ["fits", "tight", "tight", "tight"]
    assert [light(graph(), card).streamed > 0 for card in cards] == [False, False, False, True]
    assert light(graph(), Machine("cuda:0", 4 * GB, 64 * GB)).state == "does not fit"


def test_weights_travel_where_the_network_has_no_room(models):
    """17.1 GB while it is updated, and 12.3 of these are weights of 32 blocks, of which one has to be there."""
    card = Machine("cuda:0", 12 * GB, 64 * GB)
    assert light(graph(), card).streamed == pytest.approx(17.1 - 12, abs=0.05)
    low = light(changed("z_image", MakeTrainable={"memory": "low"}), card)
    assert low.streamed == pytest.approx(31 / 32 * 2 * 6_154_908_736 / GB)
    one = light(changed("z_image", GRPOStep={}), card)
    assert one.fix == ("fp8 weights",) and one.after <= 12 and one.state == "tight"


def test_little_main_memory_is_tight(models):
    assert light(graph(), Machine("cuda:0", 48 * GB, 16 * GB)).state == "tight"


def test_without_a_gpu_it_is_compared_with_main_memory_in_float32(models):
    """Twice the weights' bytes, and the encoder and the autoencoder stay beside them; as filed half of that."""
    content = copy.deepcopy(graph())
    content[MAKE]["inputs"]["checkpointing"] = "on"  # else more of what there is, is used
    [sampler] = [entry for entry in content.values() if entry["class_type"] == "OTCA_SDESampler"]
    sampler["inputs"]["keep_graph"] = "off"
    wide, filed = (light(content, Machine("", 64 * GB, 64 * GB, widens)) for widens in (True, False))
    assert wide.device == "" and wide.state == filed.state == "fits"
    assert wide.needs - filed.needs == pytest.approx(2 * 6_154_908_736 / GB)
    assert wide.needs > light(content).needs + 2 * 6_154_908_736 / GB + 2 * 4_022_468_096 / GB


def test_a_checkpoint_counts_by_its_parts(tmp_path, monkeypatch):
    """One file: the network's blocks, the encoder's and the autoencoder's tensors each where they belong."""
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    shapes = {
        "model.diffusion_model.blocks.0.linear.weight": (1000, 1000),
        "text_encoders.t5.weight": (3_000_000,),
        "vae.decoder.weight": (2_000_000,),
    }
    sparse.write(tmp_path / "checkpoints" / "all.safetensors", shapes)
    content = copy.deepcopy(graph())
    content["5"] = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "all.safetensors"}}
    content[MAKE]["inputs"] |= {"model": ["5", 0], "clip": ["5", 1], "vae": ["5", 2]}
    case, lines = needs.read(content)
    assert (case.weights_bytes, case.encoder_bytes, case.vae_bytes) == (2_000_000, 6_000_000, 4_000_000)
    assert case.model.width == 1000 and len(lines) == 3


def test_a_graph_that_is_not_whole_yet_says_why(models):
    content = {node: entry for node, entry in graph().items() if entry["class_type"] != "OTCA_RewardGradientStep"}
    said = light(content)
    assert said.state == "unknown" and "0 of it" in said.text and "Fix" not in said.text
    embedded = {
        "1": {"class_type": "OTCA_EmbeddedModel", "inputs": {"model": "shapes-flux"}},
        MAKE: {
            "class_type": "OTCA_MakeTrainable",
            "inputs": {name: ["1", n] for n, name in enumerate(["model", "clip", "vae"])},
        },
    }
    assert lights(embedded, CARD) == {}


def test_an_unusual_size_is_said_beside_the_count(models):
    assert light(graph()).text == ""
    assert (
        "512 x 512 is far from 1024 x 1024" in light(changed("z_image", SDESampler={"width": 512, "height": 512})).text
    )
