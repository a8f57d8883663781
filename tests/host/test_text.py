"""Text that can be shown, and names that become folders and files."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.host.text import named_path, plain_name, printable, quoted, shortened


def test_what_commands_a_terminal_or_turns_letters_round_is_escaped_and_letters_of_every_script_stay():
    assert printable("a\x08b \x1b[31mred \u202egnp.exe") == "a\\x08b \\x1b[31mred \\u202egnp.exe"
    assert printable("half \ud800 a character") == "half \\ud800 a character"
    assert printable("北京 größe 🙂\n\tnext") == "北京 größe 🙂\n\tnext"


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.text(st.characters()))
def test_a_printable_text_stays_as_it_is_and_is_utf8(text):
    once = printable(text)
    assert printable(once) == once
    assert once.encode().decode() == once


def test_the_end_of_a_long_text_is_kept():
    assert shortened("/a/long/path/to/model.safetensors", 20) == "/a/long/pat … ensors"
    assert quoted("x" * 100, most=20) == '"xxxxxxxxxx … xxxxx"'


def test_a_path_and_its_name(tmp_path, monkeypatch):
    assert named_path("runs/quickstart.json", "workflow") == ("quickstart", Path("runs/quickstart.json"))
    assert named_path("OTCA=a/b.json", "workflow") == ("OTCA", Path("a/b.json"))
    assert named_path("~/a.json", "workflow")[1] == Path.home() / "a.json"
    run = tmp_path / "v1.5"
    run.mkdir()
    assert named_path(str(run), "workflow") == ("v1.5", run), "a folder, not a file of type .5"
    monkeypatch.chdir(run)
    assert named_path(".", "workflow") == ("v1.5", Path("."))


def test_a_name_that_is_no_plain_one():
    with pytest.raises(
        ValueError, match="^workflow 'a:b=c.json': the name 'a:b' must be a plain name.*; NAME=FILE give"
    ):
        named_path("a:b=c.json", "workflow")


@pytest.mark.parametrize("name", ["nul", "CON.txt", "con .txt", "COM0", "COM¹.x", "LPT9", "CONIN$", "conout$"])
def test_a_name_of_a_device_of_windows(name):
    """Seen before: COM0, CONIN$ and `CON .txt` passed as names of runs."""
    with pytest.raises(ValueError, match="is a device's name on Windows. Fix: "):
        plain_name(name)
    for similar in ("console", "COM", "COM10", "nul_", "my.con"):
        assert plain_name(similar) == similar
