"""A run on the canvas: what is on record, what Stop saves, and going on after ComfyUI was started anew."""

import gc
import json
import shutil
import subprocess
import sys
import weakref

import psutil
import pytest
import torch
from safetensors.torch import load_file

from comfyui_otca.canvas import results
from comfyui_otca.host.json_files import read_json as read_object
from comfyui_otca.tests.conftest import forget
from comfyui_otca.trainer.policy.files import read_metadata
from comfyui_otca.trainer.run import record
from comfyui_otca.trainer.run.folder import read_lines
from comfyui_otca.trainer.workflow.running import NodeError


@pytest.fixture
def queue(comfyui, monkeypatch):
    """queue(workflow, iteration): one prompt, with the seeds advanced as ComfyUI's queue does it."""
    monkeypatch.setattr(
        results, "picture", lambda draw: None
    )  # drawn by matplotlib, which takes longer than all else here

    def run(workflow, iteration=0, targets=None):
        overrides = {(node, name): value + iteration for node, name, value in workflow.advancing()}
        with torch.inference_mode():
            return workflow.run(overrides=overrides, targets=targets)

    return run


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "files" / "otca"


def test_status(small_workflow, queue, runs):
    workflow = small_workflow({"OTCA_TrainingRun": {"iterations": 2}})
    queue(workflow)
    status = read_object(runs / "otca" / "status.json")
    assert (status["status"], status["place"], status["total"], status["error"]) == ("idle", "canvas", 2, None)
    assert psutil.Process(status["pid"]).create_time() == status["process_started"]
    queue(workflow, 1)
    later = read_object(runs / "otca" / "status.json")
    assert later["status"] == "finished" and later["started"] == status["started"]


def same_weights(folder, model):
    """Whether the last checkpoint is the model as it stands."""
    saved = load_file(sorted((folder / "checkpoints").iterdir())[-1] / "adapter.safetensors")
    return all(torch.equal(saved[name], value) for name, value in model.policy.trainable_named().items())


@pytest.mark.parametrize("training", ["lora", "full"])
@pytest.mark.parametrize("evaluated", ["before training", "after an iteration"])
def test_an_evaluation_that_is_stopped_loses_nothing(small_workflow, queue, runs, comfyui, training, evaluated):
    """It runs on other weights than the trained ones, on the untrained or the averaged: neither may be saved or kept."""
    run = {"evaluate_every": 1, "checkpoint_every": 1}
    workflow = small_workflow({"OTCA_TrainingRun": run, "OTCA_LoadFlowModel": {"training": training}})
    with torch.inference_mode():
        model = workflow.run(targets=workflow.find("GRPOStep"))["11"][0]
    trained = {name: value.detach().clone() for name, value in model.policy.trainable_named().items()}
    calls = 4  # of the model in one evaluation of this size
    comfyui.interrupt_after = comfyui.checks + (2 if evaluated == "before training" else calls + 2)
    with pytest.raises(comfyui.Interrupt):
        queue(workflow, targets=["12"])
    comfyui.interrupt_after = None
    folder = runs / "otca"
    assert [row["iteration"] for row in read_lines(folder / "metrics.jsonl")] == [1]
    done = [] if evaluated == "before training" else [0]
    assert [row["iteration"] for row in read_lines(folder / "evaluation.jsonl")] == done
    assert all(torch.equal(trained[name], value) for name, value in model.policy.trainable_named().items())
    assert same_weights(folder, model)
    queue(workflow, targets=["12"])
    assert [row["iteration"] for row in read_lines(folder / "metrics.jsonl")] == [1], "no new iteration"
    assert [row["iteration"] for row in read_lines(folder / "evaluation.jsonl")] == [0, 1], "they are made up for"


def test_a_save_that_failed_is_tried_again(small_workflow, queue, runs, comfyui, monkeypatch):
    from comfyui_otca.trainer.run import checkpoint

    workflow, save = small_workflow(), checkpoint.save

    def disk_full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", disk_full)
    with pytest.raises(NodeError, match="No space left"):
        queue(workflow)
    monkeypatch.setattr(checkpoint, "save", save)
    queue(workflow)
    assert [row["iteration"] for row in read_lines(runs / "otca" / "metrics.jsonl")] == [1]
    assert (runs / "otca" / "lora.safetensors").is_file()


def test_an_adapter_is_saved_at_once_and_a_new_start_goes_on(small_workflow, queue, runs, comfyui):
    """Three iterations in one go, and the same with Stop amid the third and ComfyUI started anew: equal to the bit."""
    settings = {"checkpoint_every": 100, "evaluate_every": 100}
    whole = small_workflow({"OTCA_TrainingRun": {**settings, "run_name": "whole"}})
    for iteration in range(3):
        queue(whole, iteration)

    workflow = small_workflow({"OTCA_TrainingRun": settings})
    queue(workflow)
    queue(workflow, 1)
    comfyui.interrupt_after = comfyui.checks + 2
    with pytest.raises(comfyui.Interrupt):
        queue(workflow, 2)
    comfyui.interrupt_after = None
    state = json.loads((runs / "otca" / "checkpoints" / "000002" / "state.json").read_text())
    assert state["iteration"] == 2 and (runs / "otca" / "lora.safetensors").is_file()

    forget()
    again = small_workflow({"OTCA_TrainingRun": settings, "OTCA_LoadFlowModel": {"resume_run": "otca"}})
    assert again.validate() == []
    queue(again, 2)
    rows = {name: read_lines(runs / name / "metrics.jsonl") for name in ("whole", "otca")}
    for name in rows:
        rows[name] = [{k: v for k, v in row.items() if "second" not in k} for row in rows[name]]
    assert rows["otca"] == rows["whole"]
    assert not (runs / "otca-2").exists()


def test_a_run_that_went_on_with_itself_can_be_resumed_headlessly(small_workflow, queue, runs):
    """Its graph says resume_run, which is the canvas' way; the command line has its own."""
    queue(small_workflow())
    forget()
    again = {"OTCA_LoadFlowModel": {"resume_run": "otca"}}
    queue(small_workflow(again))
    written = read_object(runs / "otca" / "workflow.json")
    assert written == small_workflow({"OTCA_LoadFlowModel": {"resume_run": ""}}).graph
    prompt = read_metadata(runs / "otca" / "lora.safetensors")["prompt"]
    assert json.loads(prompt) == small_workflow(again).graph, "what was queued"


def test_a_folder_that_somebody_removed_is_begun_anew(small_workflow, queue, runs, caplog):
    """With what is on record, since the model has learned it; prompts go on."""
    settings = {"checkpoint_every": 100, "evaluate_every": 100}
    workflow, folder = small_workflow({"OTCA_TrainingRun": settings}), runs / "otca"
    queue(workflow)
    before = [read_lines(folder / name) for name in ("metrics.jsonl", "evaluation.jsonl")]
    shutil.rmtree(folder)
    queue(workflow, 1)
    assert f"{folder} is gone, and is begun again" in caplog.text
    lines = read_lines(folder / "metrics.jsonl")
    assert [row["iteration"] for row in lines] == [1, 2] and lines[:1] == before[0]
    assert read_lines(folder / "evaluation.jsonl") == before[1]
    assert read_object(folder / "workflow.json") == workflow.graph
    assert read_object(folder / "status.json")["status"] == "idle"
    model = workflow.run(targets=["1"])["1"][0]
    assert same_weights(folder, model) and (folder / "lora.safetensors").is_file()
    assert not (runs / "otca-2").exists()


@pytest.fixture
def somebody(runs):
    """somebody(name): another process claims the run of that name, and says what came of it; it ends with the test."""
    started = []

    def claim(name):
        folder = runs / name
        code = (
            "import sys; from pathlib import Path; from comfyui_otca.host import claim\n"
            "try: claim.take(Path(sys.argv[1])); print('claimed', flush=True); sys.stdin.read()\n"
            "except claim.Claimed as error: print(error, flush=True)"
        )
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, "-c", code, str(folder)], **pipes))
        return started[-1].stdout.readline().strip()

    yield claim
    for process in started:
        process.communicate()


def test_a_folder_in_which_another_process_trains_is_left_alone(small_workflow, queue, runs, somebody):
    assert somebody("otca") == "claimed"
    (runs / "otca" / "checkpoints").mkdir()
    there = sorted(path.name for path in (runs / "otca").iterdir())
    queue(small_workflow())
    assert sorted(path.name for path in (runs / "otca").iterdir()) == there
    assert len(read_lines(runs / "otca-2" / "metrics.jsonl")) == 1
    (problem,) = small_workflow({"OTCA_LoadFlowModel": {"resume_run": "otca"}}).validate()
    assert "is training there" in str(problem)


def test_while_it_is_on_the_canvas_no_other_process_trains_there(small_workflow, queue, runs, somebody):
    workflow = small_workflow()
    queue(workflow)
    assert "is training there. Fix: stop it" in somebody("otca")
    queue(workflow, 1)
    assert len(read_lines(runs / "otca" / "metrics.jsonl")) == 2
    workflow.set("TrainingRun.run_name", "another")
    queue(workflow, 2)
    assert somebody("otca") == "claimed", "another run has taken its model"


def test_what_comfyui_lets_go_is_free(small_workflow, queue):
    """Runs stay open for a session; models and reward models must not stay with them."""
    workflow = small_workflow()
    outputs = queue(workflow)
    held = [weakref.ref(outputs["1"][0]), *(weakref.ref(reward) for reward in outputs["8"][0].rewards)]
    del outputs
    workflow.cached_outputs.clear()
    gc.collect()
    assert [reference() for reference in held] == [None] * 5


def test_another_model_starts_another_run(small_workflow, queue, runs):
    workflow = small_workflow()
    queue(workflow)
    workflow.set("LoadFlowModel.lora_rank", 2)
    queue(workflow, 1)
    queue(workflow, 2)
    assert [len(read_lines(runs / name / "metrics.jsonl")) for name in ("otca", "otca-2")] == [1, 2]


def test_the_saved_adapter_carries_its_graph_and_overwrites_only_its_own(small_workflow, queue, tmp_path, comfyui):
    workflow = small_workflow()
    queue(workflow)
    file = tmp_path / "loras" / "otca_lora.safetensors"
    assert json.loads(read_metadata(file)["prompt"])["3"]["class_type"] == "OTCA_SDESampler"
    first = file.read_bytes()
    queue(workflow, 1)
    second = file.read_bytes()
    assert second != first and len(list(file.parent.iterdir())) == 1
    forget()
    queue(small_workflow({"OTCA_TrainingRun": {"run_name": "other"}}))
    assert file.read_bytes() == second
    assert sorted(path.name for path in file.parent.iterdir()) == [
        "otca_lora-other.safetensors",
        "otca_lora.safetensors",
    ]


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_renamed_run_overwrites_its_own_adapter_and_a_copy_does_not(
    small_workflow, queue, runs, tmp_path, comfyui, is_copied
):
    workflow = small_workflow()
    queue(workflow)
    file = tmp_path / "loras" / "otca_lora.safetensors"
    first = file.read_bytes()
    [node] = workflow.find("LoadFlowModel")
    record.run_of(workflow.run(targets=[node])[node][0]).held.close()  # as when ComfyUI ends
    forget()
    (shutil.copytree if is_copied else shutil.move)(runs / "otca", runs / "other")
    changes = {"OTCA_LoadFlowModel": {"resume_run": "other"}, "OTCA_TrainingRun": {"run_name": "other"}}
    queue(small_workflow(changes), 1)
    assert len(read_lines(runs / "other" / "metrics.jsonl")) == 2, "it is that run which goes on"
    assert (file.read_bytes() == first) == is_copied
    assert len(list(file.parent.iterdir())) == 1 + is_copied


def test_headlessly_a_run_is_resumed_by_the_command_line(small_workflow):
    (problem,) = small_workflow({"OTCA_LoadFlowModel": {"resume_run": "otca"}}).validate()
    assert "--resume" in str(problem)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", "has no checkpoints. Fix: give the name of a run in"),
        *((path, "Fix: for example my_run") for path in ("/etc", "../other", ".hidden")),
    ],
)
def test_a_run_is_resumed_by_name_and_never_by_path(small_workflow, comfyui, name, told):
    (problem,) = small_workflow({"OTCA_LoadFlowModel": {"resume_run": name}}).validate()
    assert "resume_run" in str(problem) and told in str(problem)


def test_two_experts_take_two_free_names(small_workflow, queue, tmp_path, comfyui, tiny_folder):
    changes = {
        "OTCA_LoadFlowModel": {"path": str(tiny_folder("wan22"))},
        "OTCA_SDESampler": {"width": 32, "height": 16, "frames": 5, "guidance": 1.0},
    }
    queue(small_workflow(changes))
    forget()
    queue(small_workflow(changes | {"OTCA_TrainingRun": {"run_name": "other"}}))
    names = [f"otca_lora{run}_{expert}_noise" for run in ("", "-other") for expert in ("high", "low")]
    assert sorted(path.stem for path in (tmp_path / "loras").iterdir()) == sorted(names)
