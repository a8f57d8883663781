"""Each template's bundle, made where ComfyUI's packages alone are, and trained by two processes where all are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from comfyui_otca.tests.bundle.conftest import COMFYUI_LACKS, read_json
from comfyui_otca.trainer.types import DATASET_NODE, RUN_NODE, SAMPLER_NODE

ROOT = Path(__file__).resolve().parents[2]
LACKS = f"""
import importlib.metadata, sys
lacks, find = {COMFYUI_LACKS}, importlib.metadata.distribution

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in lacks else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

def distribution(name):
    if name in lacks:
        raise importlib.metadata.PackageNotFoundError(name)
    return find(name)

sys.meta_path[:] = map(Without, sys.meta_path)
importlib.metadata.distribution = distribution
"""
# What makes a template small: `class: {input: value}`. One iteration, and no evaluation.
SMALL = {
    RUN_NODE: {"iterations": 1, "evaluate_every": 0, "best_metric": "", "stop_after_decline": 0, "artefacts": "off"},
    DATASET_NODE: {"prompts_per_iteration": 2},
    SAMPLER_NODE: {"group_size": 2, "steps": 3},
}
NOT_HERE = (" is not in models/", " was not found", "only the canvas has a page that asks people")
# What a bundle's requirements.txt would list, of a pack in a folder of any name.
NEEDED = f"""
import json, sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("comfyui_otca", {str(ROOT / "__init__.py")!r}, submodule_search_locations=[{str(ROOT)!r}])
sys.modules[spec.name] = pack = module_from_spec(spec)
spec.loader.exec_module(pack)
from comfyui_otca.bundle import packages
print(*packages.needed(json.load(open(sys.argv[1], encoding="utf-8")))[0], sep="\\n")
"""
TEMPLATES = sorted({path.stem for path in (ROOT / "workflows" / "api").glob("*.json")} - {"rank_pictures"})
SHORT = "quickstart_comfyui"


def comfyui():
    """ComfyUI's folder and its Python."""
    named, there = os.environ.get("COMFYUI_PATH"), Path("~/comfy").expanduser().glob("ComfyUI*")
    for folder in [named] if named else sorted(map(str, there), reverse=True):
        if (python := Path(folder, ".venv/bin/python")).exists():
            return folder, str(python)
    pytest.skip("there is no ComfyUI with a Python of its own")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_bundle_that_comfyuis_python_made_trains_by_two_processes(name, everything, tmp_path):
    if not everything and name != SHORT:
        pytest.skip("the long form: --everything")
    source = ROOT / "workflows" / "api" / f"{name}.json"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(LACKS)
    kinds = {entry["class_type"]: entry["inputs"] for entry in read_json(source).values()}
    small = [(kind, key, value) for kind, values in SMALL.items() for key, value in values.items() if kind in kinds]
    small = [word for kind, key, value in small if key in kinds[kind] for word in ("--set", f"{kind}.{key}={value}")]
    folder, python = comfyui()
    environment = {key: os.environ[key] for key in ("PATH", "HOME")} | {"OMP_NUM_THREADS": "1", "COMFYUI_PATH": folder}
    environment |= {"COMFYUI_ARGUMENTS": "--cpu"}
    lean = environment | {"PYTHONPATH": str(tmp_path / "site")}
    command = [python, str(ROOT), "bundle", str(source), "--output", "bundle", *small]
    made = subprocess.run(command, cwd=tmp_path, env=lean, capture_output=True, text=True, check=False)
    errors = [line for line in made.stderr.splitlines() if line.startswith("error: ")]
    if errors and all(any(word in line for word in NOT_HERE) for line in errors):
        command = [python, str(ROOT), "validate", str(source), "--gpus", "2"]
        told = subprocess.run(command, cwd=tmp_path, env=lean, capture_output=True, text=True, check=False).stderr
        assert "error: workflow: Training by 2 processes needs accelerate>=1.8 (none is here)" in told
        command = [python, "-c", NEEDED, str(source)]
        listed = subprocess.run(command, cwd=ROOT.parent, env=lean, capture_output=True, text=True, check=True).stdout
        assert {"accelerate>=1.8", "matplotlib>=3.8"} <= set(listed.split())
        pytest.skip("what it needs is told rightly; its models, or the people it asks, are not here")
    assert made.returncode == 0, made.stderr
    bundle = tmp_path / "bundle"
    lines = (bundle / "requirements.txt").read_text().splitlines()
    assert "accelerate>=1.8" in lines and "matplotlib>=3.8" in lines
    run = ["bash", str(bundle / "run.sh")]
    environment |= {"PYTHON": python, "GPUS": "2", "DEVICE": "cpu", "RESTARTS": "0"}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 processes on 1 machine" in done.stdout
