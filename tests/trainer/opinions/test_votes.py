"""The store of votes, and the scores that follow from them, against numbers worked out by hand or by another method."""

import contextlib
import hashlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import comfyui_otca
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
    store = votes.of_folder(tmp_path / "new")
    assert votes.read(store) == [] and not store.file.exists()
    written = [vote(), vote(Answer("pair", ((1,), (0,))), (A, B), replaces="0" * 32), vote(Answer("skip"))]
    for one in written:
        votes.append(store, one)
    assert votes.read(store) == written
    first, second, _ = map(json.loads, votes.lines(store).splitlines())
    assert first["answer"] == {"kind": "order", "order": [[0], [1, 2], [3]]} and first["replaces"] is None
    assert second["answer"] == {"kind": "pair", "winner": 1, "loser": 0}


# As VoteFolder wrote it when it wrote lines: a correction, a withdrawal, one skipped, two voters of one group, an id by hand.
OF_BEFORE = (
    """\
{"version": 1, "id": "11111111111111111111111111111111", "time": 1760000001.25, "prompt": "a red circle", "pictures": [A, B, C], \
"answer": {"kind": "order", "order": [[2], [0, 1]]}, "replaces": null}
{"version": 1, "id": "22222222222222222222222222222222", "time": 1760000002.5, "prompt": "a red circle", "pictures": [A, B, C], \
"answer": {"kind": "pair", "winner": 1, "loser": 2}, "replaces": null}
{"version": 1, "id": "33333333333333333333333333333333", "time": 1760000003.0, "prompt": "half a \\ud800", "pictures": [A, B], \
"answer": {"kind": "skip"}, "replaces": null}
{"version": 1, "id": "44444444444444444444444444444444", "time": 1760000004.0, "prompt": "a red circle", "pictures": [A, C], \
"answer": {"kind": "pair", "winner": 0, "loser": 1}, "replaces": null}
{"version": 1, "id": "by hand", "time": 1760000005.0, "prompt": "a red circle", "pictures": [A, C], \
"answer": {"kind": "pair", "winner": 1, "loser": 0}, "replaces": "44444444444444444444444444444444"}
{"version": 1, "id": "66666666666666666666666666666666", "time": 1760000006.0, "prompt": "gone", "pictures": [A, C], \
"answer": {"kind": "alike"}, "replaces": null}
{"version": 1, "id": "77777777777777777777777777777777", "time": 1760000007.0, "prompt": "gone", "pictures": [A, C], \
"answer": {"kind": "withdrawn"}, "replaces": "66666666666666666666666666666666"}
""".replace("A,", f'"{A}",')
    .replace("B,", f'"{B}",')
    .replace("B]", f'"{B}"]')
    .replace("C]", f'"{C}"]')
)
SCORES_OF_BEFORE = [-0.551518640052, 0.137441968444, 0.414076671608]  # of the group A, B, C, by the code of that day


def test_a_votes_jsonl_of_before_is_taken_in_once_and_scores_are_the_same_bits(tmp_path, caplog):
    path = tmp_path / "votes.jsonl"
    path.write_text(OF_BEFORE)
    store = votes.of_folder(tmp_path)
    assert votes.read(store) == votes.read_lines(path) and len(votes.read(store)) == store.count() == 7
    assert "7 of its 7 votes are new" in caplog.text
    said = votes.about(votes.read(store), "a red circle", [A, B, C])
    assert group_scores(said, [A, B, C]) == SCORES_OF_BEFORE
    assert votes.lines(store) == votes.lines(votes.of_folder(tmp_path)) and store.count() == 7
    votes.append(store, vote())
    path.write_text(votes.lines(store) + OF_BEFORE.splitlines()[0].replace("1" * 32, "8" * 32) + "\n")
    assert votes.of_folder(tmp_path).count() == 9 and "1 of its 9 votes are new" in caplog.text
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "votes.jsonl").write_text(votes.lines(store))
    assert votes.read(votes.of_folder(moved)) == votes.read(store)


def test_a_store_whose_vote_was_changed_is_named(tmp_path):
    store = votes.of_folder(tmp_path)
    votes.append(store, vote())
    with contextlib.closing(sqlite3.connect(store.file)) as changed, changed:
        changed.execute("UPDATE opinions SET value = replace(value, 'votes/a', '../a')")
    with pytest.raises(Damaged, match="holds a vote that has the picture"):
        votes.read(store)


WRITER = """
import sys
from pathlib import Path
from comfyui_otca.trainer.opinions import votes
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    pictures = ("votes/0123456789abcdef.png", "votes/1123456789abcdef.png")
    one = votes.Vote(f"{sys.argv[2]} {number}", pictures, votes.Answer("skip"))
    votes.append(votes.of_folder(Path(sys.argv[1])), one)
"""


def test_three_processes_that_vote_at_once_lose_nothing_and_take_in_an_old_file_once(tmp_path):
    (tmp_path / "votes.jsonl").write_text(OF_BEFORE)
    place = Path(comfyui_otca.__file__).parent.parent
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name], cwd=place, **pipes) for name in "xyz"
    ]
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0
    every = votes.read(votes.of_folder(tmp_path))
    expected = [f"{name} {number}" for name in "xyz" for number in range(40)]
    assert len(every) == 127 and sorted(vote.prompt for vote in every if vote.prompt[0] in "xyz") == sorted(expected)


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
    lines = [json.dumps(vote().as_json())] * 2
    damaged = json.dumps(json.loads(lines[0]) | change) if change else lines[0][:20]
    path.write_text("\n".join([lines[0], damaged, lines[1], ""]))
    with pytest.raises(Damaged) as refused:
        votes.read_lines(path)
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
