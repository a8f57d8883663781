"""ComfyUI's own nodes without its server, in every ComfyUI that is here and by its own interpreter."""

from __future__ import annotations

import json
import math
import subprocess
import time
from pathlib import Path

import pytest

from comfyui_otca.tests.comfyui.conftest import need_diffusers
from comfyui_otca.tests.comfyui.server import ROOT, START_SECONDS, ComfyUI
from comfyui_otca.tests.training import rows, untimed


def python(installation, *arguments, **options):
    environment = {**ComfyUI.environment(), "OMP_NUM_THREADS": "1"}
    environment.pop("COMFYUI_PATH", None)
    command = [installation.python, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def seen(installation):
    """What a node of ours is given by ComfyUI's nodes."""
    answer = python(installation, Path(__file__).with_name("nodes_headless.py"), installation.folder, ROOT)
    assert answer.returncode == 0, answer.stderr[-4000:]
    return json.loads(answer.stdout.splitlines()[-1])


def test_they_are_run_without_a_server_and_only_what_ours_need(seen):
    assert seen["problems"] == [] and seen["server"] is False
    assert set(seen["ran"]) == set(seen["all"]) - {"8"}, "a preview stays what it is on the canvas"


def test_model_patches_reach_ours(seen):
    """σ at t = 1/2 by the published formulas: s·t / (1 + (s − 1)·t), and for FLUX s = exp(μ) with μ of 4096 tokens 1.15."""
    for name, shift in (("sd3", 3.0), ("aura", 1.73), ("flux", math.exp(1.15))):
        assert seen["half"][name] == pytest.approx(shift * 0.5 / (1 + (shift - 1) * 0.5), abs=1e-4), name


def test_v3_nodes_and_links_between_nodes_of_theirs(seen):
    assert seen["guidance"] == 7.5
    assert seen["shape"] == [3, 4, 16, 8], "three of 64 x 128 pixels, an eighth each"


def test_theirs_run_in_inference_mode_as_on_the_canvas_and_ours_do_not(seen):
    assert seen["inference"] == [True, False]


def test_inputs_that_grow_and_types_that_are_matched(seen):
    if "12" not in seen["all"]:
        pytest.skip("this ComfyUI has no such nodes")
    assert seen["text"] == "one and two" and seen["switched"] == 11


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.fixture
def graph(small_graph):
    """OTCA's workflow, its number of steps from a node of ComfyUI's and its pictures into another one."""
    graph = small_graph({"OTCA_TrainingRun": {"iterations": 2}})
    ids = {entry["class_type"]: id_ for id_, entry in graph.items()}
    sampler = graph[ids["OTCA_SDESampler"]]["inputs"]
    graph["90"] = {"class_type": "PrimitiveInt", "inputs": {"value": sampler["steps"]}}
    graph["91"] = {"class_type": "PreviewImage", "inputs": {"images": [ids["OTCA_SDESampler"], 1]}}
    sampler["steps"] = ["90", 0]
    return graph


@pytest.fixture
def otca(installation, tmp_path):
    """otca(graph, arguments): what the command line answers in ComfyUI's interpreter."""
    need_diffusers(installation)

    def run(graph, command, *arguments, comfyui=True):
        (tmp_path / "workflow.json").write_text(json.dumps(graph))
        place = ["--comfyui", installation.folder] if comfyui else []
        return python(installation, ROOT, command, tmp_path / "workflow.json", *place, *arguments, cwd=tmp_path)

    return run


def test_missing_files_are_named_with_their_folders(otca, graph, installation):
    """No node of ours takes a MODEL as a number of steps, which is reported too."""
    graph["90"] = {
        "class_type": "UNETLoader",
        "inputs": {"unet_name": "z_image_bf16.safetensors", "weight_dtype": "default"},
    }
    answer = otca(graph, "validate")
    assert answer.returncode == 2
    assert (
        "UNETLoader.unet_name = 'z_image_bf16.safetensors' is not in models/diffusion_models. Fix: put it into"
        in answer.stderr
    )
    assert str(installation.folder / "models" / "diffusion_models") in answer.stderr
    assert "needs ComfyUI for UNETLoader (node 90)" in otca(graph, "validate", comfyui=False).stderr


def test_it_trains_with_one_process_and_with_two(otca, graph, installation, tmp_path, small_graph):
    ways = {"one": [], "two": ["--gpus", "2"]}
    for name, more in ways.items():
        answer = otca(graph, "train", "--device", "cpu", "--output", tmp_path / name, *more)
        assert answer.returncode == 0, answer.stderr[-4000:]
        assert (tmp_path / name / "lora.safetensors").is_file()
    plain = small_graph({"OTCA_TrainingRun": {"iterations": 2}})
    assert otca(plain, "train", "--output", tmp_path / "plain", comfyui=False).returncode == 0
    assert untimed(tmp_path / "one") == untimed(tmp_path / "plain"), "to the bit as with the number typed in"
    one, two = (rows(tmp_path / name) for name in ("one", "two"))
    assert len(one) == 2
    for before, after in zip(one, two, strict=True):
        assert after["loss"] == pytest.approx(before["loss"], abs=1e-6)
        assert after["gradient_norm"] == pytest.approx(before["gradient_norm"], rel=1e-4)


def test_the_sidebars_train_takes_its_comfyui_along(comfyui, graph, run_name):
    """From a server to a process without one: seen before, "unknown node class PrimitiveInt"."""
    asked = {"name": run_name, "iterations": 2, "prompt": graph}
    assert json.loads(comfyui.post("/otca/train", asked))["id"] == run_name
    deadline = time.monotonic() + START_SECONDS
    while (summary := comfyui.get(f"/otca/runs/{run_name}"))["status"] == "running" and time.monotonic() < deadline:
        time.sleep(0.5)
    assert summary["status"] == "finished", comfyui.get(f"/otca/runs/{run_name}/log?offset=0")
