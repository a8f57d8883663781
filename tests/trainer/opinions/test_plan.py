"""What opinions teach: pairs, values, what is left out and what is held out, and the places of regions."""

import numpy as np
import pytest
from PIL import Image

from comfyui_otca.tests.trainer.opinions.conftest import give_pairs
from comfyui_otca.trainer.opinions import plan
from comfyui_otca.trainer.opinions.exchange import export_lines
from comfyui_otca.trainer.opinions.kinds import Picture
from comfyui_otca.trainer.opinions.plan import Item, places
from comfyui_otca.trainer.opinions.reading import PairError


def thumbs(store, **values):
    store.give([{"kind": "thumb", "picture": name, "value": value} for name, value in values.items()])


def stars(store, names, values):
    store.give([{"kind": "stars", "picture": name, "value": value} for name, value in zip(names, values, strict=True)])


def made(form="pairs", held_out=0.0, **source):
    return plan.plan(plan.read_source(**{"folder": "", **source}), form, held_out)


def names(groups):
    return [tuple(item.picture for item in group.items) for group in groups]


def test_given_pairs_come_first_and_the_best_of_the_others_meets_the_worst(gallery):
    ids = gallery(8)
    give_pairs(gallery.store, [ids[:2]])
    stars(gallery.store, ids[2:], [5, 1, 3, 4, 2, 3])
    assert names(made_least(gallery, "pairs")) == [(ids[0], ids[1]), (ids[2], ids[3]), (ids[5], ids[6])]


def made_least(gallery, form):
    """The groups, however few."""
    source = plan.read_source("")
    with pytest.raises(PairError, match="too few"):
        plan.plan(source, form, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "LEAST", 0)
        return plan.plan(source, form, 0.0).groups


def test_pictures_alone_have_the_mean_of_their_thumb_and_stars(gallery):
    """Thumb 1 and 2 stars (-½): ¼. 3 stars say nothing. A picture that won once and lost once says nothing."""
    a, b, c, d, e, f = gallery(6)
    thumbs(gallery.store, **{a: 1, b: -1})
    stars(gallery.store, [a, c], [2, 3])
    give_pairs(gallery.store, [(d, e), (e, f)])
    found = {group.items[0].picture: group.items[0].value for group in made("pictures").groups}
    assert found == {a: 0.25, b: -1.0, d: 1.0, f: -1.0}


def test_a_group_with_only_likes_has_no_pair_and_that_is_said_with_what_to_do(gallery):
    ids = gallery(5)
    thumbs(gallery.store, **dict.fromkeys(ids, 1))
    with pytest.raises(
        PairError, match="0 pairs from 5 opinions.*5 pictures have no partner.*set learn_from to pictures"
    ):
        made()
    assert [group.items[0].value for group in made("pictures").groups] == [1.0] * 5


def test_pictures_that_are_gone_or_changed_are_left_out_and_counted(gallery):
    ids = gallery(12)
    give_pairs(gallery.store, zip(ids[::2], ids[1::2], strict=True))
    (gallery.folder / "0.png").unlink()
    Image.new("RGB", (40, 24)).save(gallery.folder / "3.png")
    found = made()
    assert names(found.groups) == list(zip(ids[4::2], ids[5::2], strict=True))
    assert "2 opinions are about pictures that are gone" in found.notes[1] and "That is few" in found.notes[2]


def test_a_moved_picture_is_found_again_once_its_new_path_is_known(gallery):
    ids = gallery(8)
    give_pairs(gallery.store, zip(ids[::2], ids[1::2], strict=True))
    (gallery.folder / "0.png").rename(gallery.folder / "new name.png")
    gallery.store.give([], [{"id": ids[0], "path": str(gallery.folder / "new name.png")}])
    assert len(made().groups) == 4


def test_whole_prompts_are_held_out_and_a_further_opinion_moves_none(gallery):
    ids = gallery(80, [f"prompt {number}" for number in range(20)])
    give_pairs(gallery.store, zip(ids[:20], ids[20:40], strict=True))
    before = made(held_out=0.3)
    assert len(before.groups) + len(before.held_out) == 20 and 2 <= len(before.held_out) <= 12
    trained = {group.prompt for group in before.groups}
    assert not trained & {group.prompt for group in before.held_out}
    give_pairs(gallery.store, zip(ids[40:60], ids[60:], strict=True))
    after = made(held_out=0.3)
    assert {group.prompt for group in after.groups} == trained and len(after.groups) == 2 * len(before.groups)


def test_of_one_prompt_pictures_that_were_compared_stay_on_one_side(gallery):
    ids = gallery(60)
    give_pairs(gallery.store, [pair for n in range(0, 60, 3) for pair in (ids[n : n + 2], ids[n + 1 : n + 3])])
    found = made(held_out=0.4)
    sides = [{name for pair in names(groups) for name in pair} for groups in (found.groups, found.held_out)]
    assert not sides[0] & sides[1] and found.held_out


def test_a_tag_chooses_and_a_folder_of_a_bundle_stands_for_the_gallery(gallery, monkeypatch):
    ids = gallery(10)
    give_pairs(gallery.store, zip(ids[::2], ids[1::2], strict=True))
    gallery.store.give([{"kind": "tag", "picture": name, "other": "mine", "value": True} for name in ids[:9]])
    assert len(made(tag="mine").groups) == 4
    with pytest.raises(PairError, match="no opinion about pictures with the tag 'other'"):
        made(tag="other")
    lines = [row.replace(f"{gallery.folder}/", "") for row in export_lines(gallery.store)]
    (gallery.folder / plan.FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.setenv("OTCA_INPUT", str(gallery.folder.parent))
    assert len(made(folder=gallery.folder.name).groups) == 5
    lines.insert(1, '{"picture": {"id": "x"}}')
    (gallery.folder / plan.FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(PairError, match="line 2 has id"):
        made(folder=gallery.folder.name)


def test_a_list_cannot_name_a_file_outside_of_its_folder(gallery, monkeypatch):
    ids = gallery(10)
    give_pairs(gallery.store, zip(ids[::2], ids[1::2], strict=True))
    inner = gallery.folder / "inner"
    inner.mkdir()
    lines = [row.replace(f"{gallery.folder}/", "../") for row in export_lines(gallery.store)]
    (inner / plan.FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.setenv("OTCA_INPUT", str(gallery.folder))
    with pytest.raises(PairError, match="5 opinions are about pictures that are gone"):
        made(folder="inner")


def test_no_opinion_at_all_is_said(gallery):
    with pytest.raises(PairError, match="has no opinion. Fix: open Pictures"):
        made()


# --- where in the picture ---------------------------------------------------------------------------------------------

WIDE = Picture("0" * 64, width=8, height=4)  # its middle 4 x 4 are what a square sees


def box(like, *sides):
    return {"like": like, "box": list(sides)}


@pytest.mark.parametrize(
    ("value", "regions", "expected"),
    [
        (1.0, (), [[1, 1], [1, 1]]),
        (1.0, (box(True, 0, 0, 1, 0.5),), [[2, 2], [0, 0]]),
        (1.0, (box(True, 0, 0, 0.5, 1),), [[2, 0], [2, 0]]),
        (-1.0, (box(False, 0.5, 0.5, 1, 1),), [[0, 0], [0, 4]]),
        (1.0, (box(False, 0.5, 0.5, 1, 1),), [[4 / 3, 4 / 3], [4 / 3, 0]]),  # not there, but everywhere else
        (1.0, (box(True, 0, 0, 1, 0.5), box(False, 0, 0, 0.5, 1)), [[0, 4], [0, 0]]),
        (1.0, (box(False, 0, 0, 1, 1),), [[1, 1], [1, 1]]),  # nothing is left
        (1.0, ({"like": True, "mask": {"width": 4, "height": 2, "runs": [2, 1, 5]}},), [[0, 4], [0, 0]]),
    ],
)
def test_places_by_hand(value, regions, expected):
    found = places(Item(WIDE.id, value, regions), WIDE, (16, 16), (2, 2))
    np.testing.assert_allclose(found, expected, atol=0.03)
