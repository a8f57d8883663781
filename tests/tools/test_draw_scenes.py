"""Careless drawings: the judge sees what is wrong in them, and careful sets are right."""

import numpy as np
import pytest

from comfyui_otca.tools.models import worlds

WORLD = worlds.WORLDS["scenes"]


def test_a_careful_set_is_right_and_a_careless_one_is_wrong_in_about_half():
    right = {}
    for careless in (False, True):
        data = worlds.drawings(WORLD, per_caption=1, seed=0, careless=careless)
        pictures = data.pictures.permute(0, 2, 3, 1).numpy() / 255.0
        captions = [WORLD.captions[int(data.heard_captions(number[None]))] for number in data.caption]
        right[careless] = np.mean([WORLD.judge(one, text) for one, text in zip(pictures, captions, strict=True)])
    assert right[False] > 0.97
    assert 0.35 < right[True] < 0.6


def test_all_captions_of_one_category_are_trained_on_alike():
    data = worlds.drawings(WORLD, per_caption=1, seed=0)
    kinds = np.array([WORLD.category(scene) for scene in WORLD.scenes])
    for kind, asked in WORLD.shares.items():
        shares = data.shares[kinds == kind]
        assert shares.sum().item() == pytest.approx(asked, abs=1e-6)
        assert shares.max() == shares.min()
