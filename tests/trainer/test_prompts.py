"""Reading prompt files, and which prompts an iteration takes."""

from __future__ import annotations

import codecs
import io
import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.host import paths
from comfyui_otca.host.access import wants
from comfyui_otca.host.access.permissions import PROMPTS
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.nodes.data import PromptDataset
from comfyui_otca.nodes.run import TrainingRun
from comfyui_otca.study.scoring import prompts_of
from comfyui_otca.trainer import prompts as prompts_module
from comfyui_otca.trainer.opinions.reading import read_pairs
from comfyui_otca.trainer.prompts import (
    LISTS,
    PromptError,
    as_line,
    as_row,
    choose,
    distinct,
    file_state,
    lines,
    read_prompts,
)
from comfyui_otca.trainer.rewards import ranking
from comfyui_otca.trainer.run import evaluation
from comfyui_otca.trainer.types import Prompt, RunSettings, metadata_of
from comfyui_otca.trainer.workflow.running import Workflow

cases = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


# What people bring, as it is published: text boxes, lists, tables. Each says the same three prompts.
SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1e"  # at which Python splits, and no editor does
THREE = ["a red circle#1", f"left of{SEPARATORS}a blue square", '{"scene": "a studio"}']
ROWS = [{"prompt": text} for text in THREE]
JSON_TEXT = '"{""scene"": ""a studio""}"'  # as a cell
SAME = {
    "a.txt": f" {THREE[0]}\r\n\r\n  # held out\r" + "\n".join(THREE[1:]),
    "mark.txt": "\ufeff" + "\n".join(THREE),
    "a.jsonl": "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\r\n",
    "returns.jsonl": "\r".join(map(json.dumps, ROWS)),
    "caption.jsonl": "\n".join(json.dumps({"caption": text, "nothing": None}) for text in THREE),
    "text.jsonl": "\n".join(json.dumps({"text": text}) for text in THREE),
    "strings.json": json.dumps(THREE),
    "objects.json": json.dumps(ROWS, indent=1),
    "a.csv": f"id,Prompt\n1,{THREE[0]}\n2,{THREE[1]}\n3,{JSON_TEXT}\n",
    "semicolons.csv": f"\ufeffcaption;id\r\n{THREE[0]};1\r\n{THREE[1]};2\r\n{JSON_TEXT};3\r\n",
    "a.tsv": f"Prompts\tCategory\n{THREE[0]}\tx\n{THREE[1]}\ty\n{JSON_TEXT}\tz\n",
    "a.parquet": "",
}
PICTURES = [Path(f"{number}.png") for number in range(3)]


def _of_node(prompts="", file=""):
    return [*PromptDataset().take(prompts, 3, 0, False, 0, file)[0].texts]


def _set(**inputs):
    """As `otca train --set` says it, and the node is then given."""
    workflow = Workflow.load(paths.ASSETS.parent / "workflows" / "api" / "quickstart.json", NODE_CLASS_MAPPINGS)
    node = [workflow.set(f"PromptDataset.{name}", value)[0] for name, value in inputs.items()][0]
    inputs = workflow.nodes[node].constants
    assert not [problem for problem in workflow.validate() if problem.node_id == node]
    return _of_node(inputs["prompts"], inputs["file"])


def _evaluated(text):
    return evaluation.prompts(RunSettings(evaluation_prompts=text), [], None)


FROM_FILES = {
    "Prompt Dataset": lambda file: _of_node(file=file),
    "otca train --set": lambda file: _set(file=file),
    "otca score": lambda file: prompts_of(PICTURES, Path(file)),
    "otca compare, prove, bundle": lambda file: _evaluated("\n".join(map(as_line, read_prompts("", file)))),
}
FROM_TEXT = {
    "Prompt Dataset": lambda text: _of_node(prompts=text),
    "otca train --set": lambda text: _set(prompts=text, file=""),
    "evaluation_prompts": _evaluated,
    "Score Images": lambda text: ranking.prompts_of(text, 3, one_a_line=True),
}


def table(name, rows):
    """Bytes of rows in the layout that the name's ending says."""
    if ".json" in name:
        return (json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows))).encode()
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    write, content = csv.write_csv if name.endswith(".csv") else parquet.write_table, io.BytesIO()
    write(pyarrow.Table.from_pylist(rows), content)
    return content.getvalue()


@pytest.mark.parametrize("place", FROM_FILES)
@pytest.mark.parametrize("name", SAME)
def test_a_list_says_the_same_in_every_layout_and_place(tmp_path, name, place):
    (tmp_path / name).write_bytes(SAME[name].encode() or table(name, ROWS))
    assert FROM_FILES[place](str(tmp_path / name)) == THREE


@pytest.mark.parametrize("place", FROM_TEXT)
def test_a_text_box_says_what_the_file_says(place):
    assert FROM_TEXT[place](SAME["a.txt"]) == THREE


@pytest.mark.parametrize("name", [*LISTS, "captions"])
def test_a_folder_says_the_same_in_every_place(tmp_path, name):
    """A picture's list or captions: of a dataset, of `otca score`, and of pairs, whose rows name two pictures."""
    for side in ("w", "l", "images"):
        (tmp_path / side).mkdir()
        for picture, text in zip(PICTURES, THREE, strict=True):
            (tmp_path / side / picture).write_bytes(b"")
            if name == "captions" and side != "l":
                (tmp_path / side / picture).with_suffix(".txt").write_text(f"\ufeff{text}\r\n", "utf-8")
    if name != "captions":
        rows = [{"file_name": str(file), **row} for file, row in zip(PICTURES, ROWS, strict=True)]
        (tmp_path / "images" / name).write_bytes(table(name, rows))
        rows = [
            {"chosen": f"w/{file}", "rejected": f"l/{file}", **row} for file, row in zip(PICTURES, ROWS, strict=True)
        ]
        (tmp_path / name).write_bytes(table(name, rows))
    images = tmp_path / "images"
    assert read_prompts("", str(images)) == _of_node(file=str(images)) == THREE
    assert prompts_of([images / file for file in PICTURES], None) == THREE
    assert [pair.prompt for pair in read_pairs(tmp_path).pairs] == THREE


def test_a_table_of_arrow(tmp_path):
    """Pick-a-Pic's: the pictures are in it, and are not asked for; absent keys are nulls."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    clause = {"class": "cup", "count": 2, "color": None}
    table = {"caption": THREE[:2], "jpg_0": [b"x", b"y"], "include": [[clause], None], "n": [1, 2]}
    parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    prompts = read_prompts("", str(tmp_path / "a.parquet"))
    assert prompts == THREE[:2]
    assert [*map(metadata_of, prompts)] == [{"include": [{"class": "cup", "count": 2}], "n": 1}, {"n": 2}]
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(PromptError, match=r"a\.parquet cannot be read as a table .*Fix: "):
        read_prompts("", str(tmp_path / "a.parquet"))


def test_what_a_table_says_of_its_size_and_columns_is_not_believed(tmp_path, monkeypatch):
    """A text that is repeated is filed once: 300 rows of 10,000 signs are a file of 1 kB that says 10 kB of itself."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def read(table):
        parquet.write_table(table, tmp_path / "a.parquet")
        return read_prompts("", str(tmp_path / "a.parquet"))

    monkeypatch.setattr("comfyui_otca.trainer.prompts.MOST_UNPACKED", 10**6)
    assert len(read(pyarrow.table({"prompt": ["x" * 10_000] * 90}))) == 90
    with pytest.raises(PromptError, match="over 1,000,000 bytes"):
        read(pyarrow.table({"prompt": ["x" * 10_000] * 300}))
    # a column of that name, and not also the part of that name of a column that was left out
    (prompt,) = read(pyarrow.table({"prompt": ["a"], "meta.style": ["ink"], "meta": [{"image": b"1", "style": "oil"}]}))
    assert metadata_of(prompt) == {"meta.style": "ink"}
    with pytest.raises(PromptError, match="two columns 'prompt'. Fix: "):
        read(pyarrow.table([["a"], ["b"]], names=["prompt", "prompt"]))
    with pytest.raises(PromptError, match=r"Nanosecond.*Fix: leave that out"):
        read(pyarrow.table({"prompt": ["a"], "when": pyarrow.array([1], pyarrow.timestamp("ns"))}))


def test_a_caption_that_begins_with_a_bracket_is_text():
    """FLUX.2's are JSON; wildcards of others are in brackets."""
    captions = ['{"scene": "a studio", "prompt_style": 1}', "{red|blue} circle", "{", '{"a": "prompt"}']
    assert lines("\n".join(captions)) == captions and not any(map(metadata_of, lines("\n".join(captions))))
    (sign,) = lines('{"prompt": "a sign", "text": "OPEN"}')
    assert (sign, metadata_of(sign)) == ("a sign", {"text": "OPEN"})
    with pytest.raises(PromptError, match="prompt .* is not an object like .*Fix: such an object, or plain text"):
        lines('{"prompt": "a sign", "text": "OPEN"')


@cases
@given(st.text(), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2))
def test_a_prompt_comes_back_from_its_line(text, metadata):
    prompt = Prompt(
        text.strip(), {name: value for name, value in metadata.items() if name not in ("image", "images", "prompt")}
    )
    if not prompt or "\ufeff" in prompt:
        return
    for written_as in (as_line, as_row):
        (back,) = lines(written_as(prompt))
        assert (back, metadata_of(back)) == (prompt, metadata_of(prompt))


def test_other_encodings_are_named_with_their_line(tmp_path):
    for name, content in (("a.txt", "fine\nit’s red".encode("cp1252")), ("a.jsonl", b'{"prompt": "x"}\n\xff\xfe\x00')):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            PromptError, match=rf"{name}, line 2 is not text in UTF-8 \(byte 0x(92|ff), .*Fix: save it as UTF-8"
        ):
            read_prompts("", str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.json", '{"a": 1}', r"a\.json is not a list of prompts. Fix: a list, as "),
        ("a.json", "[1", r"a\.json is not JSON.*Fix: a list, as "),
        ("a.csv", "a red circle\nb", r"a\.csv, line 1 names no column of prompts: 'a red circle'. Fix: a first line"),
        ("a.csv", "prompt,n\na red, round circle,1\n", r"a\.csv, line 2 has another number of columns.*Fix: "),
        ("a.csv", "prompt,n\nx\n", r"a\.csv, line 2 has another number of columns.*Fix: "),
    ],
)
def test_a_table_that_is_none(tmp_path, name, text, told):
    with pytest.raises(PromptError, match=told):
        read_prompts("", written(tmp_path, name, text))


def test_folders_as_others_have_them(tmp_path):
    """An image folder with its metadata, and Flow-GRPO's tasks: GenEval by train_metadata.jsonl, OCR by train.txt."""
    images, geneval, ocr = (tmp_path / name for name in ("images", "geneval", "ocr"))
    for folder in (images, geneval, ocr):
        folder.mkdir()
    (images / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "make it blue"}\n')
    (geneval / "train_metadata.jsonl").write_text(
        '{"tag": "counting", "include": [{"class": "cup", "count": 2}], "prompt": "two cups"}'
    )
    for split in ("train", "test"):
        (ocr / f"{split}.txt").write_text(f'a sign that says "{split}"\n')
    (image,) = read_prompts("", str(images))
    assert (image, metadata_of(image)) == ("make it blue", {"image": f"{images}/a.png"})
    (cups,) = read_prompts("", str(geneval))
    assert cups == "two cups" and metadata_of(cups)["include"] == [{"class": "cup", "count": 2}]
    assert read_prompts("", str(ocr)) == ['a sign that says "train"'] and file_state(str(ocr)) != file_state(
        str(geneval)
    )


def test_a_name_finds_the_embedded_prompts():
    train, evaluation = read_prompts("", "shapes_train.txt"), read_prompts("", "shapes_eval.txt")
    assert len(train) == len(set(train)) > 50
    assert not set(train) & set(evaluation)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"prompt"', "is not JSON"),
        ('{"words": "x"}', "has no prompt"),
        ("[1]", "has prompt = [1], which is not text"),
        ("7", "has prompt = 7, which is not text"),
        ('{"prompt": null}', "has no prompt"),
        ('{"prompt": ["a", "b"]}', "has prompt = ['a', 'b'], which is not text"),
        ('{"prompt": 7}', "has prompt = 7, which is not text"),
        (r'{"prompt": "a \ud800"}', "has half a character in its prompt"),
        *(
            pytest.param(
                '{"prompt": "x", "worth": ' + value + "}", told, id=f"metadata {name}"
            )  # as our files cannot hold
            for name, value, told in (
                ("NaN", "NaN", "holds an invalid number"),
                ("too large", "1e999", "holds an invalid number"),
                ("deep", "[" * 30 + "]" * 30, "nested deeper"),
                ("very deep", "[" * 200000, "nested deeper"),
            )
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, told):
    file = written(tmp_path, "a.jsonl", '{"prompt": "fine"}\n' + line)
    with pytest.raises(PromptError, match=r"a\.jsonl, line 2 .*Fix: one (such row|object)") as caught:
        read_prompts("", file)
    assert told in str(caught.value)


def test_equal_texts_with_other_metadata_are_named():
    same = [Prompt("a sign", {"text": "OPEN"}), "a fox", Prompt("a sign", {"text": "OPEN"})]
    assert distinct(same) == ["a sign", "a fox"] and metadata_of(distinct(same)[0]) == {"text": "OPEN"}
    with pytest.raises(PromptError, match="different metadata: 'a sign'. Fix: "):
        distinct([*same, Prompt("a sign", {"text": "SHUT"})])


def test_equal_texts_about_different_pictures_are_different_prompts():
    one, other = (Prompt("make it blue", {"image": name}) for name in ("a.png", "b.png"))
    several = Prompt("make it blue", {"images": ["a.png", "b.png"]})
    found = distinct([one, other, one, several, "make it blue"])
    assert [metadata_of(prompt) for prompt in found] == [*map(metadata_of, (one, other, several)), {}]
    with pytest.raises(PromptError, match="1 prompts stand there twice with different metadata: 'make it blue'"):
        distinct([one, Prompt("make it blue", {"image": "a.png", "mask": "m.png"})])


@pytest.mark.parametrize(("name", "text"), [("a.txt", "\n# only a comment\n"), ("a.jsonl", "\n"), ("", "")])
def test_what_holds_no_prompt_is_named(tmp_path, name, text):
    where = f" in .*{name}" if name else ""
    with pytest.raises(PromptError, match=rf"^no prompts{where}\. Fix: type one per line"):
        read_prompts(" \n", written(tmp_path, name, text) if text else "")


def test_a_missing_file():
    with pytest.raises(PromptError, match=r"'nowhere\.txt' was not found.*Fix: "):
        read_prompts("red", "nowhere.txt")


def test_file_order_wraps_around():
    assert choose(["a", "b", "c"], 2, 0, None).texts == ("a", "b")
    wrapped = choose(["a", "b", "c"], 2, 1, None)
    assert wrapped.texts == ("c", "a") and wrapped.positions == (2, 3)
    assert choose(["a"], 3, 0, None).texts == ("a", "a", "a")


@cases
@given(size=st.integers(1, 9), count=st.integers(1, 7), epochs=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_every_epoch_is_a_permutation(size, count, epochs, seed):
    prompts = [f"p{number}" for number in range(size)]
    chosen = [choose(prompts, count, index, seed) for index in range(-(-epochs * size // count))]
    texts = [text for one in chosen for text in one.texts]
    assert [position for one in chosen for position in one.positions] == list(range(len(texts)))
    for epoch in range(epochs):
        assert sorted(texts[epoch * size : (epoch + 1) * size]) == prompts


def test_the_order_depends_on_seed_and_epoch():
    prompts = list(map(str, range(40)))
    first, second = (choose(prompts, 40, index, 3).texts for index in (0, 1))
    assert first == choose(prompts, 40, 0, 3).texts
    assert first != second and first != choose(prompts, 40, 0, 4).texts and list(first) != prompts


def test_how_prompts_are_cut_into_iterations_does_not_change_their_order():
    prompts = list(map(str, range(7)))
    assert sum((choose(prompts, 2, index, 1).texts for index in range(6)), ()) == choose(prompts, 12, 0, 1).texts


def listed(folder, **files):
    """A text that names files of these prompts, each with its weight, and a line more with what else is said of it."""
    rows = []
    for name, (weight, prompts) in files.items():
        rows.append(json.dumps({"file": written(folder, f"{name}.txt", "\n".join(prompts)), "weight": weight}))
    return "# their weights\n" + "\n".join(rows)


@pytest.mark.parametrize(
    ("weights", "drawn"),
    [
        ((3, 1), "a0 a1 b0 a2 a0 a1 b1 a2 a0 a1 b2 a2"),  # (t + 1/2) / w: 1/6 a, 1/2 a, 1/2 b, 5/6 a
        ((0.5, 0.25, 0.25), "a0 b0 c0 a1 a2 b1 c1 a0 a1 b2 c2 a2"),  # 1/4 a, 1/2 b, 1/2 c, 3/4 a
        ((1e-9, 2e-9), "b0 a0 b1 b2 a1 b0 b1 a2 b2"),  # 1/4 b, 1/2 a, 3/4 b
        ((2, None), "a0 b0 a1 a2 b1 a0 a1 b2 a2"),  # 1 where nothing is said
        ((30, 10), "a0 a1 b0 a2 a0 a1 b1 a2"),  # as 3 and 1
    ],
)
def test_files_have_their_turns_by_their_weights(tmp_path, weights, drawn):
    files = {
        name: (weight, [f"{name}{number}" for number in range(3)]) for name, weight in zip("abc", weights, strict=False)
    }
    prompts = read_prompts(listed(tmp_path, **files))
    expected = drawn.split()
    for count in (1, 2, 4, len(expected)):
        chosen = [choose(prompts, count, index, None) for index in range(len(expected) // count)]
        assert [text for each in chosen for text in each.texts] == expected[: len(chosen) * count]
        assert [position for each in chosen for position in each.positions] == list(range(len(chosen) * count))
    assert list(prompts) == [f"{name}{number}" for name in files for number in range(3)] and len(prompts) == 3 * len(
        files
    )
    assert prompts[1] == "a1" and prompts[-1] == list(prompts)[-1]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    files=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), min_size=1, max_size=5),
    count=st.integers(1, 8),
    seed=st.integers(0, 2**63 - 1),
)
def test_no_file_starves_and_each_goes_through_its_prompts(tmp_path_factory, files, count, seed):
    """Against Sainte-Laguë's method as seats are given: to the highest w / (2 c + 1), of equal ones to the first."""
    weights, sizes = zip(*files, strict=True)
    folder = tmp_path_factory.mktemp("files")
    prompts = read_prompts(
        listed(
            folder, **{f"f{part}": (w, [f"{part}:{n}" for n in range(size)]) for part, (w, size) in enumerate(files)}
        )
    )
    rounds = 3 * sum(weights) // count + 1
    drawn = [text for index in range(rounds) for text in choose(prompts, count, index, seed).texts]
    seats, given_turns = [0] * len(files), []
    for _ in drawn:
        part = max(range(len(files)), key=lambda part: (Fraction(weights[part], 2 * seats[part] + 1), -part))
        given_turns.append(part)
        seats[part] += 1
    assert [int(text.split(":")[0]) for text in drawn] == given_turns
    for part, size in enumerate(sizes):
        own = [text for text in drawn if text.startswith(f"{part}:")]
        assert len(own) >= 3 * weights[part]
        for start in range(0, len(own) - size + 1, size):
            assert sorted(own[start : start + size]) == sorted(f"{part}:{number}" for number in range(size))


def test_files_of_one_length_have_orders_of_their_own(tmp_path):
    """Else the tenth prompt of one file would always come with the tenth of the other. The first's is a single file's."""
    names = [f"{number}" for number in range(50)]
    prompts = read_prompts(listed(tmp_path, a=(1, names), b=(1, names)))
    drawn = choose(prompts, 100, 0, 7).texts
    assert drawn[::2] == choose(names, 50, 0, 7).texts != drawn[1::2] and sorted(drawn[1::2]) == sorted(names)


NAMED = r"line '.*', which names a file, {}.* Fix: such a line as .*signs\.txt"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"file": "A", "weight": 0}', NAMED.format("has weight = 0, and not a number above 0")),
        ('{"file": "A", "weight": -1}', NAMED.format("has weight = -1, and not a number above 0")),
        ('{"file": "A", "weight": "3"}', NAMED.format("has weight = '?\"?3'?\"?, and not")),
        ('{"file": "A", "weight": true}', NAMED.format("has weight = .*, and not")),
        ('{"file": "A", "weight": NaN}', NAMED.format("holds an invalid number")),
        ('{"file": "A", "weight": Infinity}', NAMED.format("holds an invalid number")),
        ('{"file": "A", "weight": 1e999}', NAMED.format("holds an invalid number")),
        ('{"file": "A", "wieght": 3}', NAMED.format("has 'wieght'")),
        ('{"file": "A", "prompt": "a fox"}', NAMED.format("has 'prompt'")),
        ('{"file": ""}', NAMED.format("has file = .*, and not the name of a file")),
        ('{"file": ["A"]}', NAMED.format("has file = .*, and not the name of a file")),
        ('{"weight": 3}', NAMED.format("has no 'file'")),
        ('{"file": "A"', NAMED.format("is not JSON")),
        ('{"file": "A", "judged_by": ' + "[" * 99, NAMED.format(".*(deeper|JSON)")),
        (
            '{"file": "A", "weight": 0.70001}\n{"file": "B", "weight": 0.29999}',
            "weights make more than 10000 turns.*Fix: round",
        ),
        ('{"file": "A", "weight": 1e-200}\n{"file": "B"}', "weights make more than 10000 turns"),
        ('{"file": "A", "weight": 10001}', "weights make more than 10000 turns"),
        ('{"file": "A"}\n{"file": "A", "weight": 2}', r"a\.txt is named twice. Fix: take a line out"),
        ('{"file": "A"}\n{"file": "EMPTY"}', r"empty\.txt has no prompts. Fix: "),
        ('{"file": "A"}\n{"file": "nowhere.txt"}', r"'nowhere\.txt' was not found.*Fix: "),
        ('{"file": "A"}\na fox', "names a file, as only the prompts of a Prompt Dataset may.* Fix: put the prompts"),
        ('a fox\n{"file": "A"}', "names a file, as only the prompts of a Prompt Dataset may.* Fix: put the prompts"),
        ('{"file": "LISTS"}', "names a file, as only the prompts of a Prompt Dataset may.* Fix: put the prompts"),
    ],
)
def test_files_and_weights_that_cannot_be_had_are_named(tmp_path, text, told):
    names = {"A": "a red circle", "B": "a blue square", "EMPTY": "# none", "LISTS": '{"file": "a.txt"}'}
    for name, content in names.items():
        text = text.replace(f'"{name}"', json.dumps(written(tmp_path, f"{name.lower()}.txt", content)))
    with pytest.raises(PromptError, match=told):
        read_prompts(text)
    assert PromptDataset.VALIDATE_INPUTS(prompts=text, file="").startswith("prompts: ")


def test_evaluations_and_files_name_no_files(tmp_path):
    """A text that names files would else be taken for a prompt."""
    text = listed(tmp_path, a=(1, ["a fox"]))
    told = TrainingRun.VALIDATE_INPUTS(evaluation_prompts=text)
    assert told.startswith("evaluation_prompts: ") and "as only the prompts of a Prompt Dataset may" in told
    said = Prompt(text.splitlines()[1])
    for write in (as_line, as_row):
        assert lines(write(said)) == [said]


def test_a_files_prompts_have_its_judges_unless_they_name_their_own(tmp_path):
    rows = [{"prompt": "OPEN", "judged_by": ["ocr"], "text": "OPEN"}, {"prompt": "SHUT"}]
    table = written(tmp_path, "signs.jsonl", "\n".join(map(json.dumps, rows)))
    named = [{"file": table, "judged_by": ["text"]}, {"file": written(tmp_path, "a.txt", "a fox")}]
    prompts = list(read_prompts("\n".join(map(json.dumps, named))))
    assert prompts == ["OPEN", "SHUT", "a fox"]
    assert [*map(metadata_of, prompts)] == [{"judged_by": ["ocr"], "text": "OPEN"}, {"judged_by": ["text"]}, {}]
    assert "signs.jsonl, line 2" in prompts[1].place


def test_a_change_of_any_file_is_seen(tmp_path):
    text = listed(tmp_path, a=(1, ["a fox"]), b=(2, ["a crow"]))
    states = [PromptDataset.IS_CHANGED(prompts=text)]
    for name in "ab":
        written(tmp_path, f"{name}.txt", f"another {name}")
        states.append(PromptDataset.IS_CHANGED(prompts=text, file=""))
    assert len(set(states)) == 3 and PromptDataset.IS_CHANGED(prompts="a fox") == PromptDataset.IS_CHANGED(prompts=None)
    assert PromptDataset.IS_CHANGED(prompts=text, file=str(tmp_path / "a.txt")) == file_state(str(tmp_path / "a.txt"))


def test_each_file_counts_as_a_wish_to_read_it(tmp_path):
    """As the one in `file` does; not where the text box is not used, or cannot be."""
    text = listed(tmp_path, a=(1, ["a fox"]), b=(2, ["a crow"]))
    asked = [want for want in wants.of_node(PromptDataset, {"prompts": text, "file": ""}) if not want.plain]
    assert [(want.what, want.why, want.input) for want in asked] == [
        (str(tmp_path / f"{name}.txt"), PROMPTS, "prompts") for name in "ab"
    ]
    for prompts in ("a fox", '{"file": 3}', 7, {"file": "a.txt"}):
        assert not [want for want in wants.of_node(PromptDataset, {"prompts": prompts, "file": ""}) if not want.plain]
    assert [want.input for want in wants.of_node(PromptDataset, {"prompts": text, "file": "a.txt"})] == ["file"]


def test_two_large_files_are_each_read_once(tmp_path, monkeypatch):
    large = [f"a fox of number {number}" for number in range(60_000)]
    text = listed(tmp_path, a=(1, large), b=(1, large))
    read = []
    content = prompts_module.prompts_in
    monkeypatch.setattr(prompts_module, "prompts_in", lambda *file: read.append(file[1].name) or content(*file))
    for index in range(3):
        choose(read_prompts(text), 4, index, 0)
    assert read == ["a.txt", "b.txt"]


@given(st.text(st.sampled_from("a é#\n\r\u2028\x85\ufeff{\t"), max_size=40))
def test_a_file_holds_the_prompts_of_its_text(text):
    text = text.lstrip("\ufeff")  # of which a file has its own
    for mark in (b"", codecs.BOM_UTF8):
        prompts = prompts_module.prompts_in(mark + text.encode(), Path("a.txt"))
        assert prompts == lines(text) and list(prompts) == [prompts[number] for number in range(len(prompts))]
        assert prompts[:2] == lines(text)[:2] and prompts != [*lines(text), "more"]


def test_a_million_prompts_are_read_once_and_again_after_a_change(tmp_path, monkeypatch):
    contents = []
    monkeypatch.setattr(prompts_module, "prompts_in", lambda content, path: contents.append(content) or ["a"])
    large, small = "a\n" * 600_000, "a\n"
    for text, times in ((large, 1), (large + "b", 1), (small, 2)):
        name = str(written(tmp_path, "a.txt", text))
        contents.clear()
        assert [read_prompts("", name), read_prompts("", name)] == [["a"], ["a"]]
        assert contents == [text.encode()] * times


def test_file_state_follows_the_file(tmp_path):
    file = written(tmp_path, "a.txt", "one")
    before = file_state(file)
    written(tmp_path, "a.txt", "one and more")
    assert file_state(file) != before and file_state("") == ""


def test_the_prompts_for_large_models_are_200_and_all_different():
    texts = (paths.ASSETS / "prompts" / "general.txt").read_text(encoding="utf-8").splitlines()
    assert len(texts) == len(set(texts)) == 200 and all(text.strip() == text for text in texts)
