"""One process trains in a folder: simultaneous starts, other containers, other machines, systems without locks, and Windows."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from comfyui_otca.host import claim
from comfyui_otca.host.claim import Claimed, holder, take
from comfyui_otca.tests.training import train
from comfyui_otca.trainer.run.folder import read_lines

PARENT = str(Path(__file__).resolve().parents[3])

# Waits for the moment, claims, says which, and keeps the claim until it is told to end.
STARTER = """
import sys, time
from pathlib import Path
from comfyui_otca.host.claim import Claimed, take
while time.time() < float(sys.argv[2]):
    pass
try:
    take(Path(sys.argv[1]), say=lambda line: print("said:", line, flush=True))
    print("trains", flush=True)
except Claimed as error:
    print("refused:", error, flush=True)
sys.stdin.read()
"""


def starter(folder, moment=0.0, before=()):
    return subprocess.Popen(
        [*before, sys.executable, "-c", STARTER, str(folder), str(moment)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PARENT,
        env={**os.environ, "PYTHONPATH": PARENT},
    )


def said(process):
    process.stdin.close()
    answer = process.stdout.read()
    process.stdout.close()
    assert process.wait(60) == 0
    return answer


@pytest.fixture
def elsewhere(tmp_path):
    """elsewhere(boot=…): a claim of this process, as another one, or another machine, would have written it."""

    def write(folder=tmp_path, **changes):
        (folder / claim.LOCK).touch()
        own = dataclasses.asdict(claim.ourselves())
        own |= {"pid": 4711, "process_started": 1.0, "since": 1_700_000_000.0, "token": "theirs"}
        (folder / claim.CLAIM).write_text(json.dumps(own | changes))
        return folder

    return write


@pytest.fixture(autouse=True)
def _let_go():
    yield
    for own in list(claim._held.values()):
        own.release()


# --- starts at one moment ---------------------------------------------------------------------------------------------


def test_ten_pairs_of_simultaneous_starts(tmp_path):
    moment = time.time() + 2.0
    pairs = [[starter(tmp_path / str(n), moment) for _ in range(2)] for n in range(10)]
    for pair in pairs:
        first, second = sorted(process.stdout.readline() for process in pair)  # before either may end
        assert first.startswith("refused: ") and "is training there. Fix: stop it" in first
        assert second == "trains\n"
        assert [said(process) for process in pair] == ["", ""]
    assert sorted(place.name for place in tmp_path.iterdir()) == sorted(map(str, range(10))), "nobody went elsewhere"


def test_another_container_is_refused_while_it_trains_and_taken_over_when_it_has_ended(tmp_path):
    before = ("unshare", "-Urpf", "--mount-proc")
    if not shutil.which("unshare") or subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("this system does not permit PID namespaces")
    inside = starter(tmp_path, before=before)
    assert inside.stdout.readline() == "trains\n"
    written = json.loads((tmp_path / claim.CLAIM).read_text())
    assert written["pid"] < 10 and written["pid_namespace"] != claim.ourselves().pid_namespace
    with pytest.raises(Claimed, match=r"is in use: process \d+ on .*, since .* Fix: stop it"):
        take(tmp_path)
    assert holder(tmp_path).pid == written["pid"]
    for child in psutil.Process(inside.pid).children():
        child.kill()
    inside.communicate()
    assert holder(tmp_path) is None
    lines = []
    take(tmp_path, say=lines.append)
    [told] = lines
    assert f"process {written['pid']} on" in told and "has ended; the folder is taken over" in told


def test_two_real_trainings_at_once(small_graph, tmp_path):
    """Exactly one trains, and the other one says who does; nothing lands in another folder."""
    few = {"iterations": 1, "evaluate_every": 100, "evaluation_prompts": "a red circle", "evaluation_seeds": 1}
    small = {"OTCA_SDESampler": {"group_size": 2, "steps": 2}, "OTCA_PromptDataset": {"prompts_per_iteration": 1}}
    graph = small_graph({**small, "OTCA_TrainingRun": few})
    (tmp_path / "given.json").write_text(json.dumps(graph))
    command = [sys.executable, "-m", "comfyui_otca", "train", "given.json", "--output", "out/run"]
    environment = {**os.environ, "PYTHONPATH": PARENT, "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    ends = sorted((process.communicate()[0], process.returncode) for process in both)
    (done, first), (refused, second) = sorted(ends, key=lambda end: end[1])
    assert first == 0 and "done after 1 iterations" in done, done
    assert second == 2 and "Traceback" not in refused and refused.count("Fix: ") == 1, refused
    assert os.listdir(tmp_path / "out") == ["run"]
    assert len(read_lines(tmp_path / "out" / "run" / "metrics.jsonl")) == 1


# --- who has ended, as far as can be seen -----------------------------------------------------------------------------


def test_a_claim_ends_with_its_process(tmp_path):
    other = starter(tmp_path)
    assert other.stdout.readline() == "trains\n"
    assert holder(tmp_path).pid == other.pid
    with pytest.raises(Claimed, match=f"process {other.pid}, since"):
        claim.check(tmp_path)
    for refused in (take, claim.check):
        with pytest.raises(Claimed, match="is in use"):
            refused(tmp_path, take_over=True)
    os.kill(other.pid, signal.SIGKILL)
    other.communicate()
    assert (tmp_path / claim.CLAIM).is_file() and holder(tmp_path) is None
    claim.check(tmp_path)
    lines = []
    with take(tmp_path, say=lines.append):
        assert holder(tmp_path).pid == os.getpid()
    assert len(lines) == 1 and f"process {other.pid}" in lines[0]
    assert not (tmp_path / claim.CLAIM).exists() and holder(tmp_path) is None


def test_an_earlier_start_of_this_machine_is_over(elsewhere):
    if not claim.ourselves().machine:
        pytest.skip("this system does not say which machine it is")
    folder, lines = elsewhere(boot="an earlier one"), []
    assert holder(folder) is None
    take(folder, say=lines.append)
    assert "has ended; the folder is taken over" in lines[0]


@pytest.mark.parametrize("other", [{"host": "other"}, {"machine": "other"}, {"machine": ""}])
def test_another_machine_is_left_alone_unless_told(elsewhere, other):
    folder = elsewhere(**{"boot": "another one", **other})
    written = (folder / claim.CLAIM).read_text()
    assert holder(folder).pid == 4711
    words = r"is claimed by process 4711 on .* Fix: stop it, or if nothing trains .*claim.json"
    for refused in (take, claim.check):
        with pytest.raises(Claimed, match=words):
            refused(folder)
    assert (folder / claim.CLAIM).read_text() == written
    lines = []
    take(folder, take_over=True, say=lines.append)
    assert "taken over, as you said" in lines[0] and holder(folder).pid == os.getpid()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": 3}', "[" * 3000, "NaN", '{"host": "a"}'])
def test_a_claim_that_cannot_be_read(tmp_path, content):
    take(tmp_path).release()
    (tmp_path / claim.CLAIM).write_text(content)
    for refused in (take, claim.check):
        with pytest.raises(Claimed, match=r"claim\.json .* Fix: if nothing trains there, .*: --take-over\)") as told:
            refused(tmp_path)
        assert "\n" not in str(told.value) and len(str(told.value)) < 500
    take(tmp_path, take_over=True)


def test_a_folder_claimed_twice_by_one_process(tmp_path):
    first = take(tmp_path / "a")
    assert take(tmp_path / "a") is first and take(tmp_path / "b") is not first
    shutil.rmtree(tmp_path / "a")  # somebody removes it, and it is begun anew
    second = take(tmp_path / "a")
    assert second is not first and second.stands() and not first.stands()
    first.release()
    assert holder(tmp_path / "a").pid == os.getpid(), "what is over releases nothing"
    second.release(), second.release()
    assert holder(tmp_path / "a") is None


@pytest.mark.parametrize("locks", [True, False])
def test_a_claim_that_was_taken_over_releases_nothing(tmp_path, elsewhere, request, locks):
    """As where this process was suspended, and the user of another machine said --take-over."""
    if not locks:
        request.getfixturevalue("without_locks")
    own = take(tmp_path)
    theirs = (elsewhere(host="elsewhere", boot="another") / claim.CLAIM).read_text()
    assert not own.stands()
    own.release()
    assert (tmp_path / claim.CLAIM).read_text() == theirs
    with pytest.raises(Claimed, match="process 4711 on elsewhere"):
        claim.check(tmp_path)


def test_a_forked_child_does_not_keep_the_folder(tmp_path):
    """Such as a worker of a reward, which may outlive the training."""
    own = take(tmp_path)
    (read, write), (heard, begun) = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        os.close(write)
        os.write(begun, b"x")
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    os.read(heard, 1)
    own._lock.release()  # as the kernel does when a process ends
    assert claim._free(tmp_path, None) is True
    os.close(write)
    os.waitpid(child, 0)


# --- systems of other kinds -------------------------------------------------------------------------------------------


@pytest.fixture
def without_locks(monkeypatch):
    """A file system that has none."""

    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)


def test_without_locks_the_file_alone_decides(elsewhere, without_locks, tmp_path):
    this = psutil.Process(os.getppid())
    folder = elsewhere(pid=this.pid, process_started=this.create_time())
    for over in (False, True):
        with pytest.raises(Claimed, match=f"is in use: process {this.pid}"):
            take(folder, take_over=over)
    lines = []
    with take(elsewhere(), say=lines.append):
        assert "process 4711" in lines[0]
    with pytest.raises(Claimed, match="cannot be seen from here"):
        take(elsewhere(pid_namespace="another container"))
    (tmp_path / claim.CLAIM).unlink()
    take(tmp_path)  # and one of several has it
    written = (tmp_path / claim.CLAIM).read_text()
    claim._held.clear()
    with pytest.raises(Claimed, match="is in use"):
        take(tmp_path)
    assert (tmp_path / claim.CLAIM).read_text() == written
    assert sorted(os.listdir(tmp_path)) == [claim.CLAIM, claim.LOCK], "nothing is left aside"


def test_a_process_that_only_looks_does_not_train(elsewhere, tmp_path):
    """Seen before: the dead process of claim.json was said to train there."""
    for given in (elsewhere, lambda: tmp_path):
        looking = FileLock(given() / claim.LOCK, thread_local=False)
        looking.acquire()
        threading.Timer(claim.LOOK_WAIT / 3, looking.release).start()
        claim.check(tmp_path)
    assert holder(tmp_path) is None


def test_a_doubt_is_told_only_where_there_is_one(elsewhere, tmp_path):
    assert claim.doubt(tmp_path) is None
    assert claim.doubt(elsewhere()) is None, "it has ended"
    told = claim.doubt(elsewhere(boot="another one", host="other"))
    assert "is claimed by process 4711 on other" in told and f"remove {tmp_path / claim.CLAIM} (headlessly" in told
    (tmp_path / claim.CLAIM).unlink()
    with take(tmp_path):
        assert claim.doubt(tmp_path) is None


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / claim.LOCK).symlink_to(victim)
    with pytest.raises(OSError, match="is a link, and not a plain file"):
        take(folder)
    assert not victim.exists()


# --- the command line -------------------------------------------------------------------------------------------------


def test_headless_training_never_goes_elsewhere(small_workflow, tmp_path, monkeypatch):
    """Seen before: with another process in status.json it went on in run-2, and ended with 0."""
    small = {"OTCA_SDESampler": {"group_size": 2, "steps": 2}, "OTCA_PromptDataset": {"prompts_per_iteration": 1}}
    few = {"checkpoint_every": 1, "evaluate_every": 100, "evaluation_prompts": "a red circle", "evaluation_seeds": 1}
    workflow = small_workflow({**small, "OTCA_TrainingRun": {**few, "iterations": 1}})
    assert train(workflow, tmp_path / "run") == 0
    other = psutil.Process(1)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    status |= {"status": "running", "pid": 1, "process_started": other.create_time()}
    (tmp_path / "run" / "status.json").write_text(json.dumps(status))
    workflow = small_workflow({**small, "OTCA_TrainingRun": {**few, "iterations": 2}})
    assert train(workflow, tmp_path / "run", resume=True) == 0
    assert os.listdir(tmp_path) == ["run"]
