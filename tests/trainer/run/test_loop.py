"""Small trainings: what a run's folder holds, stopping it in every way, resuming to the bit, and rewards that fail."""

from __future__ import annotations

import functools
import json
import math
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from comfyui_otca.__main__ import main
from comfyui_otca.host import claim, own_folders, stopping
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.processes import apart, together
from comfyui_otca.tests.training import assert_same_tensors, reward_node, rows, train, untimed, whole_and_resumed
from comfyui_otca.trainer import gradient, grpo, rollout
from comfyui_otca.trainer.policy.files import read_metadata, read_tensors, write_tensors
from comfyui_otca.trainer.rewards.base import Reward
from comfyui_otca.trainer.run import checkpoint, held, record
from comfyui_otca.trainer.run import folder as run_folder
from comfyui_otca.trainer.run.folder import read_lines
from comfyui_otca.trainer.workflow.running import NodeError, Workflow

ITERATIONS = 6


def assert_same_beginning(folder, reference):
    """A shorter run's lines are the first of the longer one's."""
    assert 0 < len(rows(folder)) < ITERATIONS
    assert untimed(folder) == untimed(reference)[: len(rows(folder))]


def assert_same_run(folder, reference):
    assert untimed(folder) == untimed(reference)
    assert untimed(folder, "evaluation.jsonl") == untimed(reference, "evaluation.jsonl")
    assert_same_tensors(folder / "lora.safetensors", reference / "lora.safetensors")


@pytest.fixture
def workflow_file(small_graph, tmp_path):
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(small_graph()))
    return path


def at(iteration, act):
    """A `say` that does so when that iteration is told."""
    return lambda line: act() if line.startswith(f"iteration {iteration}/") else None


class Killed(BaseException):
    pass


def kill():
    raise Killed


# --- the folder -----------------------------------------------------------------------------------------------------


def test_a_runs_folder(finished_run, small_graph):
    for name in ("metrics.jsonl", "evaluation.jsonl", "workflow.json", "lora.safetensors", "otca_lora.safetensors"):
        assert (finished_run / name).is_file(), name
    status = json.loads((finished_run / "status.json").read_text())
    assert (status["status"], status["place"], status["total"], status["error"]) == ("finished", "headless", 6, None)
    graph = small_graph()
    assert json.loads((finished_run / "workflow.json").read_text()) == graph
    metadata = read_metadata(finished_run / "lora.safetensors")
    assert json.loads(metadata["prompt"]) == graph and metadata["otca_iteration"] == str(ITERATIONS)
    assert [place.name for place in checkpoint.complete(finished_run / "checkpoints")] == ["000004", "000006"]
    assert list((finished_run / "tensorboard").glob("events.*"))
    left = {path.name for path in finished_run.rglob(".*")} - {own_folders.MARKER}
    assert not left, "nothing half-written stays behind"
    assert not (finished_run / "claim.json").exists() and claim.holder(finished_run) is None
    assert not (finished_run / "stop").exists()
    for name in ("rewards.png", "credit.png", "samples.png", "samples/000000.png", "samples/000006.png"):
        with Image.open(finished_run / name) as picture:
            width, height = picture.size
            colors = picture.convert("RGB").getcolors(maxcolors=width * height)
        assert 80 <= width <= 8000 and 40 <= height <= 8000, (name, width, height)
        assert len(colors) > 10, f"{name} is blank"


def test_metrics_of_a_run(finished_run):
    lines = rows(finished_run)
    assert [line["iteration"] for line in lines] == list(range(1, ITERATIONS + 1))
    evaluated = rows(finished_run, "evaluation.jsonl")[0]["rewards"]
    assert len(evaluated) == 4 and evaluated["accuracy"]["held_out"]
    prefixes = {name: "held_out" if figures["held_out"] else "reward" for name, figures in evaluated.items()}
    keys = {f"{prefix}/{name}/{figure}" for name, prefix in prefixes.items() for figure in ("mean", "std")}
    keys |= {"z/zero_fraction", "z/group_mean", "moca/tanh_e", "moca/lambda", "clip/high", "clip/low", "ratio/drift"}
    keys |= {"kl/approx", "gradient_norm", "loss", "ratio/mean", "samples_per_second"}
    keys |= {f"seconds/{phase}" for phase in ("rollout", "reward", "credit", "update", "iteration")}
    for line in lines:
        assert keys <= line.keys(), keys - line.keys()
        assert all(math.isfinite(value) for value in line.values())
        phases = sum(line[f"seconds/{phase}"] for phase in ("rollout", "reward", "credit", "update"))
        assert line["seconds/iteration"] == pytest.approx(phases)
        assert line["samples_per_second"] == pytest.approx(6 / phases)
        each = [line[f"seconds/reward/{name}"] for name in evaluated]
        assert min(each) > 0 and line["seconds/reward"] == pytest.approx(sum(each))
        assert line["policy/staleness"] == 0 and line["ratio/mean"] == 1
        measured = line["iteration"] == 1  # the first, and each tenth
        assert (line.get("kl/reference", 0) > 0) == measured, "the reference is the model before training"
        # 2 prompts x 3 samples, 4 steps: one forward a group at the first step, 3 x 6 at the others, and 2 x 2 to tell the
        # distance to the reference. Graphs were kept of the three trained steps. Evaluations do not count.
        assert (line["forwards/all"], line["forwards/with_gradient"]) == (2 + 3 * 6 + 4 * measured, 2 + 2 * 6)
    assert len({line["loss"] for line in lines}) == ITERATIONS, "every iteration samples anew"


def test_evaluations_of_a_run(finished_run):
    evaluations = rows(finished_run, "evaluation.jsonl")
    assert [row["iteration"] for row in evaluations] == [0, 6]
    for row in evaluations:
        for figures in row["rewards"].values():
            values = torch.tensor(figures["values"])
            assert len(values) == 4  # two prompts, two seeds
            assert figures["mean"] == pytest.approx(values.mean().item(), abs=1e-5)
            # Clustered by prompt: 2 / (2 - 1) · Σ (sum of a prompt's two deviations)² / 4².
            of_prompts = (values - values.mean()).reshape(2, 2).sum(0)
            assert figures["standard_error"] == pytest.approx(
                (2 * of_prompts.square().sum()).sqrt().item() / 4, abs=1e-5
            )
    assert [name for name, figures in evaluations[0]["rewards"].items() if figures["held_out"]] == ["accuracy"]


# --- stopping and resuming ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(small_graph, tmp_path_factory):
    """Two real trainings, side by side: each gets its signal when it has written so many lines."""
    place = tmp_path_factory.mktemp("stopped")
    (place / "workflow.json").write_text(json.dumps(small_graph()))
    waiting = {"killed": (signal.SIGKILL, 3), "terminated": (signal.SIGTERM, 1)}
    processes = {}
    for name in waiting:
        command = ["train", str(place / "workflow.json"), "--output", str(place / name)]
        processes[name] = apart(functools.partial(main, command), place / f"{name}.log")
    try:
        deadline = time.monotonic() + 300
        while waiting and time.monotonic() < deadline:
            for name, (number, lines) in list(waiting.items()):
                path = place / name / "metrics.jsonl"
                if path.is_file() and path.read_bytes().count(b"\n") >= lines:
                    os.kill(processes[name].pid, number)
                    del waiting[name]
                elif processes[name].exitcode is not None:
                    del waiting[name]
            time.sleep(0.002)
        for process in processes.values():
            process.join(60)
    finally:
        for process in processes.values():
            process.kill()
    return place, {name: ((place / f"{name}.log").read_text(), process.exitcode) for name, process in processes.items()}


def test_resumed_after_sigkill(stopped, finished_run, otca):
    place, ended = stopped
    folder, (output, code) = place / "killed", ended["killed"]
    assert code == -signal.SIGKILL, output
    assert 3 <= len(read_lines(folder / "metrics.jsonl")) <= ITERATIONS
    code, printed, _ = otca("train", place / "workflow.json", "--output", folder, "--resume")
    assert code == 0 and "resuming" in printed
    assert_same_run(folder, finished_run)


def test_sigterm_to_a_real_process(stopped, finished_run, otca):
    place, ended = stopped
    folder, (output, code) = place / "terminated", ended["terminated"]
    assert code == 143, output
    assert "--resume continues" in output
    done = rows(folder)[-1]["iteration"]
    assert 1 <= done < ITERATIONS
    assert json.loads((checkpoint.complete(folder / "checkpoints")[-1] / "state.json").read_text())["iteration"] == done
    assert_same_beginning(folder, finished_run)


@pytest.mark.parametrize("cut", [1, 3])
def test_resumed_after_a_kill_at_any_iteration(finished_run, small_workflow, tmp_path, otca, cut):
    """As a kill leaves it: lines beyond the last checkpoint, the last of them cut short, an unfinished checkpoint."""
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        train(small_workflow(), folder, say=at(cut, kill))
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"iteration": 9, "reward/cl')
    (folder / "checkpoints" / ".000099.1").mkdir(parents=True)
    code, printed, _ = otca("train", folder, "--resume", "--iterations", cut + 1)
    assert code == 0
    assert ("no checkpoint yet" if cut == 1 else f"after iteration {cut - 1}") in printed
    assert len(rows(folder)) == cut + 1
    assert_same_beginning(folder, finished_run)


@pytest.mark.parametrize("place", ["adapter.safetensors", "rng.safetensors", "a rename"])
def test_killed_while_the_first_checkpoint_is_written(finished_run, workflow_file, tmp_path, otca, monkeypatch, place):
    """Seen before: "has 2 iterations on record, but its checkpoints are gone", at every attempt to resume."""
    folder, write = tmp_path / "run", checkpoint.write_tensors

    def killed():
        os.kill(os.getpid(), signal.SIGKILL)

    def first():
        monkeypatch.setattr(
            checkpoint, "write_tensors", lambda file, tensors: killed() if file.name == place else write(file, tensors)
        )
        if place == "a rename":
            monkeypatch.setattr(own_folders, "put_in_place", lambda aside, target: killed())
        return main(["train", str(workflow_file), "--output", str(folder)])

    process = apart(first, tmp_path / "log")
    process.join(300)
    assert process.exitcode == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert len(rows(folder)) == 2 and not checkpoint.complete(folder / "checkpoints")
    code, printed, errors = otca("train", folder, "--resume")
    assert code == 0, errors
    assert "no checkpoint yet: starting from the beginning, and the 2 iterations on record are made again" in printed
    assert_same_run(folder, finished_run)
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"000004", "000006"}, (
        "and nothing half-written"
    )


def test_checkpoints_that_somebody_removed_are_not_begun_again(finished_run, otca, copied):
    shutil.rmtree(copied / "checkpoints")
    for more in ((), ("--set", "TrainingRun.checkpoint_every=100")):
        code, _, errors = otca("train", copied, "--resume", *more)
        assert code == 2 and "6 iterations on record, but its checkpoints are gone. Fix: " in errors
    assert untimed(copied) == untimed(finished_run)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_amid_the_update(finished_run, workflow_file, tmp_path, otca, monkeypatch, number, code):
    objective, calls = grpo.LOSSES["clipped"], []

    def raising(*arguments):
        calls.append(1)
        if len(calls) == 8:  # three trained steps an iteration: in the third one
            signal.raise_signal(number)
        return objective(*arguments)

    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setitem(grpo.LOSSES, "clipped", raising)
    folder = tmp_path / "run"
    got, printed, _ = otca("train", workflow_file, "--output", folder)
    monkeypatch.undo()
    assert got == code and "after iteration 2; --resume continues" in printed
    assert {n: signal.getsignal(n) for n in before} == before
    assert len(rows(folder)) == 2
    assert json.loads((folder / "checkpoints/000002/state.json").read_text())["iteration"] == 2
    assert (folder / "lora.safetensors").is_file()
    assert otca("train", folder, "--resume", "--iterations", 4)[0] == 0
    assert len(rows(folder)) == 4
    assert_same_beginning(folder, finished_run)


def test_stopped_before_the_first_update(finished_run, workflow_file, tmp_path, otca, monkeypatch):
    check, calls = stopping.check_stop, iter([lambda: None, lambda: signal.raise_signal(signal.SIGINT)])
    monkeypatch.setattr(stopping, "check_stop", lambda: (next(calls, lambda: None)(), check()))
    folder = tmp_path / "run"
    got, printed, _ = otca("train", workflow_file, "--output", folder)
    monkeypatch.undo()
    assert got == 130 and "after iteration 0; --resume continues" in printed
    code, _, errors = otca("train", folder, "--resume", "--iterations", 1)
    assert code == 0, errors
    assert_same_beginning(folder, finished_run)


def test_a_stop_amid_the_first_update_leaves_no_wish(small_graph, tmp_path, otca, monkeypatch):
    """The rollout that is made again keeps what it kept, which is no graph: 4 steps of 6 samples, 12 calls of the update."""
    file, folder = tmp_path / "gradient.json", tmp_path / "run"
    file.write_text(
        json.dumps(small_graph({"OTCA_RewardGradientStep": {"kl_coefficient": 0.0}}, "reward_gradient.json"))
    )
    with monkeypatch.context() as patch:
        patch.setattr(
            gradient, "score_with_gradient", lambda *_: signal.raise_signal(signal.SIGINT) or stopping.check_stop()
        )
        assert otca("train", file, "--output", folder)[0] == 130
    assert otca("train", folder, "--resume", "--iterations", 1)[0] == 0
    assert rows(folder)[0]["forwards/all"] == 24 + 12 + 4


def test_a_stop_lets_a_reward_finish_its_evaluation(small_graph, tmp_path):
    """A resumed run would not make up for the evaluation."""
    calls = []

    def score(images):
        calls.append(len(images))
        if len(calls) == 2:  # the evaluation before training: two prompts, two seeds
            stopping.request.signal = signal.SIGINT
        stopping.check_stop()
        return images.mean((1, 2, 3))

    assert train(with_faulty(small_graph, score), tmp_path / "run") == 130
    assert calls == [6, 4], "the next iteration does not begin"
    assert [row["iteration"] for row in rows(tmp_path / "run", "evaluation.jsonl")] == [0]


def test_a_stop_amid_the_scoring(small_graph, tmp_path):
    def score(images):
        stopping.request.signal = signal.SIGINT
        stopping.check_stop()

    assert train(with_faulty(small_graph, score), tmp_path / "run") == 130
    assert rows(tmp_path / "run") == []


def test_a_stop_file(small_workflow, tmp_path):
    folder, seen = tmp_path / "run", []

    def say(line):
        status = json.loads((folder / "status.json").read_text())
        seen.append((status["status"], status["pid"]))
        at(1, (folder / "stop").touch)(line)

    assert train(small_workflow(), folder, say=say) == 0
    assert len(rows(folder)) == 1 and not (folder / "stop").exists()
    assert checkpoint.complete(folder / "checkpoints")
    assert set(seen) == {("running", os.getpid())}, "and still so while it saves: who reads that it stopped may go on"
    assert json.loads((folder / "status.json").read_text())["status"] == "stopped"


def test_a_finished_run_stays_as_it_is_until_it_is_to_train_longer(finished_run, copied, otca):
    """Then its own files are written over, though its folder was renamed: Save LoRA's, at the end, and all that was left."""
    copied = copied.rename(copied.parent / "another name")
    assert otca("train", copied, "--resume")[0] == 0
    assert (copied / "metrics.jsonl").read_text() == (finished_run / "metrics.jsonl").read_text()
    before, lines = (copied / "otca_lora.safetensors").read_bytes(), (copied / "metrics.jsonl").stat().st_ino
    code, printed, _ = otca("train", copied, "--resume", "--iterations", 7)
    assert code == 0 and "iterations: 6 -> 7" in printed
    assert (copied / "metrics.jsonl").stat().st_ino == lines, "what may be gigabytes is not written anew"
    assert len(rows(copied)) == 7 and untimed(copied)[:6] == untimed(finished_run)
    assert (copied / "otca_lora.safetensors").read_bytes() != before
    assert read_metadata(copied / "otca_lora.safetensors")["otca_run"] == "another name"


@pytest.mark.parametrize("others", [{"processes": 4, "torch": "2.7.1", "python": "3.9"}, {"torch": "2.7.1"}, {}])
def test_another_torch_python_or_number_of_processes_goes_on_and_says_so(otca, caplog, copied, others):
    place = copied / "checkpoints" / "000006" / "state.json"
    state = json.loads(place.read_text())
    written = {"processes": state["processes"], **state["environment"]}
    place.write_text(
        json.dumps(state | {"processes": (written | others)["processes"], "environment": written | others})
    )
    assert otca("train", copied, "--resume", "--iterations", 7)[0] == 0
    changes = ", ".join(f"{name} {value} → {written[name]}" for name, value in others.items())
    warned = [line for line in caplog.messages if "last digits" in line]
    assert len(warned) == bool(others) and all(f"iteration 6 ({changes})" in line for line in warned)
    lines = [change for row in rows(copied, "changes.jsonl") for change in row["changes"]]
    assert {change["input"]: change["before"] for change in lines} == others


@pytest.mark.parametrize("missing", ["lora.safetensors", "otca_lora.safetensors"])
def test_what_comes_after_the_last_iteration_is_made_up_for(finished_run, otca, monkeypatch, missing, copied):
    """As a full disk leaves it: the last checkpoint is there, and an adapter is an older one's or none's. Nothing is sampled."""
    write_tensors(copied / missing, {"old": torch.zeros(1)}, {"otca_iteration": "4"})
    if missing != "lora.safetensors":
        (copied / missing).unlink()
    monkeypatch.setattr(rollout, "sample", None)
    code, printed, errors = otca("train", copied, "--resume")
    assert code == 0 and "done after 6 iterations" in printed, errors
    assert_same_tensors(copied / missing, finished_run / missing)
    assert read_metadata(copied / missing) == read_metadata(finished_run / missing)
    assert (copied / "metrics.jsonl").read_text() == (finished_run / "metrics.jsonl").read_text()


def test_several_processes_make_up_for_it_too(small_workflow, tmp_path):
    folder, workflow = tmp_path / "run", small_workflow({"OTCA_TrainingRun": {"iterations": 1, "evaluation_seeds": 1}})
    assert together(2, train, workflow, folder) == [0, 0]
    names = ("lora.safetensors", "otca_lora.safetensors")
    for name in names:
        (folder / name).rename(tmp_path / name)
    assert together(2, train, workflow, folder, True) == [0, 0]
    assert len(rows(folder)) == 1
    for name in names:
        assert_same_tensors(folder / name, tmp_path / name)


def test_another_seed_is_another_run(finished_run, workflow_file, tmp_path, otca):
    assert otca("train", workflow_file, "--output", tmp_path / "run", "--seed", 5, "--iterations", 1)[0] == 0
    assert len(rows(tmp_path / "run")) == 1
    assert untimed(tmp_path / "run")[0] != untimed(finished_run)[0]


# --- folders that cannot be used ------------------------------------------------------------------------------------


def test_an_existing_run_is_not_overwritten(finished_run, workflow_file, otca, copied):
    code, _, errors = otca("train", workflow_file, "--output", copied)
    assert code == 2 and str(copied) in errors and "already holds a run" in errors and "Fix: add --resume" in errors
    assert untimed(copied) == untimed(finished_run)


def test_nothing_to_resume_and_a_file_in_the_folders_place(workflow_file, tmp_path, otca):
    empty, taken = tmp_path / "empty", tmp_path / "taken"
    empty.mkdir()
    code, _, errors = otca("train", workflow_file, "--output", empty, "--resume")
    assert code == 2 and str(empty) in errors and "no run to resume" in errors and "Fix: " in errors
    assert not list(empty.iterdir())
    taken.write_text("mine")
    for place in (taken, taken / "deeper" / "still"):
        code, _, errors = otca("train", workflow_file, "--output", place)
        assert code == 2 and str(taken) in errors and "cannot be written" in errors and "Fix: " in errors
    assert taken.read_text() == "mine"


@pytest.mark.parametrize("name", ["a", "a/deep"])
def test_an_output_in_a_loop_of_links(workflow_file, tmp_path, otca, name):
    """Seen before: a traceback."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    code, _, errors = otca("train", workflow_file, "--output", tmp_path / name)
    assert code == 2 and f"{tmp_path / name} cannot be written" in errors and "Fix: choose another --output" in errors


def test_a_damaged_checkpoint_is_named_and_the_one_before_goes_on(finished_run, otca, caplog, copied):
    file = copied / "checkpoints" / "000006" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-50])
    code, printed, _ = otca("train", copied, "--resume")
    assert code == 0 and "after iteration 4" in printed
    assert any(f"{file} is damaged" in r.getMessage() for r in caplog.records)
    assert_same_run(copied, finished_run)


def test_another_s_workflow_in_a_run_s_folder_is_not_gone_on_with(finished_run, otca, copied, workflow_file):
    """Seen before: it went on, as if all that is wired had been added since."""
    file = copied / "workflow.json"
    file.write_text('{"3": {"class_type": "KSampler", "inputs": {}}}')
    code, _, errors = otca("train", workflow_file, "--output", copied, "--resume", "--iterations", 7)
    assert code == 2 and f"{file} has no Training Run: it is another run's. Fix: put the file back, or" in errors
    assert (copied / "metrics.jsonl").read_text() == (finished_run / "metrics.jsonl").read_text()


def test_with_no_whole_checkpoint_nothing_is_forgotten(finished_run, otca, copied):
    for place in (copied / "checkpoints").iterdir():
        (place / "state.json").unlink()
    code, _, errors = otca("train", copied, "--resume", "--iterations", 7)
    assert code == 2 and "000006/state.json is missing" in errors and "Fix: put the files back" in errors
    assert (copied / "metrics.jsonl").read_text() == (finished_run / "metrics.jsonl").read_text()


@pytest.mark.parametrize("lines", [None, 3])
def test_metrics_that_end_before_the_checkpoint(otca, lines, caplog, copied):
    """What is lost is a gap in the curves, and lines keep their places: the next one is of iteration 7."""
    file = copied / "metrics.jsonl"
    kept = file.read_text().splitlines(keepends=True)[:lines]
    file.unlink()
    if lines:
        file.write_text("".join(kept))
    code, _, errors = otca("train", copied, "--resume", "--iterations", 7)
    assert code == 0 and f"{file} has lost {6 - (lines or 0)} of the 6 iterations" in caplog.text
    rows = read_lines(file)
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert [len(row) for row in rows[lines or 0 : 6]] == [1] * (6 - (lines or 0)) and len(rows[6]) > 10


def test_lines_that_somebody_removed_are_written_anew(finished_run, small_workflow, tmp_path, caplog):
    folder = tmp_path / "run"
    lost = [folder / name for name in ("metrics.jsonl", "evaluation.jsonl")]
    assert train(small_workflow(), folder, say=at(3, lambda: [file.unlink() for file in lost])) == 0
    assert_same_run(folder, finished_run)
    gone = [r.getMessage() for r in caplog.records if "is gone, and is written again" in r.getMessage()]
    assert len(gone) == 2


def test_a_folder_that_somebody_removed(small_workflow, tmp_path):
    folder = tmp_path / "run"

    def remove():
        while folder.exists():
            shutil.rmtree(folder, ignore_errors=True)  # TensorBoard's thread may be writing into it

    with pytest.raises(NodeError, match=rf"{folder}.*could not be written \(No such file or directory\).*Fix: "):
        train(small_workflow(), folder, say=at(1, remove))
    assert not folder.exists()


def limited(folder, size, iterations):
    """The run goes on in a process whose files must not grow beyond `size`, as on a disk that is full."""

    def run():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return main(["train", str(folder), "--resume", "--iterations", str(iterations)])

    process = apart(run, folder.parent / "log")
    process.join(300)
    return process.exitcode, (folder.parent / "log").read_text()


def test_a_disk_that_is_full_at_the_first_checkpoint(finished_run, workflow_file, tmp_path, otca, monkeypatch):
    """Seen before: the last checkpoint stays, it said, and there was none; and the run could not be resumed."""
    folder = tmp_path / "run"

    def full(file, tensors):
        raise OSError(28, "No space left on device", str(file))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", full)
        code, _, errors = otca("train", workflow_file, "--output", folder)
    assert code == 1 and "No space left" in errors
    assert "no checkpoint was complete yet, so the run begins again. Fix: free space there" in errors
    code, printed, _ = otca("train", folder, "--resume")
    assert code == 0 and "are made again" in printed
    assert_same_run(folder, finished_run)


@pytest.mark.parametrize("full_at", ["metrics.jsonl", "a checkpoint"])
def test_a_disk_that_fills_up(finished_run, otca, full_at, copied):
    file, before = copied / "metrics.jsonl", (copied / "metrics.jsonl").read_text()
    # Half a line more, or all lines but no adapter.
    size = len(before) + 500 if full_at == "metrics.jsonl" else len(before) + 20_000
    assert size < (copied / "lora.safetensors").stat().st_size
    code, printed = limited(copied, size, 8)
    assert code == 1, printed
    assert f"{copied}" in printed and "could not be written" in printed and "File too large" in printed
    assert "the last checkpoint stays" in printed
    assert "Fix: free space there" in printed and "Traceback" not in printed
    assert file.read_text().startswith(before) and file.read_text().endswith("\n")
    assert len(rows(copied)) == (6 if full_at == "metrics.jsonl" else 8)
    assert [place.name for place in (copied / "checkpoints").iterdir() if place.name[0] == "."] == []
    assert [place.name for place in checkpoint.complete(copied / "checkpoints")] == ["000004", "000006"]
    assert json.loads((copied / "status.json").read_text())["status"] == "failed"

    code, printed, _ = otca("train", copied, "--resume", "--iterations", 8)
    assert code == 0 and "after iteration 6" in printed
    assert len(rows(copied)) == 8 and untimed(copied)[:6] == untimed(finished_run)


def test_a_line_is_whole_or_not_there(small_workflow, tmp_path, monkeypatch):
    """A disk that takes half of it: what the file held before stays, and the run can go on in the same process."""

    class Half:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, content):
            self.file.write(content[: len(content) // 2])
            raise OSError(28, "No space left on device")

    run = record.Run(held.read(tmp_path, None, True), record.RunSettings(1, 1), {})
    run.begin()
    run.append_line("metrics.jsonl", {"iteration": 1, "loss": 0.5})
    monkeypatch.setattr(
        run_folder, "open", lambda *arguments, **options: Half(open(*arguments, **options)), raising=False
    )
    with pytest.raises(record.RunError, match="No space left on device"):
        run.append_line("metrics.jsonl", {"iteration": 2, "loss": 0.25})
    monkeypatch.undo()
    assert run.iteration == 1
    run.append_line("metrics.jsonl", {"iteration": 2, "loss": 0.25})
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"iteration": 1, "loss": 0.5}\n{"iteration": 2, "loss": 0.25}\n'
    )


# --- rewards that fail ----------------------------------------------------------------------------------------------


def with_faulty(small_graph, score):
    """Two iterations with one more reward, which scores by `score(images)`."""

    class Faulty(Reward):
        def score(self, images, prompts):
            return score(images)

    graph = small_graph({"OTCA_TrainingRun": {"iterations": 2}})
    graph["70"] = {"class_type": "OTCA_RewardFaulty", "inputs": {}}
    stack = next(entry for entry in graph.values() if entry["class_type"] == "OTCA_RewardStack")
    stack["inputs"]["reward_8"] = ["70", 0]
    return Workflow(graph, {**NODE_CLASS_MAPPINGS, "OTCA_RewardFaulty": reward_node(lambda: Faulty("faulty"))})


@pytest.mark.painted
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_sample_without_a_score_is_left_out(small_graph, tmp_path, caplog, value):
    def score(images):
        scores = images.mean((1, 2, 3))
        scores[1] = value
        return scores

    assert train(with_faulty(small_graph, score), tmp_path / "run") == 0
    lines = rows(tmp_path / "run")
    assert len(lines) == 2
    for line in lines:
        assert line["groups/masked_samples"] == 1 and line["policy/skipped_updates"] == 0
        assert line["gradient_norm"] > 0 and all(math.isfinite(figure) for figure in line.values())
    assert any("'faulty'" in r.getMessage() and "sample 1" in r.getMessage() for r in caplog.records)


@pytest.mark.painted
def test_a_reward_that_never_scores_trains_nothing_and_goes_on(small_graph, tmp_path):
    workflow = with_faulty(small_graph, lambda images: torch.full((len(images),), math.nan))
    assert train(workflow, tmp_path / "run") == 0
    figures = [(line["groups/masked_samples"], line["policy/skipped_updates"]) for line in rows(tmp_path / "run")]
    assert figures == [(6, 1), (6, 1)]
    adapter = load_file(tmp_path / "run" / "lora.safetensors")
    assert not any(tensor.any() for key, tensor in adapter.items() if "lora_B" in key)


def test_a_reward_that_raises_is_named(small_graph, tmp_path):
    workflow = with_faulty(small_graph, lambda images: 1 / 0)
    stack = workflow.find("RewardStack")[0]
    with pytest.raises(NodeError, match="reward 'faulty' failed: ZeroDivisionError: division by zero") as caught:
        train(workflow, tmp_path / "run")
    assert f'node {stack} "{workflow.title(stack)}"' in str(caught.value)


def test_baseline_workflow_trains_in_its_default_folder_below_runs(small_workflow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workflow = small_workflow({"OTCA_TrainingRun": {"iterations": 1, "run_name": "named"}}, source="uniform.json")
    assert train(workflow) == 0
    line = rows(Path("runs") / "named")[0]
    assert line["gradient_norm"] > 0
    assert [value for key, value in line.items() if key.startswith("credit/step/")] == [1.0] * 3


def test_a_moving_window_goes_on_where_it_was(small_workflow, tmp_path, otca):
    """Places 0, 1, 0 of a window of two, and after it half of the steps: 3, 4, 3 in all. The second run is stopped amid that."""
    changes = {
        "OTCA_SDESampler": {"ode_solver": "adams_bashforth", "fraction_after_window": 0.5},
        "OTCA_MixGRPOWindow": {"steps": 4, "length": 2, "every": 1},
        "OTCA_TrainingRun": {"iterations": 3, "checkpoint_every": 1, "evaluate_every": 3, "evaluation_seeds": 1},
    }

    folders = [tmp_path / "whole", tmp_path / "resumed"]
    assert train(small_workflow(changes, source="mix_grpo.json"), folders[0]) == 0
    with pytest.raises(Killed):
        train(small_workflow(changes, source="mix_grpo.json"), folders[1], say=at(2, kill))
    assert otca("train", folders[1], "--resume")[0] == 0
    assert_same_run(folders[1], folders[0])
    prefix = "credit/step/"
    trained = [[int(k.removeprefix(prefix)) for k in row if k.startswith(prefix)] for row in rows(folders[0])]
    assert trained == [[0, 1], [1, 2], [0, 1]]


@pytest.mark.painted
def test_six_rewards_train_two_of_them_held_out(small_workflow, real_model, tmp_path):
    workflow = small_workflow({"OTCA_TrainingRun": {"iterations": 2}}, source="six_rewards.json")
    assert train(workflow, tmp_path / "run") == 0
    for line in rows(tmp_path / "run"):
        named = {kind: {k.split("/")[1] for k in line if k.startswith(f"{kind}/")} for kind in ("reward", "held_out")}
        assert named["reward"] == {"clip_t", "colorfulness", "sharpness", "compressibility"}
        assert named["held_out"] == {"accuracy", "clip_t_capped"}
        assert line["gradient_norm"] > 0 and line["reward/compressibility/mean"] < 0
    for row in rows(tmp_path / "run", "evaluation.jsonl"):
        scores = row["rewards"]
        capped = [min(value, 0.9) for value in scores["clip_t"]["values"]]
        assert scores["clip_t_capped"]["values"] == pytest.approx(capped, abs=1e-6)


# --- status.json ----------------------------------------------------------------------------------------------------


def test_a_failed_run_says_why(small_workflow, tmp_path):
    workflow = small_workflow(classes={"OTCA_RewardColorfulness": reward_node(lambda: 1 / 0)})
    with pytest.raises(NodeError):
        train(workflow, tmp_path / "run")
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["status"] == "failed" and "division by zero" in status["error"]
    assert status["node"] == workflow.find("RewardColorfulness")[0]


def test_without_evaluation_prompts_the_first_ones_stay(small_workflow, tmp_path):
    """Else the points of one curve would be about different prompts."""
    changes = {"evaluation_prompts": "", "evaluate_every": 2, "iterations": 2, "evaluation_seeds": 1}
    assert train(small_workflow({"OTCA_TrainingRun": changes}), tmp_path / "run") == 0
    first, second = (row["prompts"] for row in rows(tmp_path / "run", "evaluation.jsonl"))
    assert first == second and len(first) == 2


def test_a_run_that_never_evaluates_trains_resumes_and_draws(small_workflow, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(rollout, "generate", None)
    changes = {"iterations": 2, "evaluate_every": 0, "checkpoint_every": 1}
    folder = tmp_path / "run"
    assert train(small_workflow({"OTCA_TrainingRun": changes}), folder) == 0
    longer = {"OTCA_TrainingRun": {**changes, "iterations": 3}}
    assert train(small_workflow(longer), folder, resume=True) == 0
    assert [row["iteration"] for row in rows(folder)] == [1, 2, 3]
    assert not rows(folder, "evaluation.jsonl") and "lost the evaluation" not in caplog.text
    assert (folder / "rewards.png").is_file() and (folder / "lora.safetensors").is_file()


def test_evaluations_may_take_more_steps_than_training(small_workflow, tmp_path, monkeypatch):
    steps, generate = [], rollout.generate
    monkeypatch.setattr(rollout, "generate", lambda m, t, s, *rest: steps.append(s.steps) or generate(m, t, s, *rest))
    for chosen in (0, 7):
        changes = {"iterations": 1, "evaluate_every": 1, "evaluation_seeds": 1, "evaluation_steps": chosen}
        assert train(small_workflow({"OTCA_TrainingRun": changes}), tmp_path / str(chosen)) == 0
    assert steps == [4, 4, 7, 7], "before training and after it, with the sampler's own and with those asked for"


def test_evaluations_may_be_larger_and_guided_otherwise_than_training(small_workflow, tmp_path, monkeypatch):
    shown, generate = [], rollout.generate
    monkeypatch.setattr(rollout, "generate", lambda m, t, s, *rest: shown.append(s) or generate(m, t, s, *rest))
    apart = {"evaluation_width": 48, "evaluation_height": 56, "evaluation_guidance": 2.0, "evaluation_steps": 3}
    changes = {"iterations": 1, "evaluate_every": 1, "evaluation_seeds": 1, **apart}
    assert train(small_workflow({"OTCA_TrainingRun": changes}), tmp_path) == 0
    assert {(s.width, s.height, s.guidance, s.steps, s.frames, s.shift) for s in shown} == {(48, 56, 2.0, 3, 1, 0.0)}
    pictures = read_tensors(tmp_path / "samples" / "before.safetensors")["images"]
    assert pictures.shape[1:] == (56, 48, 3), "and training goes on at its own size"
    own = {"width": 48, "height": 56, "guidance": 2.0}
    assert [row["own"] for row in rows(tmp_path, "evaluation.jsonl")] == [own, own], "what a verdict compares by"


def test_an_old_stop_is_forgotten_and_a_new_one_is_not(small_workflow, tmp_path):
    """One that was asked while this process loaded is meant for it."""
    for age, trained in ((10**6, 6), (0, 0)):
        folder = tmp_path / f"asked {age} s ago"
        folder.mkdir()
        (folder / "status.json").write_text('{"status": "queued"}')  # else an older stop is somebody else's file
        (folder / "stop").touch()
        asked = time.time() - age
        os.utime(folder / "stop", (asked, asked))
        assert train(small_workflow(), folder) == 0
        recorded = folder / "metrics.jsonl"
        assert len(recorded.read_text().splitlines()) == trained


@pytest.mark.parametrize("torchrun", [True, False])
def test_a_stop_that_came_while_torchrun_started_this_process(tmp_path, monkeypatch, torchrun):
    """torchrun was started at 100, and this process at 200 by it: 150 is after the one and before the other."""

    class Process:
        def __init__(self, pid):
            self.pid = pid

        def create_time(self):
            return {os.getppid(): 100.0, os.getpid(): 200.0}[self.pid]

    monkeypatch.setattr("psutil.Process", Process)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for asked, stays in ((150.0, torchrun), (99.0, False), (201.0, True)):
        (tmp_path / "stop").touch()
        os.utime(tmp_path / "stop", (asked, asked))
        assert stopping.is_old(tmp_path) == (not stays)


def test_a_graph_that_no_update_can_use_is_kept_only_once(small_workflow, tmp_path, otca, caplog):
    """keep_graph "auto": the first rollout does not know of the epochs yet; later ones do, and so does a resumed run."""
    changes = {"OTCA_GRPOStep": {"epochs": 2}, "OTCA_TrainingRun": {"iterations": 3, "checkpoint_every": 1}}
    assert train(small_workflow(changes), tmp_path / "run") == 0
    assert caplog.text.count("a graph was kept for nothing, since epochs = 2") == 1
    assert otca("train", tmp_path / "run", "--resume", "--iterations", 4)[0] == 0
    assert caplog.text.count("a graph was kept for nothing") == 1


# --- the other update -------------------------------------------------------------------------------------------------


def test_matching_resumes_to_the_bit(small_graph, tmp_path):
    """With the old policy that samples; by the command line, on the sampler without noise."""
    changes = {
        "OTCA_MatchingStep": {"ema_decay": 0.5, "epochs": 2},
        "OTCA_TrainingRun": {"iterations": 2, "checkpoint_every": 1, "evaluate_every": 4},
    }
    file = tmp_path / "matching.json"
    file.write_text(json.dumps(small_graph(changes, "matching.json")))
    history = whole_and_resumed(file, tmp_path, (2, 4))
    folders = [tmp_path / name / "checkpoints" / "000004" for name in ("resumed", "whole")]
    for name in ("adapter", "old_policy", "optimizer", "ema"):
        assert_same_tensors(*(folder / f"{name}.safetensors" for folder in folders))
    assert [row["old_policy/decay"] for row in history] == pytest.approx([0.002, 0.004, 0.006, 0.008])
    assert all(row["gradient_norm"] > 0 and row["update/sampled_share"] == 1 for row in history)
    assert {f"credit/step/{step}" for step in range(4)} <= history[0].keys(), "every level is trained"
    # 4 steps of 6 samples; 2 epochs of 24 pairs, by θ, the old and the untrained policy (on-policy in the very first);
    # for kl/reference, first, 2 samples by two policies.
    assert [row["forwards/all"] for row in history[:2]] == [24 + 24 * 2 + 24 * 3 + 4, 24 + 2 * 24 * 3]
    assert all(row["forwards/with_gradient"] == 48 for row in history)


def test_several_prompt_files_resume_to_the_bit(small_graph, tmp_path):
    """Each at its own place, by weights that no iteration holds a whole number of."""
    rows = []
    for name, weight in {"a": 3, "b": 2}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(f"a red circle, {name}{number}" for number in range(3)))
        rows.append(json.dumps({"file": str(tmp_path / f"{name}.txt"), "weight": weight}))
    changes = {
        "OTCA_PromptDataset": {"file": "", "prompts": "\n".join(rows), "seed": 3},
        "OTCA_TrainingRun": {"iterations": 2, "checkpoint_every": 1, "evaluate_every": 0},
    }
    file = tmp_path / "files.json"
    file.write_text(json.dumps(small_graph(changes)))
    whole_and_resumed(file, tmp_path, (2, 4))
    folders = [tmp_path / name / "checkpoints" / "000004" for name in ("resumed", "whole")]
    assert_same_tensors(*(folder / "adapter.safetensors" for folder in folders))


def test_reward_gradients_resume_to_the_bit(small_graph, tmp_path):
    """The spread of the scores goes on from where it was, and so do all draws."""
    changes = {
        "OTCA_RewardGradientStep": {"ema_decay": 0.5},
        "OTCA_TrainingRun": {"iterations": 2, "checkpoint_every": 1, "evaluate_every": 4},
    }
    file = tmp_path / "gradient.json"
    file.write_text(json.dumps(small_graph(changes, "reward_gradient.json")))
    history = whole_and_resumed(file, tmp_path, (2, 4))
    folders = [tmp_path / name / "checkpoints" / "000004" for name in ("resumed", "whole")]
    for name in ("adapter", "optimizer", "ema"):
        assert_same_tensors(*(folder / f"{name}.safetensors" for folder in folders))
    stds = torch.tensor([row["reward/clip_t/std"] for row in history], dtype=torch.float64)
    means = stds.cumsum(0) / torch.arange(1, 5)
    assert [row["spread/clip_t"] for row in history] == pytest.approx(means.tolist(), rel=1e-6)
    # 4 steps of 6 samples; 2 levels of each by θ, which are the rollout's own from the second on, and, for the pull to the
    # original, by the untrained policy; for kl/reference, first, 2 samples by two policies.
    assert [row["forwards/all"] for row in history] == [24 + 12 + 12 + 4, *[24 + 12] * 3]
    assert all(row["forwards/with_gradient"] == 12 for row in history)
