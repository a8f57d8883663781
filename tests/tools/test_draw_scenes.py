"""Careless drawings: each flaw is one that the judge sees, and careful sets have none."""

import numpy as np
import pytest

from comfyui_otca.tools.models import draw, worlds
from comfyui_otca.tools.models.worlds import drawings
from comfyui_otca.trainer.rewards import scenes

WORLD = worlds.WORLDS["scenes"]
PAIRS = [scene for scene in WORLD.scenes if scene.relation == "left of"][::6]


def only(monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    for name in ("STRAY", "STRETCHED", "TOUCHING"):
        monkeypatch.setattr(draw, name, float(name == flaw))


def seen(random: np.random.Generator) -> list[list[scenes.Region]]:
    return [scenes.regions(draw.misdrawn_scene(scene, random) / 255.0) for scene in PAIRS]


def share(values: list[bool]) -> float:
    return sum(values) / len(values)


def test_without_flaws_a_careless_drawing_is_right(monkeypatch):
    only(monkeypatch, "none")
    careless = draw.misdrawn_scene(PAIRS[0], np.random.default_rng(3))
    assert scenes.judge(careless / 255.0, PAIRS[0].caption) == 1.0


def test_something_strays_in(monkeypatch):
    only(monkeypatch, "STRAY")
    assert share([len(found) == 3 for found in seen(np.random.default_rng(0))]) > 0.8  # there is not always room


def test_two_objects_touch(monkeypatch):
    only(monkeypatch, "TOUCHING")
    assert share([len(found) == 1 for found in seen(np.random.default_rng(0))]) > 0.8


def test_one_object_is_stretched(monkeypatch):
    only(monkeypatch, "STRETCHED")
    found = seen(np.random.default_rng(0))
    assert share([sum(region.shape is None for region in regions) == 1 for regions in found]) > 0.8


def test_a_careful_set_is_right_and_a_careless_one_is_wrong_in_about_half():
    right = {}
    for careless in (False, True):
        data = drawings(WORLD, per_caption=1, seed=0, careless=careless)
        pictures = data.pictures.permute(0, 2, 3, 1).numpy() / 255.0
        captions = [WORLD.captions[int(data.heard_captions(number[None]))] for number in data.caption]
        right[careless] = np.mean([WORLD.judge(one, text) for one, text in zip(pictures, captions, strict=True)])
    assert right[False] > 0.97
    assert 0.35 < right[True] < 0.6


def test_all_captions_of_one_category_are_trained_on_alike():
    data = drawings(WORLD, per_caption=1, seed=0)
    kinds = np.array([WORLD.category(scene) for scene in WORLD.scenes])
    for kind, asked in WORLD.shares.items():
        shares = data.shares[kinds == kind]
        assert shares.sum().item() == pytest.approx(asked, abs=1e-6)
        assert shares.max() == shares.min()
