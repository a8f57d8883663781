"""`otca taste fit`: votes, folders and pair files to a head, and what is refused."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from PIL import Image

from comfyui_otca.__main__ import main
from comfyui_otca.study import taste
from comfyui_otca.study.taste import Comparison
from comfyui_otca.trainer.opinions.pairs import connected
from comfyui_otca.trainer.opinions.votes import Answer, Vote, append, of_folder
from comfyui_otca.trainer.rewards.taste import Head


def picture(path, red, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(60, 120, (40, 40, 3), dtype=np.uint8)
    pixels[..., 0] = red
    Image.fromarray(pixels).save(path)
    return path


def voted(folder, count=12, contrary=False):
    """A folder of votes by somebody who likes red."""
    random = np.random.default_rng(0)
    for number in range(count):
        reds = random.permutation([20, 120, 220]).tolist()
        names = [f"votes/{number:08x}{place:08x}.png" for place in range(3)]
        for name, red in zip(names, reds, strict=True):
            picture(folder / name, red, int(name[6:14], 16) * 3 + int(name[14:22], 16))
        best = int(np.argmax(reds))
        order = ((best,), tuple(place for place in range(3) if place != best))
        append(of_folder(folder), Vote("a", tuple(names), Answer("order", order)))
        if contrary:
            append(of_folder(folder), Vote("a", tuple(names), Answer("order", order[::-1])))
    append(of_folder(folder), Vote("a", tuple(names), Answer("skip")))
    return folder


def fit(capsys, *arguments):
    code = main(["taste", "fit", *map(str, arguments), "--device", "cpu"])
    return code, capsys.readouterr()


def test_votes_to_a_head(tmp_path, capsys):
    code, shown = fit(capsys, voted(tmp_path / "v"), "--output", tmp_path / "taste.safetensors")
    assert code == 0 and "12 votes, 24 pairs, 36 pictures; encoder shapes-clip" in shown.out
    loaded = Head.load(tmp_path / "taste.safetensors")
    accuracy = loaded.about["accuracy"]
    assert accuracy["mean"] > 0.85 and accuracy["low"] > 0.5 and accuracy["count"] == 12
    assert sum(row[2] for row in loaded.about["calibration"]) == 24  # two pairs of each vote, each predicted once
    files = [str(picture(tmp_path / f"{name}.png", red)) for name, red in (("red", 220), ("blue", 20))]
    options = ["--prompt", "a", "--reward", f"my_taste:path={tmp_path / 'taste.safetensors'}"]
    assert main(["score", *files, *options, "--csv", str(tmp_path / "s.csv")]) == 0
    red, blue = [float(line.split(",")[-1]) for line in (tmp_path / "s.csv").read_text().splitlines()[1:]]
    assert red > blue


def test_contradictory_votes_are_near_chance_and_that_is_said(tmp_path, capsys):
    code, shown = fit(capsys, voted(tmp_path / "v", contrary=True), "--output", tmp_path / "taste.safetensors")
    accuracy = Head.load(tmp_path / "taste.safetensors").about["accuracy"]
    assert code == 0 and accuracy["mean"] == pytest.approx(
        0.5, abs=1e-9
    )  # whatever it says is right once and wrong once
    assert "not surely better than chance" in shown.out


def test_liked_and_disliked_pictures(tmp_path, capsys):
    liked, disliked, output = tmp_path / "liked", tmp_path / "disliked", tmp_path / "t.safetensors"
    for number in range(12):
        picture(liked / f"{number}.png", 180 + number, number)
        picture(disliked / f"{number}.png", 60 - number, 100 + number)
    code, shown = fit(capsys, "--liked", liked, "--disliked", disliked, "--output", output)
    about = Head.load(output).about
    assert code == 0 and (about["votes"], about["pairs"], about["pictures"]) == (1, 144, 24)
    assert about["accuracy"]["mean"] > 0.9 and about["accuracy"]["count"] == 12


BAD_LINES = [
    ({"image_0": "a.png"}, "has neither chosen and rejected, nor image_0, image_1 and label_0"),
    ({"chosen": "a.png", "rejected": "c.png"}, 'names the picture "c.png", which is not in'),
    ({"chosen": "a.png", "rejected": [{"role": "user"}]}, "where the path of a picture is needed"),
    ({"chosen": "a.png", "rejected": "a.png"}, 'the same picture "a.png" as chosen and as rejected'),
    ({"chosen": "a.png", "rejected": "a.mp4"}, "is about the video a.mp4"),
    ({"image_0": "a.png", "image_1": "a.png", "label_0": 2}, "has label_0 = 2, and not 1, 0 or 0.5"),
]


def test_a_bad_line_is_named(tmp_path, capsys):
    picture(tmp_path / "a.png", 100)
    picture(tmp_path / "b.png", 50)
    good = {"chosen": "a.png", "rejected": "b.png"}
    for row, says in BAD_LINES:
        (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, (good, row, good))) + "\n")
        code, shown = fit(capsys, tmp_path / "p.jsonl", "--output", tmp_path / "t.safetensors")
        assert code == 2 and "p.jsonl" in shown.err and "line 2" in shown.err and says in shown.err
        assert not (tmp_path / "t.safetensors").exists()


def test_what_is_refused(tmp_path, capsys):
    empty, output = tmp_path / "empty", ["--output", tmp_path / "t.safetensors"]
    empty.mkdir()
    pictures = tuple(f"votes/{digit * 16}.png" for digit in "01")
    append(of_folder(tmp_path), Vote("a", pictures, Answer("alike")))
    for arguments, says in (
        ([*output], "there is nothing to learn from"),
        ([tmp_path / "nowhere", *output], "nowhere is not there"),
        ([tmp_path, *output], "no vote says that one picture is better"),
        (["--liked", empty, *output], "--liked and --disliked belong together"),
        (["--liked", empty, "--disliked", empty, *output], "has no pictures"),
        ([tmp_path, "--output", tmp_path / "t.pt"], "is not a .safetensors file"),
    ):
        code, shown = fit(capsys, *arguments)
        assert code == 2 and says in shown.err


def test_an_unreadable_picture_is_named_and_the_others_are_learned_from(tmp_path, capsys, caplog):
    folder = voted(tmp_path / "v", 2)
    names = sorted((folder / "votes").iterdir())
    names[1].write_bytes(b"no picture")
    code, shown = fit(capsys, folder, "--output", tmp_path / "t.safetensors")
    assert code == 0 and "2 votes" in shown.out and "5 pictures" in shown.out
    assert f"{names[1]} cannot be read: it is not one of PNG" in caplog.text
    for name in names:
        name.write_bytes(b"no picture")
    code, shown = fit(capsys, folder, "--output", tmp_path / "t.safetensors")
    assert code == 2 and "no file of 6 can be read" in shown.err


# --- what is held out -------------------------------------------------------------------------------------------------


def test_votes_that_share_a_picture_are_held_out_together():
    chain = [Comparison((a, b), ((0,), (1,))) for a, b in (("a", "b"), ("c", "d"), ("b", "c"), ("e", "f"))]
    assert sorted(map(sorted, connected([one.files for one in chain]))) == [["a", "b", "c", "d"], ["e", "f"]]
    many = [Comparison((f"a{n}", f"b{n}"), ((0,), (1,))) for n in range(7)]
    folds = taste.split_folds(many, connected([one.files for one in many]))
    assert sum(map(len, folds)) == 14 and all(
        ({f"a{n}", f"b{n}"} <= fold) == (f"a{n}" in fold) for fold in folds for n in range(7)
    )


def test_pairs_that_share_all_their_pictures_are_spread_over_the_folds():
    names = [f"p{n}" for n in range(20)]
    pairs = [Comparison(pair, ((0,), (1,))) for pair in itertools.combinations(names, 2)]
    folds = taste.split_folds(pairs, connected([one.files for one in pairs]))
    assert [len(fold) for fold in folds] == [4] * 5 and set().union(*folds) == set(names)
    rows = {name: np.eye(20)[n] + n for n, name in enumerate(names)}
    assert taste.held_out(pairs, rows)["accuracy"]["count"] == 5 * 6  # the pairs within a fold


def test_why_nothing_was_left_out(tmp_path, capsys):
    for name, red in (("a.png", 220), ("b.png", 20), ("c.png", 120)):
        picture(tmp_path / name, red)
    rows = [{"chosen": one, "rejected": other} for one, other in (("a.png", "b.png"), ("a.png", "c.png"))] * 10
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, shown = fit(capsys, tmp_path / "p.jsonl", "--output", tmp_path / "t.safetensors")
    assert code == 0 and "votes connect nearly all pictures" in shown.out and "too few votes" not in shown.out


def test_the_calibration_table_by_hand():
    found = taste.summary_of([1.0, 0.0], [(0.55, 1.0), (0.55, 0.0), (0.95, 1.0), (0.95, 1.0)])
    assert found["calibration"] == [(pytest.approx(0.55), 0.5, 2), (pytest.approx(0.95), 1.0, 2)]
    assert found["calibration_error"] == pytest.approx(0.05) and found["accuracy"]["mean"] == 0.5
