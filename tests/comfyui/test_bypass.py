"""Bypassed nodes of ours on the canvas: what then runs, in every ComfyUI that is there."""

from __future__ import annotations

import json
import time

import pytest

from comfyui_otca.tests.comfyui.conftest import SMALL
from comfyui_otca.tests.comfyui.server import WORKFLOWS
from comfyui_otca.tools.canvases.templates import TEMPLATES

MIX_GRPO = WORKFLOWS / "api" / "mix_grpo.json"


@pytest.fixture
def bypassing(canvas, run_name):
    """bypassing(class): opens OTCA's workflow, small, with that node bypassed, and returns the node's id."""

    def opened(class_type):
        canvas.expected.append("resolveOutput")  # ComfyUI says so of each bypassed node that lets nothing through
        canvas.load(TEMPLATES["otca"].canvas)
        own = {"1.seed": time.monotonic_ns() % 10**6, "12.run_name": run_name, "13.filename": run_name}
        canvas.set({**SMALL, **own})
        return canvas.page.evaluate(
            "type => { const node = app.graph.nodes.find(n => n.type === type); node.mode = 4; return String(node.id); }",
            class_type,
        )

    return opened


def ran(canvas):
    """The one prompt that is queued and runs to its end; the canvas fails the test where ComfyUI refuses anything."""
    (end,) = canvas.run_and_wait()
    assert end.end == "execution_success", end.detail


def test_without_its_credit_node_all_steps_count_alike(canvas, bypassing, run_name):
    credit = bypassing("OTCA_TCDWeights")
    assert credit not in canvas.prompt()
    ran(canvas)
    (row,) = canvas.comfyui.metrics(run_name)
    assert {value for name, value in row.items() if name.startswith("credit/step/")} == {1.0}


def test_without_its_update_nothing_is_trained_or_recorded_and_nothing_is_refused(canvas, bypassing, run_name):
    bypassing("OTCA_GRPOStep")
    ran(canvas)
    assert not canvas.comfyui.run_folder(run_name).exists()


def test_without_training_run_nothing_is_recorded(canvas, bypassing, run_name):
    bypassing("OTCA_TrainingRun")
    canvas.page.evaluate(
        "() => { for (const node of app.graph.nodes) if (node.type === 'PreviewImage') node.mode = 2; }"
    )
    ran(canvas)
    assert not (canvas.comfyui.run_folder(run_name) / "metrics.jsonl").exists()


def test_without_its_window_a_sampler_has_its_own_numbers(canvas):
    """In a graph that is no template: dropped onto the canvas, as docs/recipes.md says."""
    canvas.expected.append("resolveOutput")
    canvas.page.evaluate(
        "graph => app.loadApiJson(graph, 'mix_grpo')", json.loads(MIX_GRPO.read_text(encoding="utf-8"))
    )
    assert "OTCA_MixGRPOWindow" in {entry["class_type"] for entry in canvas.prompt().values()}
    canvas.page.evaluate("() => { app.graph.nodes.find(node => node.type === 'OTCA_MixGRPOWindow').mode = 4; }")
    sampler = next(entry for entry in canvas.prompt().values() if entry["class_type"] == "OTCA_SDESampler")
    assert (sampler["inputs"]["window_start"], sampler["inputs"]["window_length"]) == (0, 0)
