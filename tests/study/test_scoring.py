"""`otca score`: which files, whose prompts, and what is written of them."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from PIL import Image

from comfyui_otca.__main__ import main
from comfyui_otca.study import scoring
from comfyui_otca.study.scoring import find_files, parse_reward, prompts_of
from comfyui_otca.tests.tiny import detectors as tiny_detectors
from comfyui_otca.trainer.networks.detector import Found, GroundingDino
from comfyui_otca.trainer.pictures.media import mp4
from comfyui_otca.trainer.rewards import reward_class, scenes
from comfyui_otca.trainer.rewards import text as ocr
from comfyui_otca.trainer.types import metadata_of

BRIGHTNESS = "def score(images, prompts):\n    return images.mean((1, 2, 3))\n"
LENGTH = "def score(images, prompts):\n    return [len(prompt) for prompt in prompts]\n"


@pytest.fixture
def folder(tmp_path):
    """Three grey pictures of two sizes: 0, 51 and 102 of 255."""
    for number, size in enumerate([(8, 8), (8, 8), (16, 8)]):
        Image.new("RGB", size, (51 * number,) * 3).save(tmp_path / f"{number}.png")
    return tmp_path


@pytest.fixture
def rewards(tmp_path_factory, monkeypatch):
    """The allowed folder of two rewards: brightness.py and length.py."""
    place = tmp_path_factory.mktemp("rewards")
    (place / "brightness.py").write_text(BRIGHTNESS)
    (place / "length.py").write_text(LENGTH)
    monkeypatch.setenv("OTCA_ALLOW_PYTHON_REWARDS", str(place))
    return place


# --- what is scored ---------------------------------------------------------------------------------------------------


def test_files_by_folder_pattern_and_name(folder):
    (folder / "notes.txt").write_text("none")
    names = [path.name for path in find_files([str(folder)])]
    assert names == ["0.png", "1.png", "2.png"]
    assert [path.name for path in find_files([str(folder / "[12].png"), str(folder / "0.png")])] == [
        "1.png",
        "2.png",
        "0.png",
    ]
    with pytest.raises(FileNotFoundError, match="9.png' is neither a file"):
        find_files([str(folder / "9.png")])
    with pytest.raises(ValueError, match="notes.txt is neither a picture nor a video"):
        find_files([str(folder / "notes.txt")])


def test_prompts_by_the_files_names(folder):
    files, table = find_files([str(folder)]), folder / "other.jsonl"
    rows = [{"file_name": f"{n}.png", "prompt": text, "count": n} for n, text in ((2, "c"), (0, "a"))]
    table.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"file_name": "1.png"}]))
    read = prompts_of([files[2], files[0]], table)
    assert read == ["c", "a"] and [*map(metadata_of, read)] == [{"count": 2}, {"count": 0}]
    with pytest.raises(ValueError, match="1.png has no prompt, neither in .*other.jsonl. Fix: "):
        prompts_of(files, table)
    table.rename(folder / "metadata.jsonl")
    (folder / "1.txt").write_text("b\n")
    assert prompts_of(files, None) == ["a", "b", "c"], "beside it, then the metadata"
    (lines := folder / "lines.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match="lines.txt has 2 prompts for 3 files. Fix: "):
        prompts_of(files, lines)


# --- rewards by name --------------------------------------------------------------------------------------------------


def test_options_of_a_reward(rewards):
    reward = parse_reward("http:url=http://127.0.0.1:1/score,batch_size=4,timeout=2,name=mine,clip=0, 1")
    assert reward.server.url == "http://127.0.0.1:1/score"
    assert (reward.server.batch_size, reward.server.timeout, reward.name) == (4, 2.0, "mine")
    assert reward.bounds == (0.0, 1.0)
    assert parse_reward("python:file=length.py").name == "length"
    assert parse_reward("sharpness").name == "sharpness"
    plain, told = parse_reward("clip_t"), parse_reward("clip_t:batch_size=4,offload=true,device=cpu,name=own")
    assert plain.network is told.network and told.name == "own"
    assert [(own.batch_size, own.offload) for own in (plain, told)] == [(0, False), (4, True)]


UNREADABLE = {
    "beauty": "no reward has the kind 'beauty'. Fix: one of accuracy, aesthetic, ",
    "sharpness:size=3": "'size=3' is not an option of it. Fix: OPTION=VALUE, with name, clip",
    "sharpness:name": "'name' is not an option of it",
    "python": "needs file. Fix: --reward python:file=",
    "sharpness:clip=2": "'2' is not a pair of bounds",
    "http:url=http://h/,timeout=soon": "could not convert string to float: 'soon'",
    "clip_t:use=1": "with name, model, device, dtype, batch_size, offload, clip",
}


def test_a_reward_that_cannot_be_read():
    for text, told in UNREADABLE.items():
        with pytest.raises(ValueError) as caught:
            parse_reward(text)
        assert f"--reward {text!r}" in str(caught.value) and told in str(caught.value)
    with pytest.raises(
        ValueError, match="judge='a.safetensors' is a text encoder that ComfyUI loads. Fix: add --comfyui"
    ):
        parse_reward("clip_judge:judge=a.safetensors,question=Is it {prompt}?")


def test_an_option_need_not_be_keyword_only_and_its_errors_name_it(monkeypatch):
    class Windowed(reward_class("sharpness")):
        def __init__(self, name="windowed", window=7, **use):
            super().__init__(name, **use)
            if window % 2 == 0:
                raise ValueError(f"window = {window} is even. Fix: an odd one")
            self.window = window

    monkeypatch.setitem(scoring.REWARDS, "windowed", lambda: Windowed)
    monkeypatch.setattr(scoring, "KINDS", (*scoring.KINDS, "windowed"))
    assert parse_reward("windowed:window=3").window == 3 and parse_reward("windowed").window == 7
    for text, told in {
        "windowed:window=x": "window: invalid literal",
        "windowed:window=4": "window = 4 is even",
    }.items():
        with pytest.raises(ValueError, match=f"^--reward '{text}': {told}"):
            parse_reward(text)


def test_the_exact_judge_of_scenes_is_asked_for_by_an_option():
    asked = parse_reward("scenes:strict=true,name=judge")
    assert (asked.measure, parse_reward("scenes").measure) == (scenes.judge, scenes.grade)


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_table_and_every_score(folder, rewards, capsys, tmp_path):
    (folder / "prompts").write_text("one\nthree\nfifty\n")
    target = tmp_path / "scores.csv"
    arguments = ["--reward", "python:file=brightness.py", "--reward", "python:file=length.py"]
    code = main(["score", str(folder), *arguments, "--prompts", str(folder / "prompts"), "--csv", str(target)])
    assert code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["| reward | mean | 95 % interval | scored |", "|---|---|---|---|"]
    assert lines[2].startswith("| brightness | 0.2 | ") and lines[2].endswith(" | 3 of 3 |")
    assert lines[3].startswith("| length | 4.333 | 1.465 … 7.202 | 3 of 3 |")
    with open(target, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["file", "prompt", "brightness", "length"]
    assert [row[1] for row in rows[1:]] == ["one", "three", "fifty"]
    assert [float(row[2]) for row in rows[1:]] == pytest.approx([0.0, 0.2, 0.4])
    assert [float(row[3]) for row in rows[1:]] == [3, 5, 5]


def test_videos_beside_pictures(folder, rewards, capsys):
    frames = np.repeat(np.linspace(0, 204, 5, dtype=np.uint8), 32 * 32 * 3).reshape(5, 32, 32, 3)
    (folder / "clip.mp4").write_bytes(mp4(frames, fps=8))
    arguments = [str(folder / "clip.mp4"), str(folder / "2.png"), "--reward", "python:file=brightness.py"]
    assert main(["score", *arguments, "--prompt", ""]) == 0
    row = capsys.readouterr().out.splitlines()[2].split(" | ")
    assert float(row[1]) == pytest.approx(0.4, abs=0.01) and row[3] == "2 of 2 |"  # 0.4 both, but for the codec's loss


def test_refusals_of_the_command(folder, rewards, capsys, monkeypatch):
    def told(code, *arguments):
        assert main(["score", str(folder), *arguments]) == code
        return capsys.readouterr().err

    (rewards / "broken.py").write_text("def score(images, prompts):\n    return 1 / 0\n")
    failed = told(1, "--reward", "python:file=broken.py", "--prompt", "")
    assert "otca: reward 'broken' failed: " in failed and "line 2" in failed
    monkeypatch.delenv("OTCA_ALLOW_PYTHON_REWARDS")
    two = told(2, "--reward", "sharpness", "--reward", "sharpness", "--prompt", "")
    assert "two rewards share a name: sharpness, sharpness. Fix: " in two
    assert "0.png has no prompt" in told(2, "--reward", "sharpness")
    assert "no folder is allowed" in told(2, "--reward", "python:file=mine.py", "--prompt", "")


# --- rewards that read more of a picture's line than its prompt -------------------------------------------------------

LINES = [
    {"file_name": "0.png", "prompt": "a shop", "text": "Open"},
    {"file_name": "1.png", "prompt": 'a shop, "Open"', "include": [{"class": "cat", "count": 1}]},
    {"file_name": "2.png", "prompt": "a cat", "include": [{"class": "cat", "count": 1}, {"class": "dog", "count": 1}]},
]


@pytest.fixture
def described(tmp_path, monkeypatch):
    """Three pictures and metadata.jsonl; the reader reads "oven" everywhere, and the detector finds one cat."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number in range(3):
        Image.fromarray(np.full((32, 32, 3), 80 * number, np.uint8)).save(pictures / f"{number}.png")
    (pictures / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    monkeypatch.setattr(ocr, "reader", lambda: type("Reader", (), {"lines": lambda self, picture: ["oven"]})())
    cat = {"cat": [Found(0.9, (0, 0, 9, 9))], "dog": []}
    monkeypatch.setattr(GroundingDino, "find", lambda self, images, names, threshold: [cat] * len(images))
    tiny_detectors.grounding_dino(tmp_path / "dino")
    return pictures


def test_what_does_not_apply_is_empty_in_the_table_of_scores(described, capsys, tmp_path):
    target, objects = tmp_path / "scores.csv", f"objects:path={tmp_path / 'dino'},clip_model="
    assert main(["score", str(described), "--reward", "text", "--reward", objects, "--csv", str(target)]) == 0
    text, found = capsys.readouterr().out.splitlines()[2:4]
    assert text.startswith("| text | 0.75 |") and text.endswith("| 2 of 3 |")  # one letter of four is another
    assert found.startswith("| objects | 0.75 |") and found.endswith("| 2 of 3 |")
    with open(target, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["text"], row["objects"]) for row in rows] == [("0.75", ""), ("0.75", "1.0"), ("", "0.5")]
