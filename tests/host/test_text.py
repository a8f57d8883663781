"""Text that can be shown."""

from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.host.text import printable, quoted, shortened


def test_what_commands_a_terminal_or_turns_letters_round_is_escaped():
    assert printable("a\x08b \x1b[31mred \u202egnp.exe") == "a\\x08b \\x1b[31mred \\u202egnp.exe"
    assert printable("half \ud800 a character") == "half \\ud800 a character"


def test_letters_of_every_script_and_line_breaks_stay():
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
