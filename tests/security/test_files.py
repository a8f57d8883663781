"""F8, and links: a prompt file is opened and judged, in time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from comfyui_otca.host.access import opening, permissions
from comfyui_otca.host.access.permissions import NotAllowed
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.prompts import PromptError, file_state, read_prompts


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The one folder that may be read."""
    place = tmp_path / "allowed"
    place.mkdir()
    monkeypatch.setenv(permissions.FOLDERS, str(place))
    return place


READERS = {"read": lambda name: read_prompts("", str(name)), "state": lambda name: file_state(str(name))}
both = pytest.mark.parametrize("read", READERS)


def complaint(read, name):
    with pytest.raises((PromptError, NotAllowed, ValueError), match="Fix: ") as caught:
        READERS[read](name)
    return str(caught.value)


NOT_REGULAR = {"pipe": os.mkfifo, "link to a device": lambda path: path.symlink_to("/dev/zero"), "folder": Path.mkdir}


@both
@pytest.mark.parametrize("kind", NOT_REGULAR)
def test_what_is_not_a_regular_file_neither_hangs_nor_is_read(folder, read, kind):
    NOT_REGULAR[kind](folder / "a.txt")
    assert "not a regular file" in complaint(read, folder / "a.txt")


@both
def test_a_link_out_of_the_folder(folder, tmp_path, read):
    (tmp_path / "secret.txt").write_text("s3cret\n")
    (folder / "a.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "deep").symlink_to(tmp_path)
    for name in ("a.txt", "deep/secret.txt"):
        told = complaint(read, folder / name)
        assert "link out of its folder" in told and "s3cret" not in told


def test_a_link_within_the_folder_and_a_linked_folder(folder, tmp_path, monkeypatch):
    (folder / "real.txt").write_text("one\n")
    (folder / "a.txt").symlink_to(folder / "real.txt")
    assert read_prompts("", str(folder / "a.txt")) == ["one"]
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.setenv(permissions.FOLDERS, str(tmp_path / "link"))
    assert (
        read_prompts("", str(tmp_path / "link" / "real.txt")) == ["one"] == read_prompts("", str(folder / "real.txt"))
    )


def test_only_prompt_files(folder):
    for name in ("id_rsa", ".env", "prompts.yaml", "a.txt.key", "token"):
        (folder / name).write_text("s3cret\n")
        assert ".txt or .jsonl" in complaint("read", folder / name)
        permissions.user_named(folder / name)
        assert read_prompts("", str(folder / name)) == ["s3cret"], "what the user named himself"


@both
def test_a_large_file(folder, read, monkeypatch):
    monkeypatch.setattr(permissions, "MOST_LINES_BYTES", 10)
    monkeypatch.setattr(permissions, "MOST_PROMPT_BYTES", 4)
    (folder / "a.txt").write_text("x" * 10)
    READERS[read](folder / "a.txt")
    for name, most in (("a.txt", 10), ("a.jsonl", 10), ("a.json", 4)):
        (folder / name).write_text("x" * 11)
        assert f"11 bytes, and {most} may be read" in (told := complaint(read, folder / name)) and "split it" in told


def test_a_file_that_tells_no_size_and_has_no_end(folder):
    descriptor = os.open("/dev/zero", os.O_RDONLY)
    with pytest.raises(opening.Refused, match="more than 10 bytes"):
        opening.read(descriptor, 10)
    with pytest.raises(OSError):
        os.fstat(descriptor)


@pytest.fixture
def hanging(monkeypatch):
    """Files open when this is set, and hang until then."""
    event = threading.Event()

    def hangs(*arguments):
        event.wait(30)
        raise OSError("gone")

    monkeypatch.setattr(opening, "SECONDS", 0.05)
    monkeypatch.setattr(opening, "hanging", [])  # those of other tests
    monkeypatch.setattr(opening, "opened", hangs)
    yield event
    event.set()


def test_several_files_on_a_drive_that_hangs_are_waited_for_once(folder, hanging, monkeypatch):
    monkeypatch.setattr(opening, "SECONDS_WHILE_ONE_HANGS", 0.01)
    (folder / "a.txt").write_text("one\n"), (folder / "b.txt").write_text("two\n")
    assert "could not be read within 0.05 s" in complaint("read", folder / "a.txt")
    assert "could not be read within 0.01 s" in complaint("read", folder / "b.txt")
    with monkeypatch.context() as later:
        later.setattr(opening, "REMEMBERED", 0.0)
        assert "could not be read within 0.05 s" in complaint("read", folder / "b.txt"), "a minute is over"
    hanging.set()
    for thread, _ in opening.hanging:
        thread.join()
    hanging.clear()
    assert "could not be read within 0.05 s" in complaint("read", folder / "a.txt"), "the drive was there again"


@both
def test_a_network_drive_that_hangs_holds_nothing_up(folder, read, hanging):
    """As seen from ComfyUI, whose one loop asks VALIDATE_INPUTS."""
    (folder / "a.txt").write_text("one\n")
    if read == "read":
        told = NODE_CLASS_MAPPINGS["OTCA_PromptDataset"].VALIDATE_INPUTS("", str(folder / "a.txt"))
        assert told.startswith("file: ") and "could not be read within 0.05 s. Fix: " in told
    else:
        with pytest.raises(TimeoutError):
            file_state(str(folder / "a.txt"))


def test_what_is_no_text_or_nested_very_deep(folder):
    for content in (b"\xff\xfe\x00red", b"caf\xe9\n"):
        (folder / "a.txt").write_bytes(content)
        assert "not text in UTF-8" in complaint("read", folder / "a.txt")
    (folder / "a.jsonl").write_text('{"prompt": ' + "[" * 100_000 + "\n")
    told = complaint("read", folder / "a.jsonl")
    assert "line 1 is nested deeper than 20 levels" in told and len(told) < 500


def test_without_the_flags_of_this_system(folder, monkeypatch):
    """Windows has neither O_NONBLOCK nor O_CLOEXEC, and opens texts as texts."""
    for flag in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY"):
        monkeypatch.delattr(os, flag)
    monkeypatch.setattr(opening, "WINDOWS", True)
    (folder / "a.txt").write_text("one\n")
    os.mkfifo(folder / "b.txt")
    assert read_prompts("", str(folder / "a.txt")) == ["one"]
    assert "not a regular file" in complaint("read", folder / "b.txt")
