"""Files of one JSON object a line, read after an editor or a kill had them."""

from __future__ import annotations

import pytest

from comfyui_otca.host import json_lines
from comfyui_otca.host.files import Damaged


@pytest.mark.parametrize("end", ["\n", "\n\n", "\n \r\n\n", "", "  ", '\n{"numb', '\n\n{"numb'])
def test_what_an_editor_or_a_kill_leaves_at_the_end_is_no_line(tmp_path, end):
    path, said = tmp_path / "votes.jsonl", []
    for begin, rows in ((b'{"number": 1}', [{"number": 1}]), (b"", [])):
        path.write_bytes(begin + end.encode())
        assert json_lines.read_lines(path, lambda row: None, said.append) == rows
    assert len(said) == 2 * end.endswith("numb")


def test_a_wrong_last_line_that_has_its_line_break_is_named(tmp_path):
    path = tmp_path / "votes.jsonl"
    path.write_text('{"number": 1}\n{"number": 2,}\n')
    with pytest.raises(Damaged, match="line 2 is not JSON"):
        json_lines.read_lines(path, lambda row: None, pytest.fail)
