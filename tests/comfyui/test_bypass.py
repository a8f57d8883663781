"""Bypassed nodes of ours on the canvas: what then runs, in every ComfyUI that is there."""

from __future__ import annotations

import json
import time

import pytest

from comfyui_otca.tests.comfyui.conftest import SMALL
from comfyui_otca.tools.canvases.templates import TEMPLATES


def classes(workflow):
    content = json.loads(TEMPLATES[workflow].canvas.read_text(encoding="utf-8"))
    return [(node["id"], node["type"]) for node in content["nodes"]]


@pytest.fixture
def bypassing(canvas, run_name):
    """bypassing(workflow, class): opens it, small, with that node bypassed, and returns the node's id."""

    def opened(workflow, class_type):
        canvas.expected.append("resolveOutput")  # ComfyUI says of each bypassed node what we then put right
        canvas.load(TEMPLATES[workflow].canvas)
        own = {"1.seed": time.monotonic_ns() % 10**6, "12.run_name": run_name, "13.filename": run_name}
        moved = 12 - next(number for number, type_ in classes(workflow) if type_ == "OTCA_TrainingRun")
        for key, value in {**SMALL, **own}.items():  # the last two nodes may have other numbers
            node, widget = key.split(".")
            canvas.set({f"{int(node) - moved if int(node) >= 12 else node}.{widget}": value})
        return canvas.page.evaluate(
            "type => { const node = app.graph.nodes.find(n => n.type === type); node.mode = 4; return String(node.id); }",
            class_type,
        )

    return opened


def test_without_stepwise_gain_it_is_plain_grpo(canvas, bypassing, run_name):
    gain = bypassing("stepwise_flow_grpo", "OTCA_StepwiseGain")
    prompt = canvas.prompt()
    assert prompt[gain]["class_type"] == "OTCA_WeightedFuse"
    assert prompt[f"{gain}_credit"]["class_type"] == "OTCA_StepCredit"
    (ran,) = canvas.run_and_wait()
    assert ran.end == "execution_success", ran.detail
    (row,) = canvas.comfyui.metrics(run_name)
    weights = {value for name, value in row.items() if name.startswith("credit/step/")}
    assert weights == {1.0}


def test_without_training_run_nothing_is_recorded_and_nothing_is_refused(canvas, bypassing, run_name):
    run = bypassing("otca", "OTCA_TrainingRun")
    assert "PreviewImage" not in {entry["class_type"] for entry in canvas.prompt().values() if run in str(entry)}
    (ran,) = canvas.run_and_wait()  # which says so where the server refuses anything
    assert ran.end == "execution_success", ran.detail
    assert not (canvas.comfyui.run_folder(run_name) / "metrics.jsonl").exists()
