"""The shapes world's captions and its judge, on pictures drawn here."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
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


def paint(shape: str | None, color: str | None, background: str, half=0.28, at=(0.5, 0.5), blur=0.0) -> np.ndarray:
    """A picture [SIDE, SIDE, 3] in [0, 1]; half size and place in parts of the picture, blur in pixels of it."""
    side = SIDE * FINE
    image = Image.new("RGB", (side, side), PALETTE[background])
    pen, ink, (x, y), reach = ImageDraw.Draw(image), PALETTE.get(color), (at[0] * side, at[1] * side), half * side
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


def test_captions_with_their_articles():
    for scene, text in (
        (Scene("red", "circle", "blue"), "a red circle on a blue background"),
        (Scene("orange", "square", "white"), "an orange square on a white background"),
        (Scene("black", "triangle", "orange"), "a black triangle on an orange background"),
    ):
        assert scene.caption == text
        assert parse_caption(text) == scene


def test_every_caption_is_read_back_as_its_scene():
    captions = [scene.caption for scene in scenes()]
    assert len(set(captions)) == 168
    assert [parse_caption(text) for text in captions] == scenes()
    assert captions == [caption(scene.color, scene.shape, scene.background) for scene in scenes()]


def test_case_and_surroundings_of_a_caption_do_not_matter():
    for text in ("A Red Circle on a BLUE background", "photo of a red circle on a blue background, 4k, detailed"):
        assert parse_caption(text) == Scene("red", "circle", "blue")


def test_foreign_prompts_are_no_scene():
    for text in (
        "",
        "a photo of a cat",
        "a red circle",
        "a pink circle on a blue background",
        "a red star on a blue background",
        "a red circle on a blue table",
        "a red circle on a blueish background",
        "a darkred circle on a blue background",
    ):
        assert parse_caption(text) is None, text


# The judge.


def misread(*cases: tuple[Scene, dict]) -> list:
    """Of scenes and how they are painted, those that are recognised as something else."""
    seen = [(scene, how, recognise(paint(scene.shape, scene.color, scene.background, **how))) for scene, how in cases]
    return [case for case in seen if case[2] != case[0]]


def test_every_scene_of_the_world_is_recognised():
    assert not misread(*[(Scene(c, shape, b), {"blur": 0.5}) for shape in SHAPES for c, b in permutations(PALETTE, 2)])


def test_sizes_and_soft_edges():
    scenes = [Scene(c, s, b) for s in SHAPES for c, b in (("red", "white"), ("yellow", "purple"), ("black", "orange"))]
    ways = [{"half": half, "blur": blur} for half in (0.2, 0.25, 0.3, 0.36) for blur in (0.0, 0.6, 1.2)]
    assert not misread(*product(scenes, ways))


def test_places():
    places = [{"half": 0.22, "at": at, "blur": 0.8} for at in ((0.3, 0.3), (0.7, 0.35), (0.37, 0.68), (0.513, 0.487))]
    assert not misread(*product([Scene("green", shape, "black") for shape in SHAPES], places))


def test_paper_grain_and_a_changed_brightness_are_forgiven():
    for shape in SHAPES:
        random = np.random.default_rng(0)
        for color, background in [("red", "blue"), ("white", "green"), ("purple", "yellow")]:
            image = paint(shape, color, background, blur=0.6)
            grainy = image * 0.93 + random.normal(0, 4 / 255, image.shape[:2])[..., None]
            assert recognise(np.clip(grainy, 0, 1)) == Scene(color, shape, background)


def test_accuracy_asks_for_the_right_shape():
    for drawn, asked in product(SHAPES, SHAPES):
        image = paint(drawn, "blue", "yellow", blur=0.5)
        assert accuracy(image, caption("blue", asked, "yellow")) == float(drawn == asked), (drawn, asked)


def test_swapped_colours_are_wrong():
    image = paint("circle", "red", "white")
    assert accuracy(image, "a red circle on a white background") == 1.0
    assert accuracy(image, "a white circle on a red background") == 0.0


def test_a_wrong_colour_or_background_is_wrong():
    image = paint("square", "red", "white")
    assert accuracy(image, "an orange square on a white background") == 0.0
    assert accuracy(image, "a red square on a black background") == 0.0


def test_an_empty_picture_shows_nothing():
    assert not misread(*[(Scene(None, None, background), {}) for background in PALETTE])


def test_a_speck_is_no_shape():
    for shape in SHAPES:  # a square of 4 by 4 pixels covers 1 %
        assert recognise(paint(shape, "red", "white", half=0.05)).shape is None


def test_what_fills_the_picture_is_no_shape():
    # 0.46 to each side of the middle is 85 % of the picture, though a border of background is left.
    assert recognise(paint("square", "red", "white", half=0.46)).shape is None


def test_a_bar_is_no_square():
    assert recognise(paint("bar", "red", "white", half=0.4)).shape is None


def test_other_figures_are_not_one_of_the_three_shapes():
    for figure in ("diagonal", "cross", "plus", "ring", "dots", "specks"):
        image = paint(figure, "red", "white", half=0.34)
        asked = {shape: accuracy(image, caption("red", shape, "white")) for shape in SHAPES}
        assert asked == {"circle": 0.0, "square": 0.0, "triangle": 0.0}, figure


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
