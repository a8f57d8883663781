"""Names that are given on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from comfyui_otca.trainer.layout import named_place


def test_a_place_and_its_name(tmp_path, monkeypatch):
    assert named_place("runs/quickstart.json", "workflow") == ("quickstart", Path("runs/quickstart.json"))
    assert named_place("OTCA=a/b.json", "workflow") == ("OTCA", Path("a/b.json"))
    assert named_place("~/a.json", "workflow")[1] == Path.home() / "a.json"
    run = tmp_path / "v1.5"
    run.mkdir()
    assert named_place(str(run), "workflow") == ("v1.5", run), "a folder, not a file of type .5"
    monkeypatch.chdir(run)
    assert named_place(".", "workflow") == ("v1.5", Path("."))


def test_a_name_that_is_no_plain_one():
    with pytest.raises(
        ValueError, match="^workflow 'a:b=c.json': the name 'a:b' must be a plain name.*; NAME=FILE gives"
    ):
        named_place("a:b=c.json", "workflow")
