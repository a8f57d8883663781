"""Votes as pairs, which the node's own reader reads."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from comfyui_otca.__main__ import main
from comfyui_otca.trainer.opinions import votes
from comfyui_otca.trainer.opinions.reading import read_folder
from comfyui_otca.trainer.opinions.votes import Answer, Vote

A, B, C = (f"votes/{letter * 16}.png" for letter in "abc")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "votes").mkdir()
    for name in (A, B, C):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / name)
    return tmp_path


def add(folder, prompt, pictures, answer, replaces=None):
    vote = Vote(prompt, pictures, answer, replaces)
    votes.append(votes.of_folder(folder), vote)
    return vote.id


def test_every_choice_that_stands_is_a_pair(folder, capsys):
    command = ["vote", "--folder", str(folder), "--pairs"]
    add(folder, "four", (A, C), Answer("alike"))
    assert main(command) == 2
    assert "has no vote by which" in (told := capsys.readouterr().err) and "Fix: " in told
    assert not (folder / "pairs.jsonl").exists()
    add(folder, "one", (A, B, C), Answer("order", ((2,), (0, 1))))
    wrong = add(folder, "two", (A, B), Answer("pair", ((0,), (1,))))
    add(folder, "two", (A, B), Answer("pair", ((1,), (0,))), wrong)
    gone = add(folder, "three", (B, C), Answer("pair", ((0,), (1,))))
    add(folder, "three", (B, C), Answer("withdrawn"), gone)
    add(folder, "five", ("votes/0123456789abcdef.mp4", "votes/1123456789abcdef.mp4"), Answer("pair", ((0,), (1,))))
    for _ in range(2):  # what was written before is written again
        assert main(command) == 0
        assert capsys.readouterr().out == f"3 pairs in {folder / 'pairs.jsonl'}\n"
        read = [(pair.prompt, *pair.files) for pair in read_folder(str(folder)).pairs]
        assert read == [("one", C, A), ("one", C, B), ("two", B, A)]
