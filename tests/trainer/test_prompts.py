"""Reading prompt files, and which prompts an iteration takes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.host import paths
from comfyui_otca.trainer.prompts import PromptError, as_line, as_row, choose, distinct, file_state, lines, read_prompts
from comfyui_otca.trainer.types import Prompt, metadata_of

cases = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_text_box():
    assert read_prompts("  red \n\n# a comment\n  # another\nblue#1\r\nгрün ") == ["red", "blue#1", "грün"]


def test_text_file_wins_over_the_text_box(tmp_path):
    file = written(tmp_path, "a.txt", "one\n#no\n\n two\n")
    assert read_prompts("three", file) == ["one", "two"]


def test_json_lines(tmp_path):
    rows = [{"prompt": " one "}, {"prompt": "#two", "other": 1}]
    file = written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    read = read_prompts("", file)
    assert read == ["one", "#two"] and [*map(metadata_of, read)] == [{}, {"other": 1}]
    assert metadata_of(choose(read, 1, 1, None).texts[0]) == {"other": 1} and metadata_of("plain") == {}


# What people bring, as it is published: text boxes, lists, tables. Each says the same two prompts.
TWO = ["a red circle", "left of a blue square"]
ROWS = [{"prompt": text} for text in TWO]
SAME = {
    "a.txt": "\ufeffa red circle\r\n\r\n# held out\rleft of a blue square",
    "a.jsonl": "\n".join(map(json.dumps, ROWS)) + "\r\n",
    "caption.jsonl": "\n".join(json.dumps({"caption": text, "nothing": None}) for text in TWO),
    "text.jsonl": "\n".join(json.dumps({"text": text}) for text in TWO),
    "strings.json": json.dumps(TWO),
    "objects.json": json.dumps(ROWS, indent=1),
    "a.csv": "id,Prompt\n1,a red circle\n2,left of a blue square\n",
    "semicolons.csv": "\ufeffcaption;id\r\na red circle;1\r\nleft of a blue square;2\r\n",
    "a.tsv": "Prompts\tCategory\na red circle\tx\nleft of a blue square\ty\n",
}


@pytest.mark.parametrize("name", SAME)
def test_a_list_says_the_same_in_every_layout_and_place(tmp_path, name):
    assert read_prompts("", written(tmp_path, name, SAME[name])) == TWO
    if name == "a.txt":
        assert read_prompts(SAME[name].lstrip("\ufeff")) == lines(SAME[name].lstrip("\ufeff")) == TWO


def test_a_table_of_arrow(tmp_path):
    """Pick-a-Pic's: the pictures are in it, and are not asked for; absent keys are nulls."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    clause = {"class": "cup", "count": 2, "color": None}
    table = {"caption": TWO, "jpg_0": [b"x", b"y"], "include": [[clause], None], "n": [1, 2]}
    parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    prompts = read_prompts("", str(tmp_path / "a.parquet"))
    assert prompts == TWO
    assert [*map(metadata_of, prompts)] == [{"include": [{"class": "cup", "count": 2}], "n": 1}, {"n": 2}]
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(PromptError, match=r"a\.parquet cannot be read as a table .*Fix: "):
        read_prompts("", str(tmp_path / "a.parquet"))


SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1e"  # at which Python splits, and no editor does


def test_only_line_breaks_end_a_line(tmp_path):
    prompts = [f"a red circle {sign}left of a blue square" for sign in SEPARATORS]
    text = "\n".join(prompts)
    assert read_prompts(text) == lines(text) == read_prompts("", written(tmp_path, "a.txt", text)) == prompts
    assert (
        read_prompts(
            "", written(tmp_path, "a.jsonl", "\n".join(json.dumps({"prompt": p}, ensure_ascii=False) for p in prompts))
        )
        == prompts
    )


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


def test_file_state_follows_the_file(tmp_path):
    file = written(tmp_path, "a.txt", "one")
    before = file_state(file)
    written(tmp_path, "a.txt", "one and more")
    assert file_state(file) != before and file_state("") == ""


def test_the_prompts_for_large_models_are_200_and_all_different():
    texts = (paths.ASSETS / "prompts" / "general.txt").read_text(encoding="utf-8").splitlines()
    assert len(texts) == len(set(texts)) == 200 and all(text.strip() == text for text in texts)
