"""The file of votes, and the scores that follow from them, against numbers worked out by hand or by another method."""

import hashlib
import json

import numpy as np
import pytest

from comfyui_otca.host.files import Damaged
from comfyui_otca.trainer.opinions import votes
from comfyui_otca.trainer.opinions.votes import Answer, Vote, group_scores, parse_answer

A, B, C = (f"votes/{letter * 16}.png" for letter in "abc")
PICK = Answer("order", ((0,), (1, 2), (3,)))


def vote(answer=PICK, pictures=(A, B, C, "votes/0123456789abcdef.png"), **fields):
    return Vote("a red circle", tuple(pictures), answer, **fields)


def test_best_and_worst_say_five_things_of_four_pictures():
    assert sorted(PICK.pairs) == [(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)]
    assert Answer("pair", ((2,), (0,))).pairs == [(2, 0)]
    assert Answer("alike").pairs == Answer("skip").pairs == []
    left_out = parse_answer({"kind": "order", "order": [[2], [], [0]]}, 4)
    assert left_out == Answer("order", ((2,), (0,))), "an answer may leave out pictures and levels"


def test_what_nothing_is_said_of_has_no_score():
    said = [vote(Answer("pair", ((1,), (0,))), (A, B))]
    low, high, none = group_scores(said, [A, B, C])
    # With s = (-a, a) and a prior of std 1 the slope is σ(-2a) - a, which is 0 at 0.3374.
    assert (low, high, none) == (pytest.approx(-high), pytest.approx(0.3374, abs=1e-4), None)
    assert votes.about(said, "a red circle", [A, B, C]) == said and votes.about(said, "a blue square", [A, B, C]) == []
    assert votes.about(said, "a red circle", [A, C]) == [], "a vote on pictures that are not of the group"
    assert group_scores([vote(Answer("alike"), (A, B))], [A, B]) == [None] * 2


def test_a_correction_replaces_and_a_withdrawal_takes_back():
    first = vote(Answer("pair", ((0,), (1,))), (A, B))
    second = vote(Answer("pair", ((1,), (0,))), (A, B), replaces=first.id)
    gone = vote(Answer("withdrawn"), (A, B), replaces=second.id)
    assert votes.standing([first, second]) == [second]
    assert votes.standing([first, second, gone]) == []


def test_a_vote_read_back_is_the_vote_that_was_written(tmp_path):
    path = tmp_path / "new" / "votes.jsonl"
    assert votes.read(path) == []
    written = [vote(), vote(Answer("pair", ((1,), (0,))), (A, B), replaces="0" * 32), vote(Answer("skip"))]
    for one in written:
        votes.append(path, one)
    assert votes.read(path) == written
    row = json.loads(path.read_text().splitlines()[0])
    assert row["answer"] == {"kind": "order", "order": [[0], [1, 2], [3]]} and row["replaces"] is None
    assert json.loads(path.read_text().splitlines()[1])["answer"] == {"kind": "pair", "winner": 1, "loser": 0}


@pytest.mark.parametrize("cut", [0, 1, 20, 60])
def test_a_last_line_that_a_kill_cut_short_is_left_out_and_the_next_vote_stands_alone(tmp_path, cut):
    path, said = tmp_path / "votes.jsonl", []
    first, second, third = vote(), vote(), vote()
    votes.append(path, first)
    votes.append(path, second)
    path.write_bytes(path.read_bytes()[: -cut - 1])
    kept = [first] if cut else [first, second]  # where its break alone is missing
    assert votes.read(path, said.append) == kept
    assert said == [f"{path}, line 2: the last line was cut short, and is left out"][: bool(cut)]
    votes.append(path, third)
    assert votes.read(path) == [*kept, third]


ORDER = {"kind": "order"}


@pytest.mark.parametrize(
    "change, wrong",
    [
        ({"version": 2}, "has version = 2, and not 1"),
        ({"prompt": 3}, "has prompt = 3, and not a text"),
        ({"pictures": [A]}, "has 1 pictures, of which 1 differ, and not two or more"),
        ({"pictures": [A, A]}, "has 2 pictures, of which 1 differ, and not two or more"),
        ({"pictures": [A, "../secret.png"]}, 'has the picture "../secret.png"'),
        ({"answer": None}, "has no 'answer'"),
        ({"answer": {"kind": "maybe"}}, 'has an answer that has kind = "maybe", and not one of order, pair'),
        ({"answer": ORDER | {"order": []}}, "puts no picture above another"),
        ({"answer": ORDER | {"order": [[0, 1]]}}, "puts no picture above another"),
        ({"answer": ORDER | {"order": [[0], [4]]}}, "names picture 4, and its pictures have the numbers 0 to 3"),
        ({"answer": ORDER | {"order": [[0], [1, 0]]}}, "names picture 0 twice"),
        ({"answer": {"kind": "pair", "winner": 1, "loser": 1}}, "names picture 1 twice"),
        ({"answer": {"kind": "pair", "winner": True, "loser": 1}}, "names picture true"),
        (None, "is not JSON"),
    ],
)
def test_a_damaged_line_is_named_with_its_file(tmp_path, change, wrong):
    path = tmp_path / "votes.jsonl"
    votes.append(path, vote())
    votes.append(path, vote())
    lines = path.read_text().splitlines()
    damaged = json.dumps(json.loads(lines[0]) | change) if change else lines[0][:20]
    path.write_text("\n".join([lines[0], damaged, lines[1], ""]))
    with pytest.raises(Damaged) as refused:
        votes.read(path)
    assert str(refused.value).startswith(f"{path} is damaged: line 2 ") and wrong in str(refused.value)
    assert "Fix: correct or remove that line" in str(refused.value)


def test_a_picture_is_named_by_its_pixels_and_their_shape():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    digest = hashlib.sha256(b"2x4x3\n" + bytes(range(24))).hexdigest()
    assert votes.picture_path(pixels) == f"votes/{digest[:16]}.png"
    known = [bool(votes.PICTURE.fullmatch(f"votes/{digest[:length]}.png")) for length in (16, 64, 20)]
    assert known == [True, True, False], "by all digits, or by their beginning"
    assert votes.picture_path(pixels.reshape(4, 2, 3)) != votes.picture_path(pixels)
    assert votes.picture_path(pixels[None]).endswith(".mp4")
