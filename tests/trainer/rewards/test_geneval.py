"""GenEval's structured prompts, on boxes drawn by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from comfyui_otca.trainer.networks.detector import Found, apart, shared_area
from comfyui_otca.trainer.prompts import read_prompts
from comfyui_otca.trainer.rewards import RewardError
from comfyui_otca.trainer.rewards.geneval import Clause, met, relations, wish
from comfyui_otca.trainer.types import Prompt

ASSETS = Path(__file__).resolve().parents[3] / "assets"


def boxes(*corners):
    """The surest first."""
    return [Found(0.9 - 0.1 * number, box) for number, box in enumerate(corners)]


# Four squares of 20 pixels in the corners of a picture of 100, and one in the middle.
TOP_LEFT, TOP_RIGHT, BOTTOM_LEFT, MIDDLE = (0, 0, 20, 20), (80, 0, 100, 20), (0, 80, 20, 100), (40, 40, 60, 60)


def asked(**metadata):
    return wish(Prompt("a prompt", metadata))


def never(name, objects):
    raise AssertionError("no clause has a color")


def always(color):
    return lambda name, objects: [color] * len(objects)


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        (TOP_LEFT, TOP_RIGHT, {"left of"}),
        (TOP_RIGHT, TOP_LEFT, {"right of"}),
        (TOP_LEFT, BOTTOM_LEFT, {"above"}),
        (BOTTOM_LEFT, TOP_LEFT, {"below"}),
        (TOP_RIGHT, BOTTOM_LEFT, {"right of", "above"}),  # 80 - 4 of 113 pixels each way: 0.67
        (MIDDLE, TOP_LEFT, {"right of", "below"}),
        (MIDDLE, MIDDLE, set()),
        ((44, 40, 64, 60), MIDDLE, set()),  # 4 pixels apart, which is a tenth of both sizes
        ((45, 40, 65, 60), MIDDLE, set()),  # 5 - 4 of 5: 0.2
        ((49, 40, 69, 60), MIDDLE, {"right of"}),  # 9 - 4 of 9: 0.56
        ((0, 0, 100, 100), MIDDLE, set()),
    ],
)
def test_how_one_box_stands_to_another(one, other, names):
    assert relations(one, other) == names


def test_counts():
    two = asked(include=[{"class": "cat", "count": 2}], exclude=[{"class": "cat", "count": 3}])
    for corners, answers in (
        ([], [False, True]),
        ([TOP_LEFT], [False, True]),
        ([TOP_LEFT, MIDDLE], [True, True]),
        ([TOP_LEFT, MIDDLE, TOP_RIGHT], [True, False]),
    ):
        assert met(two, {"cat": boxes(*corners)}, never) == answers
    assert met(asked(exclude=[{"class": "dog"}]), {}, never) == [True]
    assert met(asked(exclude=[{"class": "dog"}]), {"dog": boxes(MIDDLE)}, never) == [False]


def test_colors_of_as_many_as_asked_for():
    one_red = asked(include=[{"class": "cup", "count": 1, "color": "red"}])
    assert met(one_red, {"cup": boxes(MIDDLE)}, always("red")) == [True, True]
    assert met(one_red, {"cup": boxes(MIDDLE)}, always("blue")) == [True, False]
    assert met(one_red, {}, always("red")) == [False, False]
    # Of two cups the surer one counts, and of two cups that are wanted both.
    told = {TOP_LEFT: "red", MIDDLE: "blue"}
    by_place = lambda name, objects: [told[own.box] for own in objects]  # noqa: E731
    assert met(one_red, {"cup": boxes(TOP_LEFT, MIDDLE)}, by_place) == [True, True]
    assert met(one_red, {"cup": boxes(MIDDLE, TOP_LEFT)}, by_place) == [True, False]
    two_red = asked(include=[{"class": "cup", "count": 2, "color": "red"}])
    assert met(two_red, {"cup": boxes(TOP_LEFT, MIDDLE)}, by_place) == [True, False]


def test_places():
    left = asked(include=[{"class": "dog", "count": 1}, {"class": "cat", "count": 1, "position": ["left of", 0]}])
    assert met(left, {"dog": boxes(TOP_RIGHT), "cat": boxes(TOP_LEFT)}, never) == [True, True, True]
    assert met(left, {"dog": boxes(TOP_LEFT), "cat": boxes(TOP_RIGHT)}, never) == [True, True, False]
    assert met(left, {"cat": boxes(TOP_LEFT)}, never) == [False, True, False], "there is nothing to be left of"
    assert met(left, {"dog": boxes(TOP_RIGHT)}, never) == [True, False, False]


def test_all_of_several_have_to_stand_so_to_all_others():
    left = asked(include=[{"class": "dog", "count": 2}, {"class": "cat", "count": 1, "position": ["left of", 0]}])
    assert met(left, {"dog": boxes(TOP_RIGHT, MIDDLE), "cat": boxes(TOP_LEFT)}, never) == [True, True, True]
    assert met(left, {"dog": boxes(TOP_RIGHT, BOTTOM_LEFT), "cat": boxes(TOP_LEFT)}, never) == [True, True, False]


def test_what_has_the_wrong_color_is_in_no_place():
    under = asked(
        include=[
            {"class": "dog", "count": 1, "color": "red"},
            {"class": "cat", "count": 1, "color": "red", "position": ["above", 0]},
        ]
    )
    found = {"dog": boxes(BOTTOM_LEFT), "cat": boxes(TOP_LEFT)}
    assert met(under, found, always("red")) == [True] * 5
    only_cats = lambda name, objects: ["red" if name == "cat" else "blue"] * len(objects)  # noqa: E731
    assert met(under, found, only_cats) == [True, False, True, True, False]


def test_a_line_of_genevals_own_file():
    line = {
        "tag": "color_attr",
        "include": [{"class": "dog", "count": 1, "color": "brown"}, {"class": "cat", "count": 1, "color": "white"}],
        "prompt": "a photo of a brown dog and a white cat",
    }
    own = wish(Prompt(line["prompt"], line))
    assert own.include == (Clause("dog", 1, "brown"), Clause("cat", 1, "white")) and own.names == ("dog", "cat")


@pytest.mark.parametrize("metadata", [{}, {"include": []}, {"include": None, "exclude": []}, {"tag": "counting"}])
def test_a_prompt_that_asks_for_no_objects(metadata):
    assert wish(Prompt("a cat", metadata)) is None
    assert wish("a cat") is None


CAT = {"class": "cat", "count": 1}


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({"include": "two cats"}, "include"),
        ({"include": {"class": "cat"}}, "include"),
        ({"include": ["cat"]}, r"include\[0\]"),
        ({"include": [{"count": 2}]}, r"include\[0\]"),
        ({"include": [CAT, {"class": "cat", "colour": "red"}]}, r"include\[1\]"),
        ({"include": [{"class": " "}]}, r"include\[0\].class"),
        ({"include": [{"class": 5}]}, r"include\[0\].class"),
        ({"include": [{"class": "cat", "count": "two"}]}, r"include\[0\].count"),
        ({"include": [{"class": "cat", "count": 0}]}, r"include\[0\].count"),
        ({"include": [{"class": "cat", "count": True}]}, r"include\[0\].count"),
        ({"include": [{"class": "cat", "color": "mauve"}]}, r"include\[0\].color"),
        ({"include": [{"class": "cat", "position": ["left of", 0]}]}, r"include\[0\].position"),
        ({"include": [CAT, {"class": "dog", "position": ["beside", 0]}]}, r"include\[1\].position"),
        ({"include": [CAT, {"class": "dog", "position": ["above", 1]}]}, r"include\[1\].position"),
        ({"include": [CAT, {"class": "dog", "position": "above"}]}, r"include\[1\].position"),
        ({"include": [CAT], "exclude": [{"class": "dog", "color": "red"}]}, r"exclude\[0\]"),
    ],
)
def test_what_is_malformed_is_named(metadata, key):
    with pytest.raises(RewardError, match=rf"of the prompt 'two cats' say {key} = .*Fix: in its line"):
        wish(Prompt("two cats", metadata))


def test_shared_area():
    assert shared_area((0, 0, 10, 10), (5, 0, 15, 10)) == pytest.approx(50 / 150)
    assert shared_area(MIDDLE, MIDDLE) == 1
    assert shared_area(TOP_LEFT, MIDDLE) == 0
    assert shared_area((5, 5, 5, 5), (5, 5, 5, 5)) == 0


def test_of_boxes_on_one_object_the_surest_is_kept():
    sure, near, other = boxes((0, 0, 10, 10), (1, 0, 11, 10), MIDDLE)  # the first two share 90 of 110
    assert apart([sure, near, other], 0.5) == [sure, other]
    assert apart([sure, near, other], 0.9) == [sure, near, other]


def test_every_prompt_of_the_pack_can_be_read():
    prompts = read_prompts("", str(ASSETS / "prompts" / "objects.jsonl"))
    wishes = [wish(prompt) for prompt in prompts]
    assert len(wishes) == 48 and all(wishes)
    assert sum(bool(own.exclude) for own in wishes) == sum(own.include[-1].position is not None for own in wishes) == 12
