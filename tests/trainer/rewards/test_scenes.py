"""The scenes world's captions, its judge and its grade, on pictures drawn here."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from comfyui_otca.tools.models.draw import draw_scene
from comfyui_otca.tools.models.worlds import WORLDS, WRONG_RELATION, WRONG_WORD, misheard
from comfyui_otca.trainer.rewards.scenes import COLORS, Scene, Scenes, grade, judge, parse_caption, regions
from comfyui_otca.trainer.rewards.shapes import PALETTE, SHAPES

from .test_shapes import draw

SIDE, FINE = 40, 8  # pixels a side, and how much finer a picture is drawn than kept

LEFT, RIGHT, TOP, BOTTOM = (0.25, 0.5), (0.75, 0.5), (0.5, 0.25), (0.5, 0.75)


def paint(*objects: tuple[str, str, tuple[float, float]], half: float = 0.18) -> np.ndarray:
    """A picture [SIDE, SIDE, 3] in [0, 1] of (colour, shape, centre) on light grey."""
    side = SIDE * FINE
    image = Image.new("RGB", (side, side), (230, 230, 230))
    pen, reach = ImageDraw.Draw(image), half * side
    for color, shape, (x, y) in objects:
        draw(pen, shape, PALETTE[color], x * side, y * side, reach)
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float32) / 255


RED_LEFT = paint(("red", "circle", LEFT), ("blue", "square", RIGHT))
RED_ABOVE = paint(("red", "circle", TOP), ("blue", "square", BOTTOM))


def test_the_grammar_is_what_its_captions_say_and_a_caption_of_another_world_is_not_scored():
    every = WORLDS["scenes"].scenes
    assert len(every) == 12 + 12 + 3 * 132 == len({scene.caption for scene in every})
    assert [parse_caption(scene.caption) for scene in every] == every
    assert {scene.category for scene in every} == {"single", "two", "and", "left of", "above"}
    for text in ("", "a circle", "a purple circle", "three red circles", "red circle"):
        assert parse_caption(text) is None and judge(RED_LEFT, text) is None, text
    styled = "a red circle on a blue background "  # a style may follow
    assert parse_caption(styled) == parse_caption("a red circle") and judge(RED_LEFT, styled) == 0.0


def test_upper_case_and_words_around_are_understood():
    asked = Scene((("red", "circle"), ("blue", "square")), "left of")
    assert parse_caption("A photo of A Red Circle LEFT OF a blue square, please") == asked


def test_the_judge():
    for picture, caption, right in (
        (RED_LEFT, "a red circle left of a blue square", 1),
        (RED_LEFT, "a blue square left of a red circle", 0),
        (RED_LEFT, "a red circle and a blue square", 1),
        (RED_LEFT, "a blue square and a red circle", 1),
        (RED_LEFT, "a red circle above a blue square", 0),
        (RED_LEFT, "a red square left of a blue circle", 0),
        (RED_LEFT, "a red circle left of a green square", 0),
        (RED_LEFT, "a red circle", 0),
        (RED_LEFT, "two red circles", 0),
        (RED_ABOVE, "a red circle above a blue square", 1),
        (RED_ABOVE, "a blue square above a red circle", 0),
        (RED_ABOVE, "a red circle left of a blue square", 0),
        (paint(("green", "triangle", (0.4, 0.6))), "a green triangle", 1),
        (paint(("green", "triangle", (0.4, 0.6))), "two green triangles", 0),
        (paint(("yellow", "circle", LEFT), ("yellow", "circle", RIGHT)), "two yellow circles", 1),
        (paint(("yellow", "circle", LEFT), ("yellow", "square", RIGHT)), "two yellow circles", 0),
        (paint(("red", "bar", (0.5, 0.5))), "a red square", 0),
        (np.full((SIDE, SIDE, 3), 0.9, np.float32), "a red square", 0),
    ):
        assert judge(picture, caption) == right, caption


def test_every_scene_that_is_drawn_is_read_right_but_few(everything):
    """A quarter of them; all 420 with --everything."""
    random = np.random.default_rng(3)
    asked = WORLDS["scenes"].scenes if everything else WORLDS["scenes"].scenes[::4]
    right = [judge(draw_scene(scene, random) / 255, scene.caption) for scene in asked]
    assert np.mean(right) > 0.97


def test_what_a_region_is():
    for color, shape in itertools.product(COLORS, SHAPES):
        [region] = regions(paint((color, shape, (0.3, 0.6))))
        assert (region.color, region.shape) == (color, shape)
        x, y = region.center
        # the centre of mass of a triangle lies a third of its height above its foot: half/3 below the middle of its box
        assert x == pytest.approx(0.3, abs=0.02)
        assert y == pytest.approx(0.6 + (0.18 / 3 if shape == "triangle" else 0), abs=0.03)
    objects = ("red", "circle", (0.2, 0.2)), ("blue", "square", (0.8, 0.2)), ("green", "circle", (0.5, 0.8))
    two, three, both = paint(*objects[:2], half=0.15), paint(*objects, half=0.15), "a red circle and a blue square"
    assert len(regions(three)) == 3 and judge(three, both) == 0, "a third object is one too many"
    assert grade(three, both) == pytest.approx(grade(two, both) / 2, abs=0.01)


def test_the_grade_rises_with_every_thing_that_is_right_and_as_the_first_object_moves():
    asked = "a red circle left of a blue square"
    pictures = [
        paint(("green", "triangle", RIGHT)),
        paint(("green", "circle", RIGHT), ("green", "square", LEFT)),
        paint(("red", "circle", RIGHT), ("green", "square", LEFT)),
        paint(("red", "circle", RIGHT), ("blue", "square", LEFT)),
        RED_LEFT,
    ]
    grades = [grade(picture, asked) for picture in pictures]
    assert all(later - earlier > 0.05 for earlier, later in itertools.pairwise(grades))
    assert 0 <= grades[0] < 0.3 and 0.95 < grades[-1] <= 1
    across = [
        paint(("red", "circle", (x, 0.25)), ("blue", "square", (0.6, 0.75)), half=0.12) for x in (0.8, 0.6, 0.5, 0.3)
    ]
    grades = [grade(picture, asked) for picture in across]
    assert grades == sorted(grades)
    # two objects of nearly full marks and σ((apart − 0.06)/0.08) for apart = −0.2, 0, 0.1, 0.3
    relation = [1 / (1 + np.exp(-(apart - 0.06) / 0.08)) for apart in (-0.2, 0, 0.1, 0.3)]
    assert np.diff(grades) == pytest.approx(np.diff(relation) / 3, abs=0.02)


def test_as_a_reward():
    images = torch.from_numpy(np.stack([RED_LEFT, RED_ABOVE]))
    prompts = ["a red circle left of a blue square"] * 2
    assert Scenes(strict=True).score(images, prompts) == [1.0, 0.0]
    assert Scenes().score(images, prompts) == [grade(RED_LEFT, prompts[0]), grade(RED_ABOVE, prompts[0])]
    assert Scenes().score(images, ["a castle"] * 2) == [None, None]
    for value in (0.0, 1.0, np.nan):
        picture = np.full((SIDE, SIDE, 3), value, np.float32)
        assert judge(picture, "a red circle") == grade(picture, "a red circle") == 0, value


def test_captions_are_misheard_as_often_as_said():
    random = np.random.default_rng(0)
    scene, single = Scene((("red", "circle"), ("blue", "square")), "left of"), Scene((("red", "circle"),))
    heard = [misheard(scene, random) for _ in range(20000)]
    # right as a whole: four words right and not exchanged; two wrong words cannot make the exchanged pair right often
    expected = (1 - WRONG_WORD) ** 4 * (1 - WRONG_RELATION)
    assert np.mean([other == scene for other in heard]) == pytest.approx(expected, abs=0.015)
    assert set(heard) <= set(WORLDS["scenes"].scenes)
    alone = [misheard(single, random).objects == single.objects for _ in range(20000)]
    assert np.mean(alone) == pytest.approx((1 - WRONG_WORD) ** 2, abs=0.01)
