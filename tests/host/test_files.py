"""Files that replace others: whole or not at all, also where Windows or another thread is in the way."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from comfyui_otca.host import files
from comfyui_otca.host.files import write_text


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
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda text: write_text(tmp_path / "status.json", text), ("one", "two")))
    assert len(set(flushed)) == 2 and (tmp_path / "status.json").read_text() in ("one", "two")


@pytest.mark.skipif(
    sys.platform == "darwin", reason="only Windows refuses it, and conftest where /proc says what is open"
)
@pytest.mark.parametrize("use", [lambda file: file.open("rb"), lambda file: safe_open(file, "pt")])
def test_a_file_in_use_is_neither_replaced_nor_removed(tmp_path, use):
    file, other = tmp_path / "a.safetensors", tmp_path / "b"
    save_file({"a": torch.ones(3)}, file)
    other.write_text("b", encoding="utf-8")
    used = use(file)
    for refused in (lambda: os.replace(other, file), file.unlink, lambda: os.rename(file, tmp_path / "c")):
        with pytest.raises(PermissionError):
            refused()
    del used
    os.replace(other, file)


def test_the_longest_unused_files_go_until_the_others_have_room(tmp_path):
    for age, name in enumerate("abcd"):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert files.trim(tmp_path.iterdir(), 25) == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
