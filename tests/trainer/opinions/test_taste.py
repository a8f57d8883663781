"""My Taste from clicks: what it learns of pairs, thumbs and stars, how sure it is, and what it asks next."""

import numpy as np
import pytest

from comfyui_otca.tests.trainer.opinions.conftest import give_pairs
from comfyui_otca.trainer.opinions.kinds import STARS, THUMB, Opinion
from comfyui_otca.trainer.opinions.pairs import made_pairs, values_of
from comfyui_otca.trainer.opinions.taste import ClickedTaste
from comfyui_otca.trainer.rewards.taste import Head


@pytest.fixture
def both(gallery):
    """both(n): (bright, dark) ids of n pairs of pictures, each pair of a prompt of its own."""
    random = np.random.default_rng(0)

    def make(count):
        ids = gallery(
            2 * count,
            [f"prompt {number // 2}" for number in range(2 * count)],
            lambda number: ((60 if number % 2 else 190) + random.integers(-40, 41, (40, 40, 3))).astype(np.uint8),
        )
        return list(zip(ids[::2], ids[1::2], strict=True))

    return make


def say(store, kind, picture, value, other=""):
    store.give([{"kind": kind, "picture": picture, "value": value, "other": other}])


def test_values_and_pairs_of_thumbs_and_stars_by_hand():
    said = [
        Opinion(STARS, "a", 5),
        Opinion(THUMB, "b", -1),
        Opinion(STARS, "b", 4),
        Opinion(STARS, "c", 3),
        Opinion(STARS, "d", 1),
    ]
    values = values_of([*said, Opinion(STARS, "e", 3)])
    assert values == {"a": 1.0, "b": -0.25, "c": 0.0, "d": -1.0, "e": 0.0}
    assert made_pairs(values, dict.fromkeys("abcde", "p")) == [
        ("a", "d")
    ]  # c and b are a quarter apart, e is in the middle
    assert made_pairs(values, {**dict.fromkeys("ad", "p"), **dict.fromkeys("bce", "q")}, {"e"}) == [("a", "d")]


def test_it_learns_from_clicks_foretells_pictures_and_says_how_often_it_is_right(gallery, both):
    pairs = both(14)
    taste = ClickedTaste(gallery.store, "shapes-clip", "cpu")
    assert taste.head() is None and taste.scores(pairs[0]) == {} and taste.agreement() is None
    give_pairs(gallery.store, pairs[:4])
    for bright, dark in pairs[4:8]:
        say(gallery.store, "thumb", bright, 1)
        say(gallery.store, "stars", dark, 1)
    for number, pair in enumerate(pairs[8:12]):  # one of each prompt: compared across prompts
        say(gallery.store, "thumb", pair[number % 2], 1 - 2 * (number % 2))
    mean, error, count = taste.agreement()
    assert count == 10 and mean >= 0.9 and np.isfinite(error)
    scores = taste.scores([*pairs[12], *pairs[13]])  # that it has not seen
    assert all(scores[bright] > scores[dark] for bright, dark in pairs[12:])


def test_what_it_learned_is_a_head_of_my_taste_and_features_are_computed_once(gallery, both, tmp_path, monkeypatch):
    pairs = both(5)
    give_pairs(gallery.store, pairs)
    first = ClickedTaste(gallery.store, "shapes-clip", "cpu")
    before = first.scores(pairs[0])
    first.head().save(tmp_path / "taste.safetensors")
    assert Head.load(tmp_path / "taste.safetensors").about == {"pairs": 5}
    monkeypatch.setattr("comfyui_otca.trainer.opinions.fit.read_features", None)  # another process need not compute
    assert ClickedTaste(gallery.store, "shapes-clip", "cpu").scores(pairs[0]) == before


def test_a_taken_back_click_is_forgotten(gallery, both):
    give_pairs(gallery.store, both(4))
    taste = ClickedTaste(gallery.store, "shapes-clip", "cpu")
    assert taste.head() is not None
    gallery.store.take_back()
    assert taste.head() is None


def test_the_next_pair_was_not_answered_and_is_of_one_group(gallery, both, tmp_path):
    pairs = both(7)
    (tmp_path / "13.png").write_bytes(
        (tmp_path / "12.png").read_bytes()
    )  # a deleted one's name, which ComfyUI gives again
    taste = ClickedTaste(gallery.store, "shapes-clip", "cpu")
    assert len(taste.next_pairs(pairs, 3)) == 3  # before the first opinion too
    give_pairs(gallery.store, pairs[:4])
    asked = taste.next_pairs(pairs, 5)
    assert {frozenset(pair) for pair in asked} == {frozenset(pair) for pair in pairs[4:6]}
    assert len(ClickedTaste(gallery.store, "shapes-clip", "cpu").next_pairs([["f" * 64, pairs[5][0]]])) == 0
