"""The shapes world's captions and its judge, on pictures drawn here."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFilter

from comfyui_otca.tools.models.worlds import EDITS, WORLDS
from comfyui_otca.trainer.rewards.shapes import (
    PALETTE,
    SHAPES,
    Scene,
    ShapesAccuracy,
    accuracy,
    followed,
    parse_caption,
    parse_edit,
    recognise,
)
from comfyui_otca.trainer.types import Prompt

SIDE, FINE = 40, 8  # pixels a side, and how much finer a picture is drawn than kept


def draw(pen, shape, ink, x, y, reach):
    """A figure in the box that reaches so far from its centre."""
    thick, thin, box = reach / 3, round(reach * 0.2), [x - reach, y - reach, x + reach, y + reach]
    corners = {
        "square": [box],
        "bar": [[x - reach, y - thick, x + reach, y + thick]],
        "plus": [[x - reach, y - thick, x + reach, y + thick], [x - thick, y - reach, x + thick, y + reach]],
        "specks": [
            [left, top, left + 0.3 * reach, top + 0.3 * reach]
            for left in (x - reach, x + 0.7 * reach)
            for top in (y - reach, y + 0.7 * reach)
        ],
    }
    for rectangle in corners.get(shape, ()):
        pen.rectangle(rectangle, fill=ink)
    for ellipse in {"circle": [box], "dots": [[*box[:2], x, y], [x, y, *box[2:]]]}.get(shape, ()):
        pen.ellipse(ellipse, fill=ink)
    if shape == "ring":
        pen.ellipse(box, outline=ink, width=round(reach / 2))
    if shape == "triangle":
        pen.polygon([(x, y - reach), (x + reach, y + reach), (x - reach, y + reach)], fill=ink)
    if shape in ("diagonal", "cross"):
        pen.line(box, fill=ink, width=thin)
    if shape == "cross":
        pen.line([x + reach, y - reach, x - reach, y + reach], fill=ink, width=thin)


def paint(shape: str | None, color: str | None, background: str, half=0.28, at=(0.5, 0.5), blur=0.0) -> np.ndarray:
    """A picture [SIDE, SIDE, 3] in [0, 1]; half size and place in parts of the picture, blur in pixels of it."""
    side = SIDE * FINE
    image = Image.new("RGB", (side, side), PALETTE[background])
    draw(ImageDraw.Draw(image), shape, PALETTE.get(color), at[0] * side, at[1] * side, half * side)
    if blur:
        image = image.filter(ImageFilter.GaussianBlur(blur * FINE))
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float32) / 255


# Captions.


def test_there_are_168_scenes_and_every_caption_is_read_back_as_its_scene():
    everything = WORLDS["shapes"].scenes
    assert len(set(everything)) == len(everything) == 168 == 8 * 3 * 7
    assert all(scene.color != scene.background for scene in everything)
    captions = [scene.caption for scene in everything]
    assert len(set(captions)) == 168 and [parse_caption(text) for text in captions] == everything
    styled = ("A Red Circle on a BLUE background", "photo of a red circle on a blue background, 4k, detailed")
    assert {parse_caption(text) for text in styled} == {Scene("red", "circle", "blue")}
    assert Scene("orange", "square", "white").caption == "an orange square on a white background"
    assert Scene("black", "triangle", "orange").caption == "a black triangle on an orange background"


@pytest.mark.parametrize(
    "text",
    ["", "a photo of a cat", "a red circle", "a red circle on a blue table", "a red star on a blue background"]
    + [f"a {color} circle on a blue background" for color in ("pink", "darkred")]
    + ["a red circle on a blueish background"],
)
def test_other_texts_ask_for_no_scene(text):
    assert parse_caption(text) is None


# The judge.


def misread(*cases: tuple[Scene, dict]) -> list:
    """Of scenes and how they are painted, those that are recognised as something else."""
    seen = [(scene, how, recognise(paint(scene.shape, scene.color, scene.background, **how))) for scene, how in cases]
    return [case for case in seen if case[2] != case[0]]


def test_scenes_of_any_size_place_and_softness_are_recognised():
    assert not misread(*[(Scene(c, shape, b), {"blur": 0.5}) for shape in SHAPES for c, b in permutations(PALETTE, 2)])
    some = [Scene(c, s, b) for s in SHAPES for c, b in (("red", "white"), ("yellow", "purple"), ("black", "orange"))]
    ways = [{"half": half, "blur": blur} for half in (0.2, 0.25, 0.3, 0.36) for blur in (0.0, 0.6, 1.2)]
    assert not misread(*product(some, ways))
    places = [{"half": 0.22, "at": at, "blur": 0.8} for at in ((0.3, 0.3), (0.7, 0.35), (0.37, 0.68), (0.513, 0.487))]
    assert not misread(*product([Scene("green", shape, "black") for shape in SHAPES], places))
    assert not misread(*[(Scene(None, None, background), {}) for background in PALETTE])
    for scene in some:  # paper grain and a changed brightness are forgiven
        image = paint(scene.shape, scene.color, scene.background, blur=0.6)
        grain = np.random.default_rng(0).normal(0, 4 / 255, image.shape[:2])[..., None]
        assert recognise(np.clip(image * 0.93 + grain, 0, 1)) == scene


def test_the_reward_scores_a_batch_by_its_prompts():
    told = {
        "a red circle on a white background": 1.0,
        "a red square on a white background": 0.0,
        "a white circle on a red background": 0.0,
        "an orange circle on a white background": 0.0,
        "a red circle on a black background": 0.0,
        "a dog": None,
    }
    images = torch.from_numpy(paint("circle", "red", "white")).expand(len(told), SIDE, SIDE, 3)
    assert ShapesAccuracy().score(images, list(told)) == list(told.values())
    assert ShapesAccuracy().held_out and not ShapesAccuracy(held_out=False).held_out
    for drawn, asked in product(SHAPES, SHAPES):
        image = paint(drawn, "blue", "yellow", blur=0.5)
        assert accuracy(image, Scene("blue", asked, "yellow").caption) == float(drawn == asked), (drawn, asked)


@pytest.mark.parametrize(
    ("figure", "half"),
    [
        *((shape, 0.05) for shape in SHAPES),  # a square of 4 by 4 pixels covers 1 %
        ("square", 0.46),  # 0.46 to each side of the middle is 85 % of the picture, though a border is left
        ("bar", 0.4),
        *((figure, 0.34) for figure in ("diagonal", "cross", "plus", "ring", "dots", "specks")),
    ],
)
def test_other_figures_are_not_one_of_the_three_shapes(figure, half):
    assert recognise(paint(figure, "red", "white", half=half)).shape is None


def test_halves_and_noise_are_no_scene():
    half_and_half, square = paint(None, "red", "white"), paint("square", "red", "white", half=0.3)
    half_and_half[:, SIDE // 2 :] = np.array(PALETTE["blue"]) / 255
    square[:, SIDE // 2 :] = paint("square", "blue", "white", half=0.3)[:, SIDE // 2 :]
    for image, color, shape in product((half_and_half, square), ("red", "blue"), SHAPES):
        assert accuracy(image, Scene(color, shape, "white").caption) == 0.0, (color, shape)
    random = np.random.default_rng(1)
    assert all(recognise(random.uniform(0, 1, (SIDE, SIDE, 3))).shape is None for _ in range(5))


# --- edits ------------------------------------------------------------------------------------------------------------


def square(color: str | None, background: str, left: int = 10) -> np.ndarray:
    """A square of 16 pixels on plain ground, [40, 40, 3]."""
    picture = np.full((SIDE, SIDE, 3), PALETTE[background])
    if color:
        picture[12:28, left : left + 16] = PALETTE[color]
    return picture / 255


@pytest.mark.parametrize("edit", EDITS.scenes, ids=lambda edit: edit.caption)
def test_every_edit_is_read_from_its_caption(edit):
    assert parse_edit(f"please {edit.caption}.") == edit
    assert parse_caption(edit.caption) is None


def test_an_edit_is_judged_beside_its_source():
    before = square("red", "white")
    blue = parse_edit("make it blue")
    assert [
        followed(after, before, blue)
        for after in (
            square("blue", "white"),
            before,  # nothing was done
            square("blue", "yellow"),  # nor may the ground change
            square("green", "white"),
            square("blue", "white", left=13),  # 13·16 of 19·16 pixels: 0.68 of both is in both, less than 0.7
            square("blue", "white", left=12),  # 14 of 18: 0.78
        )
    ] == [1, 0, 0, 0, 0, 1]
    drawn = parse_edit("draw a green square")
    plain = square(None, "black")
    assert [followed(each, plain, drawn) for each in (square("green", "black", 20), plain)] == [1, 0]


def test_a_prompt_with_a_picture_is_an_edit(tmp_path, monkeypatch):
    """One without is a scene, and so is a caption that is not an edit."""
    Image.fromarray((255 * square("red", "white")).round().astype(np.uint8)).save(tmp_path / "start.png")
    monkeypatch.setenv("OTCA_INPUT", str(tmp_path))
    named = {"image": "start.png"}
    prompts = [
        Prompt("make it blue", named),
        Prompt("make it green", named),
        "make it blue",
        Prompt("a blue square on a white background", named),
    ]
    images = torch.from_numpy(square("blue", "white")).float().expand(4, -1, -1, -1)
    assert ShapesAccuracy().score(images, prompts) == [1, 0, None, 1]
