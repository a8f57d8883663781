"""A folder of pairs, and hostile ones: names that lead out of it, lines that are none, files that are no pictures."""

from __future__ import annotations

import json
import os

import pytest

from comfyui_otca.host.access import permissions
from comfyui_otca.host.access.permissions import NotAllowed
from comfyui_otca.nodes.data import MyPictures
from comfyui_otca.study import taste
from comfyui_otca.trainer.opinions.plan import read_source
from comfyui_otca.trainer.opinions.reading import PairError, folder_state, read_folder
from comfyui_otca.trainer.types import metadata_of

GOOD = {"prompt": "x", "chosen": "0a.png", "rejected": "more/0b.png"}


def write(folder, *lines):
    (folder / "pairs.jsonl").write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8"
    )


def test_each_line_is_a_pair(folder_of):
    folder = folder_of(["a red circle", {"prompt": " a sign ", "text": "OPEN"}])
    read = read_folder(str(folder))
    assert read.path == folder
    assert [(pair.prompt, *pair.files, pair.place) for pair in read.pairs] == [
        ("a red circle", "0a.png", "more/0b.png", "line 1"),
        ("a sign", "1a.png", "more/1b.png", "line 2"),
    ]
    assert [metadata_of(pair.prompt) for pair in read.pairs] == [{}, {"text": "OPEN"}], "and not the files"
    assert read.picture(read.pairs[1], "1a.png") == (folder / "1a.png").read_bytes()


def test_blank_lines_count_and_a_changed_list_is_read_again(folder_of):
    folder = folder_of(["a"])
    before = folder_state(str(folder))
    assert len(read_folder(str(folder)).pairs) == 1
    write(folder, "\ufeff", GOOD, "", {**GOOD, "prompt": "y"})
    assert [pair.place for pair in read_folder(str(folder)).pairs] == ["line 2", "line 4"]
    assert folder_state(str(folder)) != before


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"prompt": "x"', "is not JSON"),
        ("[1]", "it has no prompt"),
        ({"chosen": "0a.png", "rejected": "more/0b.png"}, "it has no prompt"),
        ({**GOOD, "prompt": None}, "it has no prompt"),
        ({**GOOD, "prompt": "\ud800"}, "it has half a character in its prompt"),
        ({"prompt": "x", "chosen": "0a.png"}, "it has rejected = None, which is not the name of a file"),
        ({**GOOD, "chosen": 7}, "it has chosen = 7, which is not the name of a file"),
        ({**GOOD, "chosen": ""}, "it has chosen = '', which is not the name"),
        ({**GOOD, "chosen": "more/../more/0b.png"}, "it has chosen = 'more/../more/0b.png', which leads out"),
        ({**GOOD, "chosen": "./more/0b.png"}, "names './more/0b.png' as both of its pictures"),
        ({**GOOD, "chosen": "../secret.png"}, "it has chosen = '../secret.png', which leads out of its folder"),
        ({**GOOD, "chosen": "/etc/passwd"}, "which leads out of its folder"),
        ({**GOOD, "chosen": "~/secret.png"}, "which leads out of its folder"),
        ({**GOOD, "chosen": "more\\..\\..\\a.png"}, "which leads out of its folder"),
        ({**GOOD, "chosen": "//server/share/a.png"}, "it names another machine"),
        ({**GOOD, "chosen": "\\\\server\\share\\a.png"}, "it names another machine"),
        ({**GOOD, "chosen": "a\0.png"}, "a zero byte"),
        ({**GOOD, "chosen": "a" * 300}, "more than 255 bytes"),
        ('{"prompt": "x", "worth": ' + "[" * 200000, "nested deeper"),
    ],
)
def test_a_line_that_is_none_is_named(folder_of, line, told):
    folder = folder_of(["fine"])
    write(folder, GOOD, line)
    with pytest.raises(PairError) as caught:
        read_folder(str(folder))
    message = str(caught.value)
    assert f"{folder / 'pairs.jsonl'}, line 2" in message and told in message and "Fix: " in message
    assert len(message) < 700
    assert MyPictures.VALIDATE_INPUTS(folder=str(folder)) == f"folder: {message}"


def test_links_within_the_folder_are_the_users_and_those_out_of_it_are_not_read(folder_of, tmp_path, monkeypatch):
    folder = folder_of(["fine", "other"])
    link(folder, "0a.png", folder / "1a.png")
    (folder / "more").rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", folder / "more")
    read = read_folder(str(folder))
    assert read.picture(read.pairs[0], "0a.png") == (folder / "1a.png").read_bytes()
    with pytest.raises(PairError, match="is a link out of its folder"):
        read.picture(read.pairs[0], "more/0b.png")
    monkeypatch.setattr(permissions, "MOST_PICTURE_BYTES", 100)
    with pytest.raises(PairError, match=r"line 1: file '0a.png' has [\d,]+ bytes, and 100 may be read. Fix: "):
        read.picture(read.pairs[0], "0a.png")


def test_a_file_that_is_not_there_is_named_before_anything_runs(folder_of):
    folder = folder_of(["fine"])
    write(folder, GOOD, {**GOOD, "chosen": "none/x.png"})
    with pytest.raises(PairError, match=r"pairs\.jsonl, line 2: file 'none/x.png' is not there. Fix: "):
        read_folder(str(folder))


def link(folder, name, target):
    (folder / name).unlink()
    os.symlink(target, folder / name)


def pipe(folder, name, _):
    (folder / name).unlink()
    os.mkfifo(folder / name)


def directory(folder, name, _):
    (folder / name).unlink()
    (folder / name).mkdir()


@pytest.mark.parametrize(
    ("how", "told"),
    [(link, "is a link out of its folder"), (pipe, "not a regular file"), (directory, "not a regular file")],
)
@pytest.mark.parametrize("name", ["0a.png", "more/0b.png"])
def test_a_picture_elsewhere_is_not_read(folder_of, tmp_path, how, told, name):
    folder = folder_of(["fine"])
    secret = tmp_path / "secret.png"
    secret.write_bytes((folder / name).read_bytes())
    how(folder, name, secret)
    read = read_folder(str(folder))
    with pytest.raises(PairError, match=rf"line 1: file '{name}' .*{told}.*Fix: "):
        read.picture(read.pairs[0], name)


@pytest.mark.parametrize("how", [link, pipe, directory])
def test_a_list_that_is_no_plain_file(folder_of, tmp_path, how):
    folder = folder_of(["fine"])
    (tmp_path / "secret.jsonl").write_text(json.dumps(GOOD))
    how(folder, "pairs.jsonl", tmp_path / "secret.jsonl")
    with pytest.raises(PairError, match=r"pairs\.jsonl .*Fix: "):
        read_folder(str(folder))


def test_a_list_without_pairs_no_list_no_folder_and_no_name(folder_of, tmp_path):
    for name, content in (("blank", b"\n \n"), ("binary", b"\xff\xfe\x00"), ("empty", None)):
        folder = folder_of(["fine"], name=name)
        (folder / "pairs.jsonl").write_bytes(content) if content else (folder / "pairs.jsonl").unlink()
    for name, told in (
        (str(tmp_path / "blank"), "has no pair"),
        (str(tmp_path / "binary"), "not text in UTF-8"),
        (str(tmp_path / "empty"), "holds no pairs.jsonl"),
        ("nowhere", "was not found"),
        ("", "no folder"),
    ):
        with pytest.raises(PairError, match=told + ".*Fix: "):
            read_folder(name)


# --- which folders ----------------------------------------------------------------------------------------------------


@pytest.fixture
def outside(folder_of, tmp_path, monkeypatch):
    """A folder of pairs that nothing allows, while a command is typed elsewhere."""
    monkeypatch.delenv(permissions.FOLDERS)
    (tmp_path / "typed").mkdir()
    monkeypatch.chdir(tmp_path / "typed")
    return folder_of(["fine"])


def test_a_folder_outside_is_refused_with_what_allows_it(outside, monkeypatch):
    with pytest.raises(NotAllowed, match="lies in no folder that workflows may read. Fix: ") as caught:
        read_folder(str(outside))
    assert f"--allow-folder {outside}" in str(caught.value) and "click on the page" in str(caught.value)
    assert MyPictures.VALIDATE_INPUTS(folder=str(outside)) == f"folder: {caught.value}"
    [want] = MyPictures.WANTS(folder=str(outside))
    assert not permissions.allowed(want) and permissions.in_words(want) == f"read {outside} (opinions)"
    permissions.remember(permissions.READ, str(outside))
    assert permissions.allowed(want) and len(read_folder(str(outside)).pairs) == 1


@pytest.mark.parametrize("name", [r"\\server\share", "//server/share", "../pairs", "~", "mine"])
def test_other_names_of_a_strangers_workflow(outside, name):
    os.symlink(outside, "mine")
    with pytest.raises(NotAllowed, match="is a link out of its folder" if name == "mine" else "Fix: "):
        read_folder(name)


def test_the_input_folder_of_comfyui_is_where_it_looks(outside, comfyui, tmp_path):
    (tmp_path / "files").mkdir()
    outside.rename(tmp_path / "files" / "pairs")
    assert read_folder("pairs").path == tmp_path / "files" / "pairs"
    [want] = MyPictures.WANTS(folder="pairs")
    assert permissions.allowed(want)


def layouts(folder):
    """{layout: what writes the pair GOOD of a folder in it}."""
    first, second = GOOD["chosen"], GOOD["rejected"]

    def sides(better, worse):
        for side, name in ((better, first), (worse, second)):
            (folder / side).mkdir()
            (folder / side / "a.png").write_bytes((folder / name).read_bytes())
        (folder / better / "a.txt").write_text("x\n")

    def rows(name, *listed):
        return lambda: (folder / name).write_text(
            json.dumps(listed) if name.endswith(".json") else "\n".join(map(json.dumps, listed)), encoding="utf-8"
        )

    tie = {"prompt": "y", "image_0": first, "image_1": second, "label_0": 0.5}
    return {
        "caption": rows("pairs.jsonl", {"caption": "x", "chosen": first, "rejected": second, "id": None}),
        "Pick-a-Pic": rows("train.jsonl", tie, {"caption": "x", "jpg_0": second, "jpg_1": first, "label_0": 0.0}),
        "image_0": rows("metadata.jsonl", {"text": "x", "image_0": first, "image_1": second, "label_0": 1}),
        "HPDv2": rows("train.json", {"prompt": "x", "image_path": [second, first], "human_preference": [0, 1]}),
        "csv": lambda: (folder / "pairs.csv").write_text(f"prompt,image_0,image_1,label_0\nx,{first},{second},1\n"),
        "w and l": lambda: sides("w", "l"),
        "chosen and rejected": lambda: sides("chosen", "rejected"),
    }


@pytest.mark.parametrize("layout", layouts(None))
def test_pairs_as_others_have_them(folder_of, layout):
    """The same for Preference Pairs and `otca taste fit`; and written as our list, as a bundle does."""
    folder = folder_of(["fine"])
    expected = [(folder / GOOD[side]).read_bytes() for side in ("chosen", "rejected")]
    (folder / "pairs.jsonl").unlink()
    layouts(folder)[layout]()
    read = read_folder(str(folder))
    [pair] = read.pairs
    assert pair.prompt == "x" and [read.picture(pair, name) for name in pair.files] == expected
    [comparison] = taste.read_source(folder)
    [(better, worse)] = comparison.pairs()
    assert [better.read_bytes(), worse.read_bytes()] == expected
    (folder / "pairs.jsonl").write_text(read.as_lines())
    [again] = read_folder(str(folder)).pairs
    assert (again.prompt, again.files) == (pair.prompt, pair.files)


def test_a_picture_of_one_side_alone_is_named(folder_of):
    folder = folder_of(["fine"])
    (folder / "pairs.jsonl").unlink()
    layouts(folder)["w and l"]()
    before = folder_state(str(folder))
    (folder / "w" / "a.txt").write_text("another prompt")
    assert folder_state(str(folder)) != before and read_folder(str(folder)).pairs[0].prompt == "another prompt"
    (folder / "w" / "a.txt").unlink()
    with pytest.raises(PairError, match=r"w/a\.png has no a\.txt beside it\. Fix: "):
        read_folder(str(folder))
    (folder / "l" / "a.png").rename(folder / "l" / "b.png")
    with pytest.raises(PairError, match=r"w/a\.png is not in l, too\. Fix: "):
        read_folder(str(folder))


def test_a_folder_with_pairs_and_opinions_says_so(tmp_path, folder_of):
    folder = folder_of(["a"])
    (folder / "opinions.jsonl").write_text("")
    with pytest.raises(PairError, match=r"holds both opinions.jsonl and pairs.jsonl. Fix: take one of them out"):
        read_source(str(folder))
