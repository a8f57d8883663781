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


def test_refused_by_default(tmp_path):
    told = refusal(write(tmp_path, MARK))
    assert "no folder is allowed" in told
    assert "OTCA_ALLOW_PYTHON_REWARDS" in told and "--allow-python" in told
    assert not (tmp_path / "it ran").exists()


def graph_with(small_graph, path):
    graph = small_graph({"OTCA_TrainingRun": {"iterations": 1}})
    graph["70"] = {
        "class_type": "OTCA_RewardPython",
        "inputs": {"file": str(path), "function": "score", "coefficient": 1.0},
    }
    stack = next(entry for entry in graph.values() if entry["class_type"] == "OTCA_RewardStack")
    stack["inputs"]["reward_8"] = ["70", 0]
    return graph


def test_a_workflow_alone_runs_nothing(small_graph, tmp_path, capsys):
    path = write(tmp_path, MARK)
    workflow = tmp_path / "workflow.json"
    workflow.write_text(json.dumps(graph_with(small_graph, path)))
    assert main(["train", str(workflow), "--output", str(tmp_path / "run")]) == 2
    assert "no folder is allowed" in capsys.readouterr().err
    assert not (tmp_path / "it ran").exists() and not (tmp_path / "run").exists()


def test_nor_through_a_link_that_cannot_be_checked_beforehand(small_graph, tmp_path):
    """A file name that another node gives is judged when it comes."""

    class Text:
        RETURN_TYPES, FUNCTION = ("STRING",), "give"

        @classmethod
        def INPUT_TYPES(cls):
            return {"required": {}}

        def give(self):
            return (str(tmp_path / "mine.py"),)

    path = write(tmp_path, MARK)
    graph = graph_with(small_graph, path)
    graph["71"] = {"class_type": "Text", "inputs": {}}
    graph["70"]["inputs"]["file"] = ["71", 0]
    workflow = Workflow(graph, {**NODE_CLASS_MAPPINGS, "Text": Text})
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
    assert "is no folder" in capsys.readouterr().err


def test_a_file_in_an_allowed_folder(allowed, tmp_path, monkeypatch):
    path = write(allowed)
    assert PythonReward(file="mine.py").path == path == PythonReward(file=str(path)).path
    assert RewardPython.VALIDATE_INPUTS("mine.py") is True
    (allowed / "deeper").mkdir()
    below = write(allowed / "deeper", name="own.py")
    assert PythonReward(file="deeper/own.py").path == below
    second = tmp_path / "second"
    second.mkdir()
    monkeypatch.setenv(permissions.PYTHON, os.pathsep.join([str(allowed), str(second)]))
    other = write(second, name="other.py")
    assert PythonReward(file="other.py").path == other


def test_a_file_outside(allowed, tmp_path):
    path = write(tmp_path, MARK)
    assert "no .py file in" in refusal(path)
    assert "no .py file in" in refusal("../mine.py")
    assert "was not found" in refusal("nowhere.py")
    assert "was not found" in refusal(allowed)
    beside = tmp_path / "allowed too"  # begins like the allowed folder
    beside.mkdir()
    assert "no .py file in" in refusal(write(beside, MARK))
    assert not list(tmp_path.rglob("it ran"))


def test_a_link_out_of_the_folder(allowed, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (allowed / "link.py").symlink_to(write(outside, MARK))
    (allowed / "folder").symlink_to(outside)
    for name in ("link.py", "folder/mine.py"):
        assert str(outside / "mine.py") in refusal(name)
    assert not list(outside.rglob("it ran"))


def test_an_allowed_folder_may_itself_be_a_link(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv(permissions.PYTHON, str(tmp_path / "link"))
    path = write(tmp_path / "real")
    assert PythonReward(file="mine.py").path == path


def test_another_kind_of_file(allowed):
    assert "no .py file" in refusal(write(allowed, name="mine.txt"))


# --- what runs ------------------------------------------------------------------------------------------------------


def test_scores_are_the_functions(allowed):
    write(allowed)
    assert score([PythonReward(file="mine.py")], IMAGES, PROMPTS)[:, 0].tolist() == [0.25, 0.75]
    write(
        allowed,
        """
        import numpy as np
        def length(images, prompts):
            assert images.numpy().dtype == np.float32 and type(prompts) is list
            return [len(prompt) for prompt in prompts]
        """,
        "other.py",
    )
    assert score([PythonReward(file="other.py", function="length")], IMAGES, PROMPTS)[:, 0].tolist() == [3.0, 5.0]


def test_of_videos_it_is_the_mean_over_frames(allowed):
    write(allowed)
    videos = torch.linspace(0, 1, 5)[None, :, None, None, None].expand(2, 5, 4, 4, 3)
    assert score([PythonReward(file="mine.py")], videos, PROMPTS)[:, 0].tolist() == pytest.approx([0.5, 0.5])


def test_what_it_does_to_its_pictures_nobody_else_sees(allowed):
    write(allowed, "def score(images, prompts):\n    images.zero_()\n    return [1.0] * len(images)\n")
    images = IMAGES.clone()
    score([PythonReward(file="mine.py")], images, PROMPTS)
    assert torch.equal(images, IMAGES)


def test_its_name_is_the_files(allowed):
    write(allowed)
    assert PythonReward(file="mine.py").name == "mine"
    (reward,) = RewardPython().build(0.5, True, rescale=2.0, clip="0, 1", file="mine.py", function="score")
    assert (reward.name, reward.coefficient, reward.held_out) == ("mine", 0.5, True)
    assert score([reward], IMAGES, PROMPTS)[:, 0].tolist() == [0.5, 1.0]
    assert RewardPython().build(1.0, name="ours", file="mine.py", function="score")[0].name == "ours"


def test_a_file_may_define_dataclasses(allowed):
    text = """
    from __future__ import annotations
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Settings:
        value: float = 2.0

    def score(images, prompts):
        return [Settings().value] * len(images)
    """
    write(allowed, text)
    assert score([PythonReward(file="mine.py")], IMAGES, PROMPTS)[:, 0].tolist() == [2.0, 2.0]


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


def test_an_error_names_its_line(allowed):
    text = """
    def helper(count):
        return 1 / (count - 2)

    def score(images, prompts):
        return [helper(len(images))] * len(images)
    """
    path = write(allowed, text)
    with pytest.raises(RewardError) as caught:
        score([PythonReward(file="mine.py")], IMAGES, PROMPTS)
    assert f"reward 'mine' failed: {path}, line 3, in helper: ZeroDivisionError" in str(caught.value)


def test_an_error_of_what_it_calls_names_its_own_line(allowed):
    path = write(allowed, "import json\ndef score(images, prompts):\n    return json.loads('{')\n")
    with pytest.raises(RewardError, match=f"{path}, line 3, in score: JSONDecodeError"):
        score([PythonReward(file="mine.py")], IMAGES, PROMPTS)


def test_an_error_while_loading(allowed):
    modules = set(sys.modules)
    path = write(allowed, "\nimport no_such_package\n")
    with pytest.raises(RewardError, match=f"{path}, line 2, in <module>: ModuleNotFoundError: .*no_such_package"):
        PythonReward(file="mine.py")
    write(allowed, "def score(images, prompts:\n    return 1\n")
    with pytest.raises(RewardError, match=r"mine\.py: SyntaxError: .*mine\.py, line 1"):
        PythonReward(file="mine.py")
    assert set(sys.modules) == modules


def test_a_function_that_is_not_there(allowed):
    write(allowed, "def aesthetic(images, prompts):\n    return [0.0]\nscore = 3\n")
    with pytest.raises(RewardError, match=r"has no function 'score'. Fix: .* aesthetic$"):
        PythonReward(file="mine.py")


def test_a_wrong_number_of_scores(allowed):
    write(allowed, "def score(images, prompts):\n    return [0.0]\n")
    with pytest.raises(RewardError, match="'mine' gave scores of shape .1,. for 2 pictures"):
        score([PythonReward(file="mine.py")], IMAGES, PROMPTS)


def test_stopping_from_within(allowed):
    write(allowed, "from comfyui_otca.host import stopping\ndef score(images, prompts):\n    stopping.check_stop()\n")
    reward = PythonReward(file="mine.py")
    stopping.request.signal = 2
    with pytest.raises(stopping.Stopped):
        score([reward], IMAGES, PROMPTS)
