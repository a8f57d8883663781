"""My Taste: the score of a head that is written out, and its node."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.networks import RewardError
from comfyui_otca.trainer.opinions.fit import Encoder
from comfyui_otca.trainer.opinions.learner import Learner
from comfyui_otca.trainer.rewards.taste import MyTaste, read_features


@pytest.fixture(scope="module")
def taste(tmp_path_factory):
    """The file of a taste for red, learned from plain pictures."""
    colours = torch.rand(30, 1, 1, 3, generator=torch.Generator().manual_seed(0)).expand(30, 40, 40, 3).contiguous()
    red = colours[:, 0, 0, 0] - colours[:, 0, 0, 1:].mean(1)
    learner = Learner(Encoder("shapes-clip", "cpu"), Path())
    for first in range(0, 30, 3):
        order = red[first : first + 3].argsort(descending=True).tolist()
        rows = read_features(learner.encoder.network, colours[first : first + 3])
        learner.add(rows, [*itertools.combinations(order, 2)])
    path = tmp_path_factory.mktemp("taste") / "red.safetensors"
    learner.head().save(path)
    return path


def test_the_score_written_out(taste, images):
    from safetensors import safe_open

    judge = MyTaste(path=str(taste), device="cpu")
    with safe_open(taste, "np") as file:
        centre, scale, mean = (file.get_tensor(name) for name in ("centre", "scale", "mean"))
    pixels = judge.network.processor(list((images * 255).round().byte().numpy()), return_tensors="pt")
    with torch.no_grad():
        seen = judge.network.model.vision_model(**pixels, output_hidden_states=True)
    rows = torch.cat([*(seen.hidden_states[layer].mean(1) for layer in (1, 2, 3)), seen.pooler_output], 1).numpy()
    expected = [sum((x - c) / s * w for x, c, s, w in zip(row, centre, scale, mean, strict=True)) for row in rows]
    assert judge.score(images, [""] * 3).numpy() == pytest.approx(np.array(expected), abs=1e-3)
    batched = MyTaste(path=str(taste), device="cpu", batch_size=2).score(images.clone(), ["other"] * 3)
    assert batched.numpy() == pytest.approx(np.array(expected), abs=1e-3)


def test_its_node_says_what_is_missing(taste, tiny):
    node = NODE_CLASS_MAPPINGS["OTCA_RewardMyTaste"]
    assert node.VALIDATE_INPUTS(path=str(taste)) is True and node.VALIDATE_INPUTS(path=None) is True
    assert node.VALIDATE_INPUTS(path="nowhere.safetensors").startswith("path: nowhere.safetensors")
    assert "otca taste fit" in node.VALIDATE_INPUTS(path="nowhere.safetensors")
    with pytest.raises(RewardError, match="fitted on the encoder 'shapes-clip'"):
        node().build(path=str(taste), encoder=str(tiny / "clip"), coefficient=1.0)
    assert "encoder: model 'nowhere'" in node.VALIDATE_INPUTS(path=str(taste), encoder="nowhere")
    [judge] = node().build(path=str(taste), coefficient=1.0)
    assert judge.name == "my_taste"
