"""`otca score` with rewards that read more of a picture's line than its prompt."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from PIL import Image

from comfyui_otca.__main__ import main
from comfyui_otca.tests.tiny import detectors as tiny_detectors
from comfyui_otca.trainer.networks import ocr
from comfyui_otca.trainer.networks.detector import Found, GroundingDino

LINES = [
    {"file_name": "0.png", "prompt": "a shop", "text": "Open"},
    {"file_name": "1.png", "prompt": 'a shop, "Open"', "include": [{"class": "cat", "count": 1}]},
    {"file_name": "2.png", "prompt": "a cat", "include": [{"class": "cat", "count": 1}, {"class": "dog", "count": 1}]},
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
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


def test_what_does_not_apply_is_empty_in_the_table_of_scores(folder, capsys, tmp_path):
    target, objects = tmp_path / "scores.csv", f"objects:path={tmp_path / 'dino'},clip_model="
    assert main(["score", str(folder), "--reward", "text", "--reward", objects, "--csv", str(target)]) == 0
    text, found = capsys.readouterr().out.splitlines()[2:4]
    assert text.startswith("| text | 0.75 |") and text.endswith("| 2 of 3 |")  # one letter of four is another
    assert found.startswith("| objects | 0.75 |") and found.endswith("| 2 of 3 |")
    with open(target, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["text"], row["objects"]) for row in rows] == [("0.75", ""), ("0.75", "1.0"), ("", "0.5")]


def test_a_malformed_line_is_named(folder, capsys, tmp_path):
    (folder / "metadata.jsonl").write_text(json.dumps({**LINES[0], "text": ["Open", 5]}) + "\n")
    assert main(["score", str(folder / "0.png"), "--reward", "text"]) != 0
    assert (
        "reward 'text' failed: the metadata of the prompt 'a shop' say text = ['Open', 5]. Fix:"
        in capsys.readouterr().err
    )
