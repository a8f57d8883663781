"""Reading prompt files, and which prompts an iteration takes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.host import paths
from comfyui_otca.trainer.prompts import PromptError, choose, distinct, file_state, read_prompts
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


def test_a_name_finds_the_embedded_prompts():
    train, evaluation = read_prompts("", "shapes_train.txt"), read_prompts("", "shapes_eval.txt")
    assert len(train) == len(set(train)) > 50
    assert not set(train) & set(evaluation)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"prompt"', "is not JSON"),
        ('{"text": "x"}', "has no prompt"),
        ('"x"', "has no prompt"),
        ("[1]", "has no prompt"),
        ("7", "has no prompt"),
        ('{"prompt": null}', "has prompt = None, which is not text"),
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
    with pytest.raises(PromptError, match=r"a\.jsonl, line 2 is not an object like.*Fix: ") as caught:
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
