"""A newcomer's first Run of each large model's template, on the canvas and by the command line: the files of its list are there,
as after ComfyUI's *Download all*, and nothing else was done. The models are tiny ones under the published names."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from comfyui_otca.tests import training
from comfyui_otca.tests.comfyui.server import ROOT, ComfyUI, installations, link
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.tools.canvases.templates import TEMPLATES
from comfyui_otca.trainer.run.budget import BACKWARD

FAMILIES = {
    "z_image": "ZImage",
    "qwen_image": "QwenImage",
    "krea2": "Krea2",
    "flux2_klein": "Flux2",
    "flux1": "Flux",
    "wan22_5b": "WAN22_T2V",
    "wan22_14b": "WAN21_T2V",
}
NEWER = ("z_image", "krea2", "flux2_klein")  # than ComfyUI 0.3.64
SMALL = {"width": 64, "height": 64, "frames": 5, "tile": 64}
WORDS = 49408  # of the tokenizer that ComfyUI brings
MOST = 100  # forwards of a Run
STAND_INS = Path(__file__).with_name("stand_ins.py")


@pytest.fixture(scope="module", params=installations() or [None], ids=lambda one: one.name if one else "no-comfyui")
def downloaded(request, tmp_path_factory):
    """A ComfyUI into which the files of all lists were downloaded."""
    if request.param is None:
        pytest.skip("no ComfyUI")

    def install(folder):
        link(folder)
        folder.with_name("stand_ins.py").symlink_to(STAND_INS)

    server = ComfyUI(request.param, tmp_path_factory.mktemp("downloaded"), install)
    for name in FAMILIES:
        download(name, server.base / "models")
    with server:
        yield server


def download(name: str, models: Path) -> None:
    """Puts stand-ins there for the files of which a template says where they come from, as ComfyUI reads it."""
    nodes = json.loads(TEMPLATES[name].canvas.read_text(encoding="utf-8"))["nodes"]
    for file in (file for node in nodes for file in node["properties"].get("models", [])):
        place = models / file["directory"] / file["name"]
        place.parent.mkdir(parents=True, exist_ok=True)
        if file["directory"] == "otca_rewards":
            tiny_rewards.hps(place, vocabulary=WORDS)
        else:
            save_file({"weight": torch.zeros(4, 4)}, place, {"tiny": FAMILIES[name]})


def graph_of(name: str, version: str) -> dict:
    """A template's graph at a small size."""
    if name in NEWER and version.startswith("0.3."):
        pytest.skip("this ComfyUI is older than the model")
    graph = json.loads(TEMPLATES[name].api.read_text(encoding="utf-8"))
    for node in graph.values():
        node["inputs"] |= {key: value for key, value in SMALL.items() if key in node["inputs"]}
    return graph


@pytest.mark.parametrize("name", FAMILIES)
def test_a_template_runs_with_the_files_of_its_list(downloaded, name):
    graph = graph_of(name, downloaded.installation.version)
    said = downloaded.run(graph)  # an invalid input would be answered by HTTP 400
    assert "execution_success" in said, said.get("execution_error", {}).get("exception_message")
    for node in graph.values():  # the next Run, which tries the model no more
        moving = {"OTCA_SDESampler": "seed", "OTCA_PromptDataset": "index"}.get(node["class_type"])
        node["inputs"] |= {moving: node["inputs"][moving] + 1} if moving else {}
    assert "execution_success" in downloaded.run(graph)
    rows = downloaded.metrics(name)
    assert all(row["gradient_norm"] > 0 for row in rows)
    first, later = (row["forwards/all"] + BACKWARD * row["forwards/with_gradient"] for row in rows)
    said = f"a Run is {later:.0f} forwards (the first {first:.0f}"
    assert said in TEMPLATES[name].notes["Read me"] and later <= MOST, said
    saved = {path.name for path in (downloaded.base / "models" / "loras").glob(f"{name}_lora*.safetensors")}
    experts = ("_high_noise", "_low_noise") if name == "wan22_14b" else ("",)
    assert saved == {f"{name}_lora{expert}.safetensors" for expert in experts}


# --- by the command line ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def typed(installation, everything, tmp_path_factory):
    """typed(folder, words): what `otca` prints, whose models and packs are those of the folder `base` of this function. Without
    --everything all commands are typed into one process."""
    base = tmp_path_factory.mktemp("typed")
    (base / "custom_nodes").mkdir()
    (base / "custom_nodes" / "stand_ins.py").symlink_to(STAND_INS)
    known = {
        "COMFYUI_ARGUMENTS": f"--base-directory {base}",
        "OTCA_CUSTOM_NODES": "stand_ins",
        "OMP_NUM_THREADS": "1",
        "COMFYUI_PATH": str(installation.folder),
        "PYTHON": str(installation.python),
        "GPUS": "1",
        "RESTARTS": "0",
    }
    variables = ComfyUI.environment() | known
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(
        [installation.python, STAND_INS.with_name("typed.py"), ROOT], env=variables, cwd=base, **pipes
    )

    def run(*command, folder=base):
        done = subprocess.run(list(map(str, command)), env=variables, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def type_(*words):
        if everything:
            return run(installation.python, ROOT, *words)
        process.stdin.write(json.dumps(list(map(str, words))) + "\n")
        process.stdin.flush()
        code, printed = json.loads(process.stdout.readline())
        assert code == 0, printed[-4000:]
        return printed

    type_.base, type_.run = base, run
    yield type_
    process.stdin.close()
    process.wait(60)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_template_goes_the_whole_way_by_the_command_line(typed, installation, everything, name):
    """Seen before: as soon as the files were there, `device = default` of ComfyUI's Load CLIP was the name of no device."""
    graph, place = graph_of(name, installation.version), typed.base / name
    download(name, typed.base / "models")
    place.mkdir()
    workflow, run = place / "workflow.json", place / "run"
    workflow.write_text(json.dumps(graph))
    counted = typed.base / "samples.txt"
    counted.unlink(missing_ok=True)
    assert "ready to train" in typed("validate", workflow)
    assert "not here" not in typed("memory", workflow)
    typed("train", workflow, "--output", run, "--iterations", 1)
    typed("train", workflow, "--output", run, "--iterations", 2, "--resume")
    assert [row["iteration"] for row in training.rows(run)] == [1, 2]
    rows = [*training.rows(run), *map(json.loads, (run / "evaluation.jsonl").read_text().splitlines())]
    assert sum(row["forwards/all"] for row in rows) == sum(map(int, counted.read_text().split())), (
        "by the network's own calls"
    )
    typed("card", run, "--output", place / "card")
    assert {path.suffix for path in (place / "card").iterdir()} >= {".md", ".json", ".safetensors"}
    typed("bundle", workflow, "--output", place / "bundle", "--set", "OTCA_TrainingRun.iterations=1")
    bundled = json.loads((place / "bundle" / "workflow.json").read_text(encoding="utf-8"))
    expected = {node: entry for node, entry in graph.items() if node in bundled}
    next(entry for entry in expected.values() if entry["class_type"] == "OTCA_TrainingRun")["inputs"]["iterations"] = 1
    assert bundled == expected, "Export… and the file in workflows/api are one graph"
    if name == "qwen_image" or everything:
        for words in (["--check"], []):
            typed.run("bash", "run.sh", *words, folder=place / "bundle")
        assert list((place / "bundle" / "runs").glob("*/lora*.safetensors"))
