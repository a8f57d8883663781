"""The shapes world's captions and its judge, on pictures drawn here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFilter

from comfyui_otca.trainer.rewards.shapes import (
    PALETTE,
    SHAPES,
    Scene,
    ShapesAccuracy,
    accuracy,
    parse_caption,
    recognise,
    scenes,
)

SIDE, FINE = 40, 8  # pixels a side, and how much finer a picture is drawn than kept


def paint(shape: str | None, color: str, background: str, half=0.28, at=(0.5, 0.5), blur=0.0) -> np.ndarray:
    """A picture [SIDE, SIDE, 3] in [0, 1]; half size and place in parts of the picture, blur in pixels of it."""
    side = SIDE * FINE
    image = Image.new("RGB", (side, side), PALETTE[background])
    pen, ink, (x, y), reach = ImageDraw.Draw(image), PALETTE[color], (at[0] * side, at[1] * side), half * side
    if shape == "circle":
        pen.ellipse([x - reach, y - reach, x + reach, y + reach], fill=ink)
    elif shape == "square":
        pen.rectangle([x - reach, y - reach, x + reach, y + reach], fill=ink)
    elif shape == "triangle":
        pen.polygon([(x, y - reach), (x + reach, y + reach), (x - reach, y + reach)], fill=ink)
    elif shape == "bar":
        pen.rectangle([x - reach, y - reach / 3, x + reach, y + reach / 3], fill=ink)
    elif shape == "diagonal":
        pen.line([x - reach, y - reach, x + reach, y + reach], fill=ink, width=side // 16)
    elif shape == "cross":
        pen.line([x - reach, y - reach, x + reach, y + reach], fill=ink, width=side // 16)
        pen.line([x + reach, y - reach, x - reach, y + reach], fill=ink, width=side // 16)
    elif shape == "plus":
        pen.rectangle([x - reach, y - reach / 3, x + reach, y + reach / 3], fill=ink)
        pen.rectangle([x - reach / 3, y - reach, x + reach / 3, y + reach], fill=ink)
    elif shape == "ring":
        pen.ellipse([x - reach, y - reach, x + reach, y + reach], outline=ink, width=round(reach / 2))
    elif shape == "dots":
        pen.ellipse([x - reach, y - reach, x, y], fill=ink)
        pen.ellipse([x, y, x + reach, y + reach], fill=ink)
    elif shape == "specks":
        for left in (x - reach, x + 0.7 * reach):
            for top in (y - reach, y + 0.7 * reach):
                pen.rectangle([left, top, left + 0.3 * reach, top + 0.3 * reach], fill=ink)
    if blur:
        image = image.filter(ImageFilter.GaussianBlur(blur * FINE))
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float32) / 255


def caption(color: str, shape: str, background: str) -> str:
    return f"{article(color)} {color} {shape} on {article(background)} {background} background"


def article(word: str) -> str:
    return "an" if word == "orange" else "a"


# Captions.


def test_there_are_168_scenes_and_every_one_only_once():
    everything = scenes()
    assert len(everything) == 168 == 8 * 3 * 7
    assert len(set(everything)) == 168
    assert all(scene.color != scene.background for scene in everything)
    assert {scene.shape for scene in everything} == {"circle", "square", "triangle"} == set(SHAPES)
    assert {scene.color for scene in everything} == {scene.background for scene in everything} == set(PALETTE)


@pytest.mark.parametrize(
    ("scene", "text"),
    [
        (Scene("red", "circle", "blue"), "a red circle on a blue background"),
        (Scene("orange", "square", "white"), "an orange square on a white background"),
        (Scene("black", "triangle", "orange"), "a black triangle on an orange background"),
    ],
)
def test_captions_with_their_articles(scene, text):
    assert scene.caption == text
    assert parse_caption(text) == scene


def test_every_caption_is_read_back_as_its_scene():
    captions = [scene.caption for scene in scenes()]
    assert len(set(captions)) == 168
    assert [parse_caption(text) for text in captions] == scenes()
    assert captions == [caption(scene.color, scene.shape, scene.background) for scene in scenes()]


@pytest.mark.parametrize(
    "text", ["A Red Circle on a BLUE background", "photo of a red circle on a blue background, 4k, detailed"]
)
def test_case_and_surroundings_of_a_caption_do_not_matter(text):
    assert parse_caption(text) == Scene("red", "circle", "blue")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a photo of a cat",
        "a red circle",
        "a pink circle on a blue background",
        "a red star on a blue background",
        "a red circle on a blue table",
        "a red circle on a blueish background",
        "a darkred circle on a blue background",
    ],
)
def test_foreign_prompts_are_no_scene(text):
    assert parse_caption(text) is None


# The judge.


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("color", "background"), [(c, b) for c in PALETTE for b in PALETTE if c != b])
def test_every_scene_of_the_world_is_recognised(color, shape, background):
    image = paint(shape, color, background, blur=0.5)
    assert recognise(image) == Scene(color, shape, background)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("color", "background"), [("red", "white"), ("yellow", "purple"), ("black", "orange")])
@pytest.mark.parametrize("half", [0.2, 0.25, 0.3, 0.36])
@pytest.mark.parametrize("blur", [0.0, 0.6, 1.2])
def test_sizes_and_soft_edges(shape, color, background, half, blur):
    assert recognise(paint(shape, color, background, half, blur=blur)) == Scene(color, shape, background)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("at", [(0.3, 0.3), (0.7, 0.35), (0.37, 0.68), (0.513, 0.487)])
def test_places(shape, at):
    assert recognise(paint(shape, "green", "black", 0.22, at, blur=0.8)) == Scene("green", shape, "black")


@pytest.mark.parametrize("shape", SHAPES)
def test_paper_grain_and_a_changed_brightness_are_forgiven(shape):
    random = np.random.default_rng(0)
    for color, background in [("red", "blue"), ("white", "green"), ("purple", "yellow")]:
        image = paint(shape, color, background, blur=0.6)
        grainy = image * 0.93 + random.normal(0, 4 / 255, image.shape[:2])[..., None]
        assert recognise(np.clip(grainy, 0, 1)) == Scene(color, shape, background)


@pytest.mark.parametrize("drawn", SHAPES)
@pytest.mark.parametrize("asked", SHAPES)
def test_accuracy_asks_for_the_right_shape(drawn, asked):
    image = paint(drawn, "blue", "yellow", blur=0.5)
    assert accuracy(image, caption("blue", asked, "yellow")) == float(drawn == asked)


def test_swapped_colours_are_wrong():
    image = paint("circle", "red", "white")
    assert accuracy(image, "a red circle on a white background") == 1.0
    assert accuracy(image, "a white circle on a red background") == 0.0


def test_a_wrong_colour_or_background_is_wrong():
    image = paint("square", "red", "white")
    assert accuracy(image, "an orange square on a white background") == 0.0
    assert accuracy(image, "a red square on a black background") == 0.0


@pytest.mark.parametrize("background", PALETTE)
def test_an_empty_picture_shows_nothing(background):
    assert recognise(paint(None, "red", background)) == Scene(None, None, background)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_speck_is_no_shape(shape):
    # A square of 4 by 4 pixels covers 1 %.
    seen = recognise(paint(shape, "red", "white", half=0.05))
    assert seen.shape is None


def test_what_fills_the_picture_is_no_shape():
    # 0.46 to each side of the middle is 85 % of the picture, though a border of background is left.
    assert recognise(paint("square", "red", "white", half=0.46)).shape is None


def test_a_bar_is_no_square():
    assert recognise(paint("bar", "red", "white", half=0.4)).shape is None


@pytest.mark.parametrize("figure", ["diagonal", "cross", "plus", "ring", "dots", "specks"])
def test_other_figures_are_none_of_the_three_shapes(figure):
    image = paint(figure, "red", "white", half=0.34)
    asked = {shape: accuracy(image, caption("red", shape, "white")) for shape in SHAPES}
    assert asked == {"circle": 0.0, "square": 0.0, "triangle": 0.0}


def test_half_and_half_is_no_scene():
    image = paint(None, "red", "white")
    image[:, SIDE // 2 :] = np.array(PALETTE["blue"]) / 255
    asked = [accuracy(image, caption("blue", shape, "white")) for shape in SHAPES]
    assert asked == [0.0, 0.0, 0.0]


def test_noise_is_no_scene():
    random = np.random.default_rng(1)
    for _ in range(5):
        image = random.uniform(0, 1, (SIDE, SIDE, 3))
        assert recognise(image).shape is None


def test_two_colours_in_one_shape_are_not_the_shape():
    # The left half of the square is red and the right half blue: neither a red nor a blue square.
    image = paint("square", "red", "white", half=0.3)
    right = paint("square", "blue", "white", half=0.3)[:, SIDE // 2 :]
    image[:, SIDE // 2 :] = right
    assert accuracy(image, "a red square on a white background") == 0.0
    assert accuracy(image, "a blue square on a white background") == 0.0


def test_a_foreign_prompt_cannot_be_judged():
    assert accuracy(paint("circle", "red", "white"), "a photo of a cat") is None


def test_the_reward_scores_a_batch_by_its_prompts():
    images = torch.from_numpy(
        np.stack([paint("circle", "red", "white"), paint("circle", "red", "white"), paint("square", "blue", "black")])
    )
    prompts = ["a red circle on a white background", "a red square on a white background", "a dog"]
    scores = ShapesAccuracy().score(images, prompts)
    assert scores == [1.0, 0.0, None]


def test_the_reward_is_held_out_unless_told_otherwise():
    assert ShapesAccuracy().held_out
    assert not ShapesAccuracy(held_out=False).held_out
