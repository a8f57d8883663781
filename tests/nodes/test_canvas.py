"""A run on the canvas: what is on record, what Stop saves, and going on after ComfyUI was started anew."""

import json

import pytest
import torch

from comfyui_otca.trainer import host, lora, record
from comfyui_otca.trainer.record import read_lines, read_object


@pytest.fixture
def queue(comfyui):
    """queue(workflow, iteration): one prompt, with the seeds advanced as ComfyUI's queue does it."""

    def run(workflow, iteration=0):
        overrides = {(node, name): value + iteration for node, name, value in workflow.advancing()}
        with torch.inference_mode():
            return workflow.run(overrides=overrides)

    return run


def restart():
    """What is gone when ComfyUI ends: all but the files."""
    record._open.clear()
    host._when_stopped.clear()


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "files" / "otca"


def test_status(small_workflow, queue, runs):
    workflow = small_workflow({"OTCA_TrainingRun": {"iterations": 2}})
    queue(workflow)
    status = read_object(runs / "quickstart" / "status.json")
    assert (status["status"], status["place"], status["total"], status["error"]) == ("running", "canvas", 2, None)
    import psutil

    assert psutil.Process(status["pid"]).create_time() == status["process_started"]
    queue(workflow, 1)
    later = read_object(runs / "quickstart" / "status.json")
    assert later["status"] == "finished" and later["started"] == status["started"]


def test_an_evaluation_that_is_stopped_loses_no_iteration(small_workflow, queue, runs, comfyui):
    workflow = small_workflow()
    queue_until_run = workflow.find("GRPOStep")
    with torch.inference_mode():
        workflow.run(targets=queue_until_run)
    comfyui.interrupt_after = comfyui.checks + 3
    with pytest.raises(comfyui.Interrupt):
        queue(workflow)
    comfyui.interrupt_after = None
    folder = runs / "quickstart"
    assert [row["iteration"] for row in read_lines(folder / "metrics.jsonl")] == [1]
    assert read_lines(folder / "evaluation.jsonl") == []
    queue(workflow, 1)
    assert [row["iteration"] for row in read_lines(folder / "metrics.jsonl")] == [1, 2]
    assert [row["iteration"] for row in read_lines(folder / "evaluation.jsonl")] == [0], "the first one is made up for"


def test_stop_saves_and_a_new_start_goes_on(small_workflow, queue, runs, comfyui):
    """Three iterations in one go, and the same with Stop amid the third and ComfyUI started anew: equal to the bit."""
    settings = {"OTCA_TrainingRun": {"checkpoint_every": 100, "evaluate_every": 100}}
    whole = small_workflow({**settings, "OTCA_TrainingRun": {**settings["OTCA_TrainingRun"], "run_name": "whole"}})
    for iteration in range(3):
        queue(whole, iteration)

    workflow = small_workflow(settings)
    queue(workflow)
    queue(workflow, 1)
    assert not (runs / "quickstart" / "checkpoints").exists()
    comfyui.interrupt_after = comfyui.checks + 2
    with pytest.raises(comfyui.Interrupt):
        queue(workflow, 2)
    comfyui.interrupt_after = None
    state = json.loads((runs / "quickstart" / "checkpoints" / "000002" / "state.json").read_text())
    assert state["iteration"] == 2

    restart()
    again = small_workflow({**settings, "OTCA_LoadFlowModel": {"resume_run": "quickstart"}})
    assert again.validate() == []
    queue(again, 2)
    rows = {name: read_lines(runs / name / "metrics.jsonl") for name in ("whole", "quickstart")}
    for name in rows:
        rows[name] = [{k: v for k, v in row.items() if "second" not in k} for row in rows[name]]
    assert rows["quickstart"] == rows["whole"]
    assert not (runs / "quickstart-2").exists()


def test_stop_amid_several_epochs_saves_no_half_update(small_workflow, queue, runs, comfyui):
    """Between the update and its line on record the model stands nowhere that could be resumed."""
    workflow = small_workflow({"OTCA_TrainingRun": {"checkpoint_every": 100, "evaluate_every": 100}})
    queue(workflow)
    run = record._open[(runs / "quickstart").resolve()]
    model = run._trained[0]()
    model.version += 1
    run.save_if_behind()
    assert not (runs / "quickstart" / "checkpoints").exists()
    model.version -= 1
    run.save_if_behind()
    assert (runs / "quickstart" / "checkpoints" / "000001").is_dir()


def test_another_model_starts_another_run(small_workflow, queue, runs):
    workflow = small_workflow()
    queue(workflow)
    workflow.set("LoadFlowModel.lora_rank", 2)
    queue(workflow, 1)
    queue(workflow, 2)
    assert [len(read_lines(runs / name / "metrics.jsonl")) for name in ("quickstart", "quickstart-2")] == [1, 2]


def test_the_saved_adapter_carries_its_graph_and_overwrites_only_its_own(small_workflow, queue, tmp_path, comfyui):
    workflow = small_workflow()
    queue(workflow)
    file = tmp_path / "loras" / "quickstart_lora.safetensors"
    assert json.loads(lora.read_metadata(file)["prompt"])["3"]["class_type"] == "OTCA_SDESampler"
    first = file.read_bytes()
    queue(workflow, 1)
    second = file.read_bytes()
    assert second != first and len(list(file.parent.iterdir())) == 1
    restart()
    queue(small_workflow())
    assert file.read_bytes() == second
    assert sorted(path.name for path in file.parent.iterdir()) == [
        "quickstart_lora-2.safetensors",
        "quickstart_lora.safetensors",
    ]


def test_resuming_what_is_not_there(small_workflow, comfyui, tmp_path):
    (problem,) = small_workflow({"OTCA_LoadFlowModel": {"resume_run": "nothing"}}).validate()
    assert "has no checkpoints" in str(problem) and "Fix: give the name of a run in" in str(problem)


def test_headlessly_a_run_is_resumed_by_the_command_line(small_workflow):
    (problem,) = small_workflow({"OTCA_LoadFlowModel": {"resume_run": "quickstart"}}).validate()
    assert "--resume" in str(problem)
