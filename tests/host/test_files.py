"""Names that are given on the command line, and files that take another one's place."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from comfyui_otca.host import files, names
from comfyui_otca.host.files import write_text
from comfyui_otca.host.names import named_place


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


@pytest.mark.parametrize("name", ["nul", "CON.txt", "con .txt", "COM0", "COM¹.x", "LPT9", "CONIN$", "conout$"])
def test_a_name_of_a_device_of_windows(name):
    """Seen before: COM0, CONIN$ and `CON .txt` passed as names of runs."""
    with pytest.raises(ValueError, match="is a device's name on Windows. Fix: "):
        names.plain_name(name)


def test_a_name_that_only_looks_like_a_devices():
    for name in ("console", "COM", "COM10", "nul_", "my.con"):
        assert names.plain_name(name) == name


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_open_for_a_moment_is_waited_for(tmp_path, monkeypatch):
    """Windows refuses to replace it until it is closed."""
    replace, refused = os.replace, []

    def open_elsewhere(source, target):
        if len(refused) < 3:
            refused.append(target)
            raise PermissionError(13, "Access is denied", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", open_elsewhere)
    path = tmp_path / "status.json"
    write_text(path, "new")
    assert path.read_text() == "new" and refused == [path] * 3


def test_a_file_that_stays_open_is_told_and_stays(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    path.write_text("old")

    def open_elsewhere(source, target):
        raise PermissionError(13, "Access is denied", str(target))

    monkeypatch.setattr(files, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(os, "replace", open_elsewhere)
    with pytest.raises(PermissionError, match="Access is denied"):
        write_text(path, "new")
    assert [(place.name, place.read_text()) for place in tmp_path.iterdir()] == [("status.json", "old")]


def test_two_threads_write_aside_in_two_places(tmp_path, monkeypatch):
    """Else one would take the other's half-written file."""
    both, flushed, flush = threading.Barrier(2), [], files.flush

    def meet(path):
        if path != tmp_path:
            flushed.append(path)
            both.wait(60)
        flush(path)

    monkeypatch.setattr(files, "flush", meet)
    threads = [threading.Thread(target=write_text, args=(tmp_path / "status.json", text)) for text in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(flushed)) == 2 and (tmp_path / "status.json").read_text() in ("one", "two")
