"""Bundles of small workflows, and the files that these name."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from comfyui_otca.bundle import contents, making
from comfyui_otca.host.access import permissions
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from comfyui_otca.trainer.workflow.running import Workflow

COMFYUI_LACKS = "diffusers peft accelerate matplotlib tensorboard ftfy bitsandbytes rapidocr onnxruntime wandb".split()

# Suggestions of things that are no files: names within a model, of the machine or of figures, and of a run that is yet to be.
NO_FILES = {"layers", "devices", "metrics", "runs"}
SET = {  # what else an input takes to be read
    ("OTCA_TCDWeights", "features"): {"proxy": "image_features", "model": ["2", 0]},
    ("OTCA_RewardVote", "encoder"): {"learn": True},
}


def declared(node):
    return {name: given for section in node.inputs() for name, given in section.items()}


def file_inputs():
    """(class, input) of every input of ours that offers what is on the disk, or that says that it names a file."""
    for class_type, node in NODE_CLASS_MAPPINGS.items():
        for name, given in declared(node).items():
            offers = callable(given.type) or given.options.get("suggest", "layers") not in NO_FILES
            text = isinstance(given.type, list) or given.type == "STRING" or callable(given.type)
            value = "/nowhere = 1" if name == "guides" else "/nowhere"
            named = node.WANTS(**{name: value, **SET.get((class_type, name), {})}) if text else []
            if offers or any(want.input == name and want.kind in (permissions.READ, permissions.RUN) for want in named):
                yield class_type, name


REWARD = '''"""Brightness; it also notes which pack asks."""
import sys
from pathlib import Path


def score(images, prompts):
    with Path(score.__code__.co_filename).with_name("seen.txt").open("a") as file:
        file.write(sys.modules["comfyui_otca"].__file__ + "\\n")
    return images.float().mean((1, 2, 3))
'''


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A user's folders: `input` for prompts, `models`, `rewards` with an allowed Python reward; the home folder is empty."""
    folders = {name: tmp_path / "user" / name for name in ("input", "models", "rewards", "home")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    (folders["rewards"] / "mine.py").write_text(REWARD)
    (folders["input"] / "prompts.txt").write_text("a red circle\na blue square\na green triangle\na yellow circle\n")
    monkeypatch.setenv("OTCA_INPUT", str(folders["input"]))
    monkeypatch.setenv("OTCA_MODELS", str(folders["models"]))
    monkeypatch.setenv("OTCA_ALLOW_PYTHON_REWARDS", str(folders["rewards"]))
    monkeypatch.setenv("HOME", str(folders["home"]))
    monkeypatch.setenv("OTCA_PERMISSIONS", "none")
    monkeypatch.delenv("OTCA_ALLOW_FOLDERS", raising=False)  # of all tests
    monkeypatch.chdir(folders["home"])
    return type("Places", (), folders)


@pytest.fixture(autouse=True)
def _unrehearsed(request, monkeypatch):
    """The iteration is not rehearsed for the estimate of memory, which takes longer than all else, but in tests marked so."""
    if "rehearsed" not in request.keywords:
        monkeypatch.setattr(making, "memory", lambda graph: (None, "memory: unknown (it was not asked)"))


def with_reward(graph, reward):
    """The graph with one more reward on its stack; `reward` is (class, inputs)."""
    stack = next(entry["inputs"] for entry in graph.values() if entry["class_type"] == "OTCA_RewardStack")
    graph["77"] = {"class_type": reward[0], "inputs": {"coefficient": 1.0, **reward[1]}}
    stack["reward_9" if "reward_9" in stack else f"reward_{1 + sum(name.startswith('reward_') for name in stack)}"] = [
        "77",
        0,
    ]
    return graph


def inputs_of(graph, class_type):
    return next(entry["inputs"] for entry in graph.values() if entry["class_type"] == class_type)


@pytest.fixture
def collected():
    """collected(graph, run name): what a bundle of it holds."""

    def collect(graph, run_name=None):
        workflow = Workflow(graph, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS)
        return contents.collect(contents.begun_from_runs(workflow), run_name)

    return collect


@pytest.fixture
def bundled(collected, tmp_path):
    """bundled(graph, run name): the folder of its bundle."""

    def make(graph, run_name=None, target="bundle", **options):
        making.make(collected(graph, run_name), tmp_path / target, **options)
        return tmp_path / target

    return make


@pytest.fixture
def bash():
    """bash(script, folder, variables): what it answered, without the variables of these tests."""

    def run(script, *arguments, cwd, **variables):
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        command = ["bash", str(script), *arguments]
        return subprocess.run(
            command, cwd=cwd, env={**kept, **variables}, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def read_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))
