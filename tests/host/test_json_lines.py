"""Files of one JSON object a line: added to by several processes, and read after an editor or a kill had them."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

import comfyui_otca
from comfyui_otca.host import json_lines
from comfyui_otca.host.files import Damaged

WRITER = """
import sys
from pathlib import Path
from comfyui_otca.host import json_lines
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    json_lines.append_line(Path(sys.argv[1]), '{"number": %d}' % number)
"""


def read(path):
    return json_lines.read_lines(path, lambda row: None, pytest.fail)


def test_two_processes_lose_no_line(tmp_path):
    path, place = tmp_path / "votes.jsonl", Path(comfyui_otca.__file__).parent.parent
    command, pipes = [sys.executable, "-c", WRITER, str(path)], dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    writers = [subprocess.Popen(command, cwd=place, **pipes) for _ in range(2)]
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    assert sorted(row["number"] for row in read(path)) == sorted([*range(100)] * 2)


@pytest.mark.parametrize("end", ["\n", "\n\n", "\n \r\n\n", "", "  ", '\n{"numb', '\n\n{"numb'])
def test_what_an_editor_or_a_kill_leaves_at_the_end_is_removed_by_the_next_line(tmp_path, end):
    path, said = tmp_path / "votes.jsonl", []
    for begin, found in ((b'{"number": 1}', [{"number": 1}]), (b"", [])):
        path.write_bytes(begin + end.encode())
        assert json_lines.read_lines(path, lambda row: None, said.append) == found
        json_lines.append_line(path, '{"number": 2}')
        assert path.read_bytes() == begin + b"\n" * len(found) + b'{"number": 2}\n'
    assert len(said) == 2 * end.endswith("numb")


def test_a_wrong_last_line_that_has_its_line_break_is_named_and_stays(tmp_path):
    path, content = tmp_path / "votes.jsonl", '{"number": 1}\n{"number": 2,}\n'
    path.write_text(content)
    with pytest.raises(Damaged, match="line 2 is not JSON"):
        read(path)
    with pytest.raises(OSError, match="its last line is not JSON.*Fix: correct or remove that line"):
        json_lines.append_line(path, '{"number": 3}')
    assert path.read_text() == content


def test_a_file_system_without_locks_takes_lines_all_the_same(tmp_path, monkeypatch):
    """Seen before: a vote was refused there, though one process alone asks."""

    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    json_lines.append_line(tmp_path / "votes.jsonl", '{"number": 1}')
    assert read(tmp_path / "votes.jsonl") == [{"number": 1}]
