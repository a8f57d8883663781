"""The file of opinions: what is kept, what counts, and that neither a kill nor a full disk loses one."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from comfyui_otca.host.files import Damaged
from comfyui_otca.trainer.opinions.store import Store, Unwritable

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "folder" / "opinions.sqlite")


def thumb(picture, value, **more):
    return {"kind": "thumb", "picture": picture, "value": value, **more}


def said(store, picture):
    return [(opinion.kind, opinion.value) for opinion in store.of([picture])[picture]]


def test_nothing_is_there_before_the_first_opinion(store):
    assert store.of([A]) == {A: []} and store.standing() == [] and store.pictures() == {} and store.state() == "0:0"
    assert not store.file.exists()


def test_all_kinds_are_kept_with_their_pictures(store):
    box = {"like": False, "box": [0, 0.25, 0.5, 1]}
    rows = [
        thumb(A, 1),
        {"kind": "stars", "picture": B, "value": 4},
        {"kind": "pair", "picture": A, "other": B, "value": True},
        {"kind": "region", "picture": A, "value": box},
        {"kind": "tag", "picture": A, "other": "best of May", "value": True},
    ]
    about = [{"id": A, "prompt": "a cat", "path": "/x/a.png", "models": ["m.safetensors"], "width": 640, "height": 480}]
    store.give(rows, [*about, {"id": B, "prompt": "a cat"}])
    assert said(store, A) == [("thumb", 1), ("pair", True), ("region", box), ("tag", True)]
    assert said(store, B) == [("stars", 4), ("pair", True)]
    assert [opinion.picture for opinion in store.standing("stars")] == [B]
    assert vars(store.pictures([A])[A]) | {"models": ["m.safetensors"]} == about[0]


def test_the_last_word_counts_until_it_is_taken_back(store):
    store.give([thumb(A, 1)])
    store.give([thumb(A, -1)])
    store.give([thumb(A, None)])
    assert said(store, A) == []
    assert store.take_back().value is None
    assert said(store, A) == [("thumb", -1)]
    assert store.take_back().value == -1
    assert said(store, A) == [("thumb", 1)]
    assert store.take_back().value == 1 and store.take_back() is None
    assert said(store, A) == [] and store.count() == 3


def test_one_opinion_is_taken_back_by_its_id_and_only_once(store):
    first, second = store.give([thumb(A, 1), thumb(B, 1)])
    before = store.state()
    assert store.take_back(first.id).picture == A
    assert store.take_back(first.id) is None and store.take_back("no such id") is None
    assert store.standing() == [second] and store.state() != before


def test_the_later_of_two_pairs_of_the_same_pictures_counts_whichever_way_round(store):
    store.give([{"kind": "pair", "picture": A, "other": B, "value": True}])
    store.give([{"kind": "pair", "picture": B, "other": A, "value": True}])
    assert [(opinion.picture, opinion.other) for opinion in store.standing("pair")] == [(B, A)]


def test_a_picture_may_have_several_regions_and_tags(store):
    region = {"kind": "region", "picture": A, "value": {"like": True, "box": [0, 0, 1, 0.5]}}
    first, _ = store.give([region, region])
    store.give([{"kind": "tag", "picture": A, "other": name, "value": True} for name in ("one", "two", "one")])
    assert len(store.standing("region")) == len(store.standing("tag")) == 2
    store.give([{**region, "other": first.other, "value": None}])
    assert len(store.standing("region")) == 1


def test_what_is_known_of_a_picture_is_added_to_and_survives_a_new_path(store):
    store.give([], [{"id": A, "prompt": "a cat", "path": "/x/a.png", "models": ["m"]}])
    store.give([], [{"id": A, "path": "/moved/b.png", "width": 8, "height": 4}])
    assert vars(store.pictures([A, B])[A]) == {
        "id": A,
        "prompt": "a cat",
        "path": "/moved/b.png",
        "models": ("m",),
        "width": 8,
        "height": 4,
    }


def test_a_pair_of_two_prompts_is_refused_and_nothing_of_its_request_is_kept(store):
    pictures = [{"id": A, "prompt": "a cat"}, {"id": B, "prompt": "a dog"}]
    with pytest.raises(ValueError, match="different prompts"):
        store.give([thumb(A, 1), {"kind": "pair", "picture": A, "other": B, "value": True}], pictures)
    assert store.standing() == [] and store.pictures() == {}


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ([], "holds a list"),
        (None, "holds null"),
        ({}, "has no 'kind'"),
        (thumb("../x", 1), "64 hexadecimal digits"),
        (thumb(A, True), "a thumb is 1 or -1"),
        (thumb(A, 0.5), "a thumb is 1 or -1"),
        (thumb(A, 1, other=B), "only pairs, regions and tags"),
        (thumb(A, 1, id="x"), "32 hexadecimal digits"),
        (thumb(A, 1, time="now"), "has time"),
        (thumb(A, 1, time=2**63), "has time"),
        ({"kind": ["thumb"], "picture": A, "value": 1}, "one of thumb, stars"),
        ({"kind": "stars", "picture": A, "value": 6}, "stars are 1 to 5"),
        ({"kind": "pair", "picture": A, "other": A, "value": True}, "with itself"),
        ({"kind": "pair", "picture": A, "other": 7, "value": True}, "rejected picture's"),
        ({"kind": "pair", "picture": A, "other": B, "value": 1}, "it is true"),
        ({"kind": "tag", "picture": A, "other": "x" * 101, "value": True}, "1 to 100 characters"),
        ({"kind": "tag", "picture": A, "other": "a\nb", "value": True}, "1 to 100 characters"),
        ({"kind": "tag", "picture": A, "other": "\ud800", "value": True}, "1 to 100 characters"),
        ({"kind": "region", "picture": A, "value": {"like": 1, "box": [0, 0, 1, 1]}}, "true or false"),
        ({"kind": "region", "picture": A, "value": {"like": True, "box": [0, 0, 1, 2]}}, "from 0 to 1"),
        ({"kind": "region", "picture": A, "value": {"like": True, "box": [1, 0, 0, 1]}}, "from 0 to 1"),
        ({"kind": "region", "picture": A, "value": {"like": True}}, "either box or mask"),
        (
            {
                "kind": "region",
                "picture": A,
                "value": {"like": True, "mask": {"width": 9, "height": 10**9, "runs": []}},
            },
            "has height",
        ),
        (
            {"kind": "region", "picture": A, "value": {"like": True, "mask": {"width": 2, "height": 2, "runs": [3]}}},
            "add up to 4",
        ),
        (
            {"kind": "region", "picture": A, "value": {"like": True, "mask": {"width": 2, "height": 2, "runs": [4]}}},
            "without a place inside",
        ),
    ],
)
def test_a_strangers_opinion_is_refused_in_one_short_line(store, row, wrong):
    with pytest.raises(ValueError, match=wrong) as refused:
        store.give([row])
    assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)
    assert store.count() == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", "A" * 64),
        ("prompt", "x" * 100_001),
        ("prompt", 5),
        ("prompt", "\udc00"),
        ("path", "x" * 4097),
        ("models", "m"),
        ("models", ["m"] * 65),
        ("models", ["m" * 301]),
        ("width", -1),
        ("height", 1.5),
    ],
)
def test_a_strangers_picture_is_refused(store, name, value):
    with pytest.raises(ValueError, match=name) as refused:
        store.give([], [{"id": A, name: value}])
    assert len(str(refused.value)) < 300


def test_two_pages_and_two_threads_each_lose_nothing(store):
    """Eight threads, 25 opinions each, at once, and a store to each opinion."""

    def work(number):
        for count in range(25):
            Store(store.file).give([{"kind": "tag", "picture": A, "other": f"{number} {count}", "value": True}])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(store.standing("tag")) == 200


WRITER = """
import sys
from pathlib import Path
from comfyui_otca.trainer.opinions.store import Store
store, first = Store(Path(sys.argv[1])), int(sys.argv[2])
for number in range(first, first + 100000):
    (opinion,) = store.give([{"kind": "tag", "picture": f"{number:064x}", "other": "seen", "value": True}])
    print(opinion.picture, flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_twenty_kills_in_the_middle_of_writing_lose_nothing(store):
    """What a child said that it kept is there after SIGKILL, and the file is whole; two children write at once."""
    drawn, kept = random.Random(0), set()
    for kill in range(10):
        children = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(store.file), str((2 * kill + which) * 100_000)],
                stdout=subprocess.PIPE,
            )
            for which in range(2)
        ]
        for child in children:
            kept.add(child.stdout.readline().decode().strip())
        for child in children:
            threading.Event().wait(drawn.random() * 0.03)  # somewhere in its next transactions
            child.send_signal(signal.SIGKILL)
        for child in children:
            said = child.communicate()[0].decode()
            kept |= set(said[: said.rfind("\n") + 1].split())
        assert kept <= {opinion.picture for opinion in store.standing("tag")}
    with sqlite3.connect(store.file) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert len(kept) >= 20


FULL = """
import json, resource, signal, sys
from pathlib import Path
from comfyui_otca.trainer.opinions.store import Store, Unwritable
store = Store(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
kept = []
try:
    for number in range(100000):
        tag = {"kind": "tag", "picture": f"{number:064x}", "other": "x" * 99, "value": True}
        kept += [opinion.id for opinion in store.give([tag])]
except Unwritable as error:
    print(json.dumps([kept, str(error)]))
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows limits no file's size")
def test_a_disk_that_fills_up_in_the_middle_of_a_write_is_said_and_loses_nothing(store):
    """The system itself refuses to let the child's files grow any further."""
    store.give([thumb(A, 1)])
    limit = store.file.stat().st_size + 20_000
    child = subprocess.run(
        [sys.executable, "-c", FULL, str(store.file), str(limit)], capture_output=True, check=True, encoding="utf-8"
    )
    kept, error = json.loads(child.stdout)
    assert "Fix: make room on that disk" in error and len(kept) > 10
    assert {opinion.id for opinion in store.standing("tag")} == set(kept) and said(store, A) == [("thumb", 1)]
    store.give([thumb(B, 1)])  # there is room again
    assert said(store, B) == [("thumb", 1)]


def test_a_folder_that_may_not_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(Unwritable, match="make the folder writable"):
        Store(tmp_path / "file" / "opinions.sqlite").give([thumb(A, 1)])


def test_a_file_that_is_no_file_of_opinions_is_left_alone(store):
    store.file.parent.mkdir()
    store.file.write_bytes(b"something else" * 100)
    for use in (store.standing, lambda: store.give([thumb(A, 1)])):
        with pytest.raises(Damaged, match="not a file of opinions"):
            use()
    assert store.file.read_bytes() == b"something else" * 100


def test_a_newer_version_and_another_programs_file_are_refused(store):
    store.file.parent.mkdir()
    with sqlite3.connect(store.file) as file:
        file.execute("CREATE TABLE songs (name TEXT)")
    with pytest.raises(Damaged, match="another program"):
        store.give([thumb(A, 1)])
    with sqlite3.connect(store.file) as file:
        file.execute("PRAGMA user_version = 2")
    with pytest.raises(Damaged, match="update ComfyUI-OTCA"):
        store.standing()


def test_what_another_process_writes_is_waited_for(store):
    store.give([thumb(A, 1)])
    with sqlite3.connect(store.file, isolation_level=None, check_same_thread=False) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.2, other.execute, ["COMMIT"])
        timer.start()
        store.give([thumb(B, 1)])
        timer.join()
    assert len(store.standing("thumb")) == 2
