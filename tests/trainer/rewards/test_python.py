"""A reward in the user's own file: refused until its folder is allowed, run as it stands, errors with their line."""

from __future__ import annotations

import json
import os
import sys
import textwrap

import pytest
import torch

from comfyui_otca.__main__ import main
from comfyui_otca.host import stopping
from comfyui_otca.host.access import permissions
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.nodes.rewards.external import RewardPython
from comfyui_otca.trainer.rewards.base import RewardError, score
from comfyui_otca.trainer.rewards.python import PythonReward
from comfyui_otca.trainer.workflow.running import Workflow

IMAGES, PROMPTS = torch.tensor([0.25, 0.75])[:, None, None, None].expand(2, 4, 4, 3).clone(), ["one", "three"]
BRIGHTNESS = """
def score(images, prompts):
    return images.mean((1, 2, 3))
"""


@pytest.fixture(autouse=True)
def _nothing_allowed(monkeypatch):
    monkeypatch.delenv(permissions.PYTHON, raising=False)


@pytest.fixture
def allowed(tmp_path, monkeypatch):
    folder = tmp_path / "allowed"
    folder.mkdir()
    monkeypatch.setenv(permissions.PYTHON, str(folder))
    return folder


def write(folder, text=BRIGHTNESS, name="mine.py"):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def refusal(file):
    """What the trainer's class says, which is also what the node's check says before anything runs."""
    with pytest.raises((PermissionError, FileNotFoundError)) as caught:
        PythonReward(file=str(file))
    assert RewardPython.VALIDATE_INPUTS(str(file)) == f"file: {caught.value}"
    assert "Fix: " in str(caught.value)
    return str(caught.value)


# --- what may run ---------------------------------------------------------------------------------------------------

MARK = """
from pathlib import Path
Path(__file__).with_name("it ran").touch()
def score(images, prompts):
    return [0.0] * len(images)
"""


def test_refused_by_default_also_in_a_workflow(small_graph, tmp_path, capsys):
    path, workflow = write(tmp_path, MARK), tmp_path / "workflow.json"
    told = refusal(path)
    assert "no folder is allowed" in told and "OTCA_ALLOW_PYTHON_REWARDS" in told and "--allow-python" in told
    workflow.write_text(json.dumps(graph_with(small_graph, path)))
    assert main(["train", str(workflow), "--output", str(tmp_path / "run")]) == 2
    assert "no folder is allowed" in capsys.readouterr().err
    assert not (tmp_path / "it ran").exists() and not (tmp_path / "run").exists()


def graph_with(small_graph, path):
    graph = small_graph({"OTCA_TrainingRun": {"iterations": 1}})
    graph["70"] = {
        "class_type": "OTCA_RewardPython",
        "inputs": {"file": str(path), "function": "score", "coefficient": 1.0},
    }
    stack = next(entry for entry in graph.values() if entry["class_type"] == "OTCA_RewardStack")
    stack["inputs"]["reward_8"] = ["70", 0]
    return graph


def test_nor_through_a_link_that_cannot_be_checked_beforehand(small_graph, tmp_path):
    """A file name that another node gives is judged when it comes."""
    text = {
        "RETURN_TYPES": ("STRING",),
        "FUNCTION": "give",
        "give": lambda self: (str(tmp_path / "mine.py"),),
        "INPUT_TYPES": classmethod(lambda cls: {"required": {}}),
    }
    graph = graph_with(small_graph, write(tmp_path, MARK))
    graph["71"] = {"class_type": "Text", "inputs": {}}
    graph["70"]["inputs"]["file"] = ["71", 0]
    workflow = Workflow(graph, {**NODE_CLASS_MAPPINGS, "Text": type("Text", (), text)})
    assert not [problem for problem in workflow.validate() if problem.node == "70"]
    with pytest.raises(Exception, match="no folder is allowed"):
        workflow.run(targets=["70"])
    assert not (tmp_path / "it ran").exists()


def test_the_command_line_allows_a_folder(small_graph, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(permissions.PYTHON, str(tmp_path / "another"))
    workflow = tmp_path / "workflow.json"
    workflow.write_text(json.dumps(graph_with(small_graph, write(tmp_path, MARK))))
    assert main(["validate", str(workflow), "--allow-python", str(tmp_path)]) == 0
    assert os.environ[permissions.PYTHON] == os.pathsep.join([str(tmp_path / "another"), str(tmp_path)])
    with pytest.raises(SystemExit):
        main(["validate", str(workflow), "--allow-python", str(tmp_path / "missing")])
    assert "is not a folder" in capsys.readouterr().err


def test_a_file_in_an_allowed_folder(allowed, tmp_path, monkeypatch):
    path = write(allowed)
    assert PythonReward(file="mine.py").path == path == PythonReward(file=str(path)).path
    assert RewardPython.VALIDATE_INPUTS("mine.py") is True
    for name in ("allowed/deeper", "second", "real"):
        (tmp_path / name).mkdir()
    below = write(allowed / "deeper", name="own.py")
    assert PythonReward(file="deeper/own.py").path == below
    (tmp_path / "link").symlink_to(tmp_path / "real")
    several = [str(tmp_path / name) for name in ("allowed", "second", "link")]
    monkeypatch.setenv(permissions.PYTHON, os.pathsep.join(several))
    for folder in ("second", "real"):  # the last one is allowed by a link to it
        other = write(tmp_path / folder, name=f"{folder}.py")
        assert PythonReward(file=other.name).path == other


def test_a_file_outside(allowed, tmp_path):
    path = write(tmp_path, MARK)
    beside, outside = tmp_path / "allowed too", tmp_path / "outside"  # the one begins like the allowed folder
    beside.mkdir(), outside.mkdir()
    text = write(allowed, name="mine.txt")
    for file in (path, "../mine.py", write(beside, MARK), text):
        assert "no .py file in" in refusal(file)
    for file in ("nowhere.py", allowed):
        assert "was not found" in refusal(file)
    (allowed / "link.py").symlink_to(write(outside, MARK))
    (allowed / "folder").symlink_to(outside)
    for name in ("link.py", "folder/mine.py"):
        assert str(outside / "mine.py") in refusal(name)
    assert not list(tmp_path.rglob("it ran"))


# --- what runs ------------------------------------------------------------------------------------------------------


DATACLASS = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True)
class Settings:
    value: float = 2.0

def score(images, prompts):
    return [Settings().value] * len(images)
"""
LENGTH = """
import numpy as np
def score(images, prompts):
    assert images.numpy().dtype == np.float32 and type(prompts) is list
    images.zero_()
    return [len(prompt) for prompt in prompts]
"""


@pytest.mark.parametrize(
    ("text", "scores"), [(BRIGHTNESS, [0.25, 0.75]), (LENGTH, [3.0, 5.0]), (DATACLASS, [2.0, 2.0])]
)
def test_scores_are_the_functions(allowed, text, scores):
    """What it does to its pictures no other reward sees; of a video it scores every frame."""
    write(allowed, text.replace("def score", "def own"))
    images, reward = IMAGES.clone(), PythonReward(file="mine.py", function="own")
    assert score([reward], images, PROMPTS)[:, 0].tolist() == scores
    assert torch.equal(images, IMAGES)
    videos = torch.cat([IMAGES[:, None], 1 - IMAGES[:, None]], 1)  # of mean brightness 0.5
    expected = [0.5, 0.5] if text is BRIGHTNESS else scores
    assert score([reward], videos, PROMPTS)[:, 0].tolist() == pytest.approx(expected)


def test_its_name_is_the_files(allowed):
    write(allowed)
    (reward,) = RewardPython().build(0.5, True, clip="0.375, 1", file="mine.py", function="score")
    assert (reward.name, reward.coefficient, reward.held_out) == ("mine", 0.5, True)
    assert score([reward], IMAGES, PROMPTS)[:, 0].tolist() == [0.375, 0.75]
    assert RewardPython().build(1.0, name="ours", file="mine.py", function="score")[0].name == "ours"


def test_a_changed_file_runs_anew(allowed):
    for value in (1.0, 2.0):  # the same length, within one second: nothing that compiled files remember it by
        write(allowed, f"def score(images, prompts):\n    return [{value}] * len(images)\n")
        assert score([PythonReward(file="mine.py")], IMAGES, PROMPTS)[:, 0].tolist() == [value, value]
    assert not list(allowed.rglob("*.pyc"))


def test_an_unchanged_file_is_loaded_once(allowed):
    write(allowed, "LOADED = []\ndef score(images, prompts):\n    LOADED.append(1)\n    return [len(LOADED)] * 2\n")
    first, second = PythonReward("a", file="mine.py"), PythonReward("b", file="mine.py")
    assert score([first, second], IMAGES, PROMPTS).tolist() == [[1.0, 2.0], [1.0, 2.0]]


def test_the_workflow_runs_the_node_again_when_the_file_changed(small_graph, allowed):
    path = write(allowed)
    workflow = Workflow(graph_with(small_graph, "mine.py"), NODE_CLASS_MAPPINGS)
    first = workflow.run(targets=["70"])["70"][0]
    assert workflow.run(targets=["70"])["70"][0] is first
    path.write_text(BRIGHTNESS + "# changed\n")
    assert workflow.run(targets=["70"])["70"][0] is not first


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "def helper(count):\n    return 1 / (count - 2)\n\ndef score(images, prompts):\n    return helper(len(images))\n",
            "^reward 'mine' failed: {path}, line 2, in helper: ZeroDivisionError",
        ),
        (
            "import json\ndef score(images, prompts):\n    return json.loads('{')\n",
            "{path}, line 3, in score: JSONDecodeError",
        ),
        ("\nimport no_such_package\n", "^{path}, line 2, in <module>: ModuleNotFoundError: .*no_such_package"),
        ("def score(images, prompts:\n    return 1\n", "^{path}: SyntaxError: .*mine\\.py, line 1"),
        ("def aesthetic(images, prompts):\n    return [0.0]\nscore = 3\n", "no function 'score'. Fix: .* aesthetic$"),
        ("def score(images, prompts):\n    return [0.0]\n", "'mine' gave scores of shape .1,. for 2 pictures"),
    ],
    ids=["in a helper", "in what it calls", "an import", "no Python", "no function", "too few scores"],
)
def test_an_error_names_its_line(allowed, text, told):
    path, modules = write(allowed, text), set(sys.modules)
    with pytest.raises(RewardError, match=told.replace("{path}", str(path))):
        score([PythonReward(file="mine.py")], IMAGES, PROMPTS)
    assert set(sys.modules) == modules or not told.startswith("^{path}"), "a file that does not load leaves nothing"


def test_stopping_from_within(allowed):
    write(allowed, "from comfyui_otca.host import stopping\ndef score(images, prompts):\n    stopping.check_stop()\n")
    reward = PythonReward(file="mine.py")
    stopping.request.signal = 2
    with pytest.raises(stopping.Stopped):
        score([reward], IMAGES, PROMPTS)
