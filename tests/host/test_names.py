"""Names that become folders and files, and those that a command line gives to paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from comfyui_otca.host import names
from comfyui_otca.host.names import named_path


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
        ValueError, match="^workflow 'a:b=c.json': the name 'a:b' must be a plain name.*; NAME=FILE gives"
    ):
        named_path("a:b=c.json", "workflow")


@pytest.mark.parametrize("name", ["nul", "CON.txt", "con .txt", "COM0", "COM¹.x", "LPT9", "CONIN$", "conout$"])
def test_a_name_of_a_device_of_windows(name):
    """Seen before: COM0, CONIN$ and `CON .txt` passed as names of runs."""
    with pytest.raises(ValueError, match="is a device's name on Windows. Fix: "):
        names.plain_name(name)


def test_a_name_that_only_looks_like_a_devices():
    for name in ("console", "COM", "COM10", "nul_", "my.con"):
        assert names.plain_name(name) == name
