"""Nothing foreign is written over or removed, whatever it is called, and no link is followed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.host import files, own_folders, stopping
from comfyui_otca.trainer.checks.prepare import prepare
from comfyui_otca.trainer.run import checkpoint, held, record
from comfyui_otca.trainer.run import loop as run
from comfyui_otca.trainer.run.folder import Path
from comfyui_otca.trainer.run.trackers import Trackers

FOREIGN = {
    "workflow.json": b'{"mine": 1}',
    "lora.safetensors": b"mine",
    "samples/holiday.png": b"mine",
    "checkpoints/1000/notes.txt": b"mine",
    "best/of/all.txt": b"mine",
    "transformer/config.json": b"mine",
    "stop": b"mine",
    "stop/of/the/bus": b"mine",
    "style.safetensors": b"mine",  # the name that Save LoRA gives
}


def fill(folder, contents):
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_new_run_refuses_what_it_would_write_over(small_graph, tmp_path, name, capsys):
    """Seen before: workflow.json and lora.safetensors exchanged, checkpoints/1000 deleted, exit code 0."""
    folder = fill(tmp_path / "documents", {name: FOREIGN[name]})
    given = tmp_path / "given.json"
    given.write_text(json.dumps(small_graph({"OTCA_SaveLoRA": {"filename": "style"}})))
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (1.0e9, 1.0e9))
    assert main(["train", str(given), "--output", str(folder)]) == 2
    [told] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("otca: ")]
    assert f"{folder} holds {name.split('/')[0]}" in told and "Fix: " in told
    assert content(folder) == {name: FOREIGN[name]}, "not even a claim is left there"


def test_our_own_run_that_has_no_iteration_is_begun_in(small_workflow, tmp_path):
    folder = fill(tmp_path / "run", {"workflow.json": b"{}", "evaluation.jsonl": b"", "rewards.png": b""})
    with pytest.raises(run.RunError, match="write over"):
        prepare(small_workflow(), folder)
    (tmp_path / "run" / "status.json").write_text('{"status": "queued", "place": "headless", "total": 3}')
    prepare(small_workflow(), folder).held.close()
    for broken in ("", "{}", '{"status": "mine"}', "[]"):
        (tmp_path / "run" / "status.json").write_text(broken)
        with pytest.raises(run.RunError, match="write over"):
            prepare(small_workflow(), folder)


def test_pruning_removes_only_what_a_training_made(model, tmp_path, caplog):
    others = {"1000/notes.txt": b"mine", ".000007.1/notes.txt": b"mine", "0999": b"mine", "000005/notes.txt": b"mine"}
    folder = fill(tmp_path / "checkpoints", others)
    precious = fill(tmp_path / "precious", {"state.json": b"{}"})
    os.symlink(precious, folder / "000001")
    before = content(tmp_path)
    with caplog.at_level(logging.WARNING):
        for iteration in (2, 3, 4):
            checkpoint.save(model, folder, iteration, keep=1)
    told = [record.getMessage() for record in caplog.records]
    assert sum("1000 was not made by a training, and is left alone" in line for line in told) == 1, "once"
    assert checkpoint.restore(model, folder) == 4
    with pytest.raises(files.NotOurs, match="000005 was not made by a training, and is left alone. Fix: move it"):
        checkpoint.save(model, folder, 5)
    after = content(tmp_path)
    assert {name: after.get(name) for name in before} == before
    assert sorted(path.name for path in folder.glob("0000*")) == ["000001", "000004", "000005"]


def test_a_checkpoint_that_lost_its_marker_when_it_was_copied(model, tmp_path):
    (checkpoint.save(model, tmp_path, 1) / own_folders.MARKER).unlink()
    checkpoint.save(model, tmp_path, 2, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["000002"]
    (tmp_path / "000002" / own_folders.MARKER).unlink()
    (tmp_path / "000002" / own_folders.MARKER).mkdir()  # something else of that name: it is read, and left alone
    assert checkpoint.restore(model, tmp_path) == 2
    checkpoint.save(model, tmp_path, 3, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "000003"]


def test_a_removal_follows_no_link(tmp_path):
    precious = fill(tmp_path / "precious", {"a": b"mine"})
    own = tmp_path / "own"
    own.mkdir()
    own_folders.mark_own(own)
    os.symlink(precious, own / "inside")
    os.symlink(own, tmp_path / "linked")
    assert not own_folders.remove_own(tmp_path / "linked") and own.is_dir()
    assert own_folders.remove_own(own) and content(precious) == {"a": b"mine"}
    own_folders.mark_own(precious)
    assert own_folders.is_own(precious)
    (precious / own_folders.MARKER).write_text("somebody else's")
    assert not own_folders.remove_own(precious)


@pytest.mark.parametrize("name", ["rewards.png", "samples/000001.png"])
def test_a_picture_takes_the_place_of_a_link(tmp_path, name):
    """Seen before: it was written to where the link leads, whatever file that is."""
    import numpy as np

    from comfyui_otca.trainer.pictures import grids

    victim = fill(tmp_path, {"victim": b"theirs", name: b""}) / "victim"
    (tmp_path / name).unlink()
    os.symlink(victim, tmp_path / name)
    grids.save(np.zeros((4, 4, 3), np.uint8), tmp_path / name)
    assert victim.read_bytes() == b"theirs" and not (tmp_path / name).is_symlink()
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(files.NotOurs, match="is a folder, and a file is to be written there. Fix: move it"):
        grids.save(np.zeros((4, 4, 3), np.uint8), tmp_path / name)
    assert not list(tmp_path.rglob(".*")), "nothing is left aside"


@pytest.mark.parametrize("name", ["samples", "checkpoints", "best", "tensorboard", "transformer"])
def test_a_run_that_leads_elsewhere_is_not_gone_on_with(finished_run, tmp_path, capsys, name):
    """As one that came in an archive. Seen before: pictures and checkpoints were written where the link led."""
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(finished_run, folder)
    if (folder / name).is_dir():
        shutil.rmtree(folder / name)
    elsewhere.mkdir()
    (folder / name).symlink_to(elsewhere)
    assert main(["train", str(folder), "--resume", "--iterations", "7"]) == 2
    assert f"{folder / name} is a link" in capsys.readouterr().err
    assert not list(elsewhere.iterdir())


def test_a_best_of_somebody_else_is_told_before_training(tmp_path):
    folder = fill(tmp_path / "run", {"best/of/all.txt": b"mine"})
    opened = record.Run(held.read(folder, None, True), record.RunSettings(1, 1), {})
    with pytest.raises(record.RunError, match="best was not made by a training. Fix: move it elsewhere"):
        opened.begin(0)
    assert (folder / "best/of/all.txt").read_bytes() == b"mine"


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_only_a_plain_file_asks_to_stop(tmp_path, monkeypatch, kind):
    """Seen before: a folder of that name ended a training at once, with IsADirectoryError."""
    (tmp_path / "there").touch()
    place = tmp_path / "stop"
    make = {
        "folder": place.mkdir,
        "link": lambda: place.symlink_to(tmp_path / "there"),
        "pipe": lambda: os.mkfifo(place),
    }
    make[kind]()
    monkeypatch.setattr(stopping.request, "folder", tmp_path)
    stopping.check_stop()
    place.rmdir() if kind == "folder" else place.unlink()
    place.touch()
    with pytest.raises(stopping.Stopped, match=f"the file {place}"):
        stopping.check_stop()


def set_aside(target, number=4711):
    """As a process leaves it that was killed after it had moved the old folder away and before it had the new one in place."""
    aside = target.with_name(f".{target.name}.{number}")
    own_folders.mark_own(target), target.rename(f"{aside}.old")
    aside.mkdir(), own_folders.mark_own(aside), fill(aside, {"half": b"new"})


def test_what_was_set_aside_when_a_process_was_killed_is_put_back(tmp_path):
    """Seen before: the next call removed both, and with them the best adapter."""
    fill(tmp_path, {".other.4711.old/lora.safetensors": b"mine"})
    assert not own_folders.put_back(tmp_path / "other"), "nothing of others"
    shutil.rmtree(tmp_path / ".other.4711.old")
    target = fill(tmp_path / "best", {"lora.safetensors": b"the best"})
    set_aside(target)
    with pytest.raises(OSError, match="full"), own_folders.new_folder(target):
        raise OSError("the disk is full")
    assert (target / "lora.safetensors").read_bytes() == b"the best" and os.listdir(tmp_path) == ["best"]
    set_aside(target)
    with own_folders.new_folder(target) as aside:
        fill(aside, {"lora.safetensors": b"a better one"})
    assert (target / "lora.safetensors").read_bytes() == b"a better one" and os.listdir(tmp_path) == ["best"]


@pytest.mark.parametrize("marker", [None, b"", b"made by"])
def test_a_folder_that_a_kill_left_empty_is_not_in_the_way_of_the_same_number(tmp_path, marker):
    """Seen before: in a container, where the number is always 1, "File exists" at every resume."""
    left = tmp_path / f".000003.{os.getpid()}"
    fill(tmp_path, {f"{left.name}/.otca": marker} if marker is not None else {})
    left.mkdir(exist_ok=True)
    with own_folders.new_folder(tmp_path / "000003") as aside:
        fill(aside, {"state.json": b"{}"})
    assert os.listdir(tmp_path) == ["000003"]
    mine = fill(tmp_path / "mine", {".otca": b"", "notes.txt": b"mine"})
    assert not own_folders.is_own(mine) and not own_folders.remove_own(mine)


@pytest.mark.parametrize("first", [own_folders.MARKER, "state.json"])
def test_a_removal_that_is_killed_leaves_what_the_next_one_removes(tmp_path, monkeypatch, first):
    """At each step, in whichever order the disk lists. Seen before: without its marker the rest stayed for ever, and where
    a process number comes again, as in a container, no checkpoint or best adapter could be written: "Directory not empty"."""
    real, steps = {name: getattr(os, name) for name in ("unlink", "rmdir", "scandir")}, []

    def killed_at_the_last(name):
        return lambda *place, **how: (steps.pop() if steps else sys.exit("killed")) or real[name](*place, **how)

    own, listed = (
        tmp_path / "000003",
        lambda place: sorted(real["scandir"](place), key=lambda entry: entry.name != first),
    )
    monkeypatch.setattr(os, "scandir", lambda place: contextlib.nullcontext(listed(place)))
    for number in range(9):
        fill(own, {"state.json": b"{}", "below/a": b"", "b": b""})
        own_folders.mark_own(own)
        with monkeypatch.context() as patch, contextlib.suppress(SystemExit):
            patch.setattr(os, "unlink", killed_at_the_last("unlink"))
            patch.setattr(os, "rmdir", killed_at_the_last("rmdir"))
            steps[:] = [None] * number
            own_folders.remove_own(own)
        assert own.exists() == (number < 6)
        assert not own.exists() or own_folders.remove_own(own), number


def test_what_killed_processes_left_half_written_goes_and_nothing_else(tmp_path):
    """Seen before: psutil has a process begin up to a second too early, so that the next of its number took it for its own."""
    number, began = os.getpid(), own_folders.BEGAN
    ours = [f".lora.safetensors.{number}.3", ".status.json.999999999.0", f"samples/.000001.png.{number}.0"]
    kept = [".notes", ".lora.safetensors", f".metrics.jsonl.{number}.7", ".mine.1.2", f".best.{number}/mine.txt"]
    fill(tmp_path, dict.fromkeys([*ours, *kept, f".best-2.{number}.old/.otca"], b"half"))
    fill(tmp_path, {f".best-3.{number}/.otca": own_folders.MADE, f".best-3.{number}/lora.safetensors": b"half"})
    for path in tmp_path.rglob("*"):
        os.utime(
            path, (began - 0.5, began - 0.5) if path.name != kept[2] else (began + 9, began + 9)
        )  # that one is being written
    own_folders.clear(tmp_path, tmp_path / "samples", tmp_path / "missing")
    assert content(tmp_path).keys() == {*kept, f".best-2.{number}.old/.otca"}


def test_a_resumed_run_has_its_best_back(writes_to, finished_run, tmp_path, monkeypatch):
    folder = shutil.copytree(finished_run, tmp_path / "run")
    fill(folder / "best", {"lora.safetensors": b"the best"})
    set_aside(folder / "best")
    writes_to(folder)
    seen = []
    monkeypatch.setattr(run, "Run", lambda held, *_: seen.append(content(held.folder / "best")) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["train", str(folder), "--resume", "--iterations", "7"])
    assert seen[0]["lora.safetensors"] == b"the best"


# --- opening ----------------------------------------------------------------------------------------------------------


def test_only_plain_files_are_opened(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "there").write_text("x")
    os.symlink(tmp_path / "there", tmp_path / "link")
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    for name, kind in (("folder", "a folder"), ("pipe", "a pipe"), ("link", "a link"), ("loop", "a link")):
        with pytest.raises(OSError, match=f"{name} is {kind}, and not a plain file"):
            files.open_plain(tmp_path / name)
    with pytest.raises(OSError, match="a device"):
        files.open_plain(Path("/dev/zero"))


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT])
def test_the_windows_form_sees_a_link_that_comes_in_between(tmp_path, monkeypatch, flags):
    """Without O_NOFOLLOW: what was looked at has to be what was opened."""
    monkeypatch.setattr(os, "O_NOFOLLOW", 0)
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    path, opened = tmp_path / "stop", os.open
    path.write_text("ours")

    def exchange(name, *arguments):
        if name == path and not path.is_symlink():
            path.unlink()
            path.symlink_to(victim)
        return opened(name, *arguments)

    monkeypatch.setattr(os, "open", exchange)
    with pytest.raises(OSError, match="is a link"):
        files.open_plain(path, flags)
    assert victim.read_text() == "theirs"


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def test_no_thread_of_tensorboard_complains_when_its_folder_vanishes(tmp_path, capfd):
    """Seen before: a traceback of its own thread, amid the training's lines, and no figures from then on."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    figures = Trackers(tmp_path / "run", "", 0, {})
    figures.write(1, {"reward/a/mean": 0.5, "reward/b/mean": None})
    shutil.rmtree(tmp_path / "run")
    for iteration in (2, 3):
        figures.write(iteration, {"reward/a/mean": iteration / 4})
    figures.close()
    read = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in read.Scalars("reward/a/mean")] == [(2, 0.5), (3, 0.75)]
    assert "Traceback" not in capfd.readouterr().err
