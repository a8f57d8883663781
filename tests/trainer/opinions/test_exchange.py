"""Opinions out and in: JSON lines, and folders of votes; and which picture is which."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from comfyui_otca.host.files import Damaged
from comfyui_otca.trainer.opinions import exchange, votes
from comfyui_otca.trainer.opinions.identity import picture_id, pixels_id
from comfyui_otca.trainer.opinions.store import Store

A, B = "a" * 64, "b" * 64
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)


def encoded(kind, **how):
    content = io.BytesIO()
    Image.fromarray(PIXELS).save(content, kind, **how)
    return content.getvalue()


def test_a_picture_keeps_its_name_when_it_is_saved_again_without_loss():
    texts = PngInfo()
    texts.add_text("prompt", "{}")
    same = [
        encoded("PNG"),
        encoded("PNG", pnginfo=texts, compress_level=0),
        encoded("WEBP", lossless=True),
        encoded("BMP"),
    ]
    assert {picture_id(content) for content in same} == {pixels_id(PIXELS)}
    assert picture_id(encoded("JPEG")) != pixels_id(PIXELS)
    with pytest.raises(ValueError, match="is not one of"):
        picture_id(b"no picture")


def test_what_is_exported_comes_in_elsewhere_once(tmp_path, monkeypatch):
    here, there = Store(tmp_path / "here.sqlite"), Store(tmp_path / "there.sqlite")
    here.give(
        [
            {"kind": "pair", "picture": A, "other": B, "value": True},
            {"kind": "region", "picture": A, "value": {"like": True, "box": [0, 0, 1, 0.5]}},
            {"kind": "thumb", "picture": B, "value": -1},
        ],
        [
            {"id": A, "prompt": "Kätzchen", "path": "a.png", "models": ["m"], "width": 8, "height": 6},
            {"id": B, "prompt": "Kätzchen"},
        ],
    )
    here.take_back()
    file = tmp_path / "opinions.jsonl"
    file.write_text("\n".join(exchange.export_lines(here)) + "\n", encoding="utf-8")
    assert exchange.import_lines(there, file) == exchange.Imported(new=2, known=0)
    assert exchange.import_lines(there, file) == exchange.Imported(new=0, known=2)
    assert there.standing() == here.standing() and there.pictures() == here.pictures()
    give, click = Store.give, {"kind": "thumb", "picture": A, "value": 1}
    monkeypatch.setattr(Store, "give", lambda store, *rows: give(store, [click]) and give(store, *rows))
    assert exchange.import_lines(there, file) == exchange.Imported(new=0, known=2), "and not what is clicked meanwhile"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('{"thumb": 1}', "neither a picture nor an opinion"),
        ('{"picture": {"id": "x"}}', "64 hexadecimal digits"),
        (json.dumps({"opinion": {"kind": "thumb", "picture": A, "value": 1}}), "has no 'id'"),
        ('{"opinion": ' + "[" * 500 + "]" * 500 + "}", "nested deeper"),
        ('{"opinion": 1}', "holds a number"),
    ],
)
def test_a_strangers_file_is_refused_with_its_line_and_nothing_comes_in(tmp_path, line, wrong):
    store, file = Store(tmp_path / "opinions.sqlite"), tmp_path / "in.jsonl"
    good = json.dumps({"opinion": {"kind": "thumb", "picture": A, "value": 1, "id": "0" * 32}})
    file.write_text(f"{good}\n{line}\n")
    with pytest.raises(Damaged, match=f"line 2 .*{wrong}"):
        exchange.import_lines(store, file)
    assert store.count() == 0


def test_votes_come_in_as_pairs_of_the_same_pictures_once(tmp_path):
    pictures = [np.full((4, 4, 3), shade, np.uint8) for shade in (0, 100, 200)]
    names = [votes.picture_path(pixels) for pixels in pictures]
    (tmp_path / "votes").mkdir()
    for name, pixels in zip(names, pictures, strict=True):
        Image.fromarray(pixels).save(tmp_path / name)
    order = votes.Answer("order", ((2,), (0, 1)))
    votes.append(votes.of_folder(tmp_path), votes.Vote("a cat", tuple(names), order, id="1" * 32))
    withdrawn = votes.Vote("a cat", tuple(names[:2]), votes.Answer("pair", ((0,), (1,))), id="2" * 32)
    votes.append(votes.of_folder(tmp_path), withdrawn)
    votes.append(
        votes.of_folder(tmp_path),
        votes.Vote("a cat", tuple(names[:2]), votes.Answer(votes.WITHDRAWN), replaces="2" * 32),
    )
    store = Store(tmp_path / "opinions.sqlite")
    assert exchange.import_votes(store, tmp_path) == exchange.Imported(new=2, known=0)
    ids = [pixels_id(pixels) for pixels in pictures]
    assert [(pair.picture, pair.other) for pair in store.standing("pair")] == [(ids[2], ids[0]), (ids[2], ids[1])]
    assert store.pictures([ids[0]])[ids[0]].prompt == "a cat"
    for prompt in ("half a \ud800", "x" * 100_001, "a dog"):  # seen before: each of these kept all other votes out
        votes.append(
            votes.of_folder(tmp_path),
            votes.Vote(prompt, tuple(names[1:]), votes.Answer("pair", ((0,), (1,))), id=prompt[:32]),
        )
    assert exchange.import_votes(store, tmp_path) == exchange.Imported(new=0, known=2, unread=3)
    (tmp_path / names[0]).unlink()
    assert exchange.import_votes(store, tmp_path) == exchange.Imported(new=0, known=1, unread=4)
