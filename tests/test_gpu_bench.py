"""The bench of GPUs in small: every part that needs no process of its own, the runner, and the look of its report."""

from __future__ import annotations

import json
import math

import pytest
import torch

from comfyui_otca.bench.gpu import __main__ as runner
from comfyui_otca.bench.gpu import measures, report, shapes
from comfyui_otca.bench.gpu.measures import PARTS, Place
from comfyui_otca.trainer.memory.case import RESERVE

OF_ONE_FORWARD = ("batch_1", "batch_4", "kept_graph", "sampled_steps", "checkpointing", "all_out")


@pytest.fixture(scope="module")
def place(device, tmp_path_factory):
    return Place(device, True, tmp_path_factory.mktemp("parts"))


@pytest.mark.anywhere
def test_an_iteration_of_every_kind(place):
    """The work counted is that of the shape, and each kind differs from the plain one as it should."""
    if place.device == "cpu":
        done = {"part": "rate", "state": "done", "result": measures.rate(place)}
        (place.folder / "rate.json").write_text(json.dumps(done))
    found = {name: PARTS[name].measure(place) for name in OF_ONE_FORWARD}
    plain = found["batch_4"]
    for part in found.values():
        assert all(math.isfinite(part["seconds"][name]) and part["seconds"][name] > 0 for name in part["seconds"])
        assert part["floor_seconds"] > 0 and part["trained_steps"] == 3 and part["estimated_bytes"] > 0
        assert (part["update_share_of_rate"] is not None) == (place.device == "cpu")
    assert (
        plain["forward_operations"] * 1.8 < plain["forward_and_backward_operations"] < plain["forward_operations"] * 3
    )
    assert len({part["forward_and_backward_operations"] for part in found.values()}) == 1, "work that is of use"
    assert (found["batch_1"]["samples"], plain["samples"]) == (2, 4)


def test_the_operations_are_those_of_the_matrices():
    """By hand: 2 · rows · in · out of each linear layer, and twice that of the attention's two products."""
    case = measures.Case(Place("cpu", True, None), 1)
    network, tokens, image = case.model.transformer, 8, 4
    rows = dict.fromkeys(("x_embedder", "proj_out"), image) | {"context_embedder": tokens}
    expected = 0
    for name, layer in network.named_modules():
        if type(layer) is not torch.nn.Linear and "lora_" not in name or not isinstance(layer, torch.nn.Linear):
            continue
        whole = name.startswith("single_transformer_blocks") and ".norm." not in name
        modulation = "norm" in name or "time_text_embed" in name
        of_text = "add_" in name or "context" in name
        count = 1 if modulation else tokens + image if whole else tokens if of_text else image
        expected += 2 * layer.in_features * layer.out_features * rows.get(name, count)
    attention = 2 * (2 * 2 * (tokens + image) ** 2 * 32)  # two blocks; queries by keys, and weights by values
    assert case.forward == expected + attention


@pytest.mark.anywhere
@pytest.mark.parametrize("family", ["z_image", "qwen_image"])
def test_other_families_are_trained_in_their_shapes(place, family):
    found = PARTS[family].measure(place)
    assert found["seconds"]["update"] > 0 and found["trained_steps"] == 3 and found["share_of_blocks"] == 1
    assert found["estimated_bytes"] > RESERVE + found["weights_bytes"]
    # the reserve, weights, adapter with gradient and moments, and little else: the shape is tiny, and has no text encoder
    assert found["estimated_bytes"] < RESERVE + found["weights_bytes"] + 16 * found["trained_parameters"] + 10e6


QUARTERS = {
    "flux": {"num_layers": 5, "num_single_layers": 10},
    "z_image": {"n_layers": 8},
    "qwen_image": {"num_layers": 15},
}


@pytest.mark.parametrize("kind", shapes.SHAPES)
def test_shapes_are_those_of_the_published_models(kind, monkeypatch):
    """On a device with enough memory all blocks are made, on one with as much as its weights take a quarter of them."""
    shape, place = shapes.SHAPES[kind], Place("cpu", False, None)
    network = shapes.configured(kind, 1.0, False).networks()["transformer"]
    assert 2 * sum(p.numel() for p in network.parameters()) == pytest.approx(shape.weights, rel=0.01)
    monkeypatch.setattr(shapes.devices, "free_memory", lambda device: shape.weights)
    share = shapes.share_of_blocks(place, shape)
    config = shapes.configured(kind, share, False).parts["transformer"][2]
    assert share == 0.25 and {name: config[name] for name in QUARTERS[kind]} == QUARTERS[kind]


def test_the_page_that_is_committed_says_what_was_run():
    """It is the one that its own figures make; without any it says that there are none."""
    folder = runner.HERE.parent
    parts = json.loads((folder / report.DATA).read_text(encoding="utf-8"))
    assert (folder / report.PAGE).read_text(encoding="utf-8") == report.page(parts)
    assert parts or report.NOT_YET in (folder / report.PAGE).read_text(encoding="utf-8")
