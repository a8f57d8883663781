"""A CLIP object of ComfyUI as judge: tiny vision-language models with random weights, asked by `native/judges.py`."""

from __future__ import annotations

import json
import subprocess

import pytest

from comfyui_otca.tests.comfyui import judging
from comfyui_otca.tests.comfyui.server import ROOT, ComfyUI
from comfyui_otca.tests.training import rows


@pytest.fixture
def able(inside):
    """A ComfyUI whose text encoders write answers."""
    if inside.installation.version.startswith("0.3."):
        pytest.skip("this ComfyUI's text encoders write no answers")
    return inside


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "head"])
@pytest.mark.parametrize("family", ["Qwen3VL", "Qwen35"])
def test_the_chance_of_yes_is_that_of_transformers(able, family, tied):
    found = able.ask("as_transformers", family, tied=tied)
    assert found["batched"] == pytest.approx(found["transformers"], abs=1e-5)
    assert found["batched"] == pytest.approx(found["single"], abs=1e-5)
    assert max(found["single"][:3]) - min(found["single"][:3]) > 1e-3, "the picture matters"
    assert found["left"] == [], "ComfyUI's object is as it was"


@pytest.mark.parametrize("large", [False, True], ids=["4B", "12B"])
def test_gemmas_chance_of_yes_is_that_of_transformers(able, large):
    found = able.ask("gemma_as_transformers", large=large)
    assert found["batched"] == pytest.approx(found["transformers"], abs=1e-4)
    assert found["batched"] == pytest.approx(found["single"], abs=1e-5)
    assert max(found["single"][:3]) - min(found["single"][:3]) > 1e-3, "the picture matters"
    assert found["hooks"] == 0, "ComfyUI's object is as it was"


def test_a_picture_is_looked_at_once_however_often_it_is_compared(able):
    assert able.ask("looks", "Qwen3VL")["looks"] == 4


def test_a_broken_picture_loses_none_of_the_others_and_stop_loses_nothing(able):
    found = able.ask("scored")
    assert max(found["whole"]) - min(found["whole"]) > 0.1 and 0 < min(found["whole"]) < max(found["whole"]) < 1
    others = [-1 if number == 3 else value for number, value in enumerate(found["whole"])]
    assert found["others"] == pytest.approx(others, abs=1e-6)
    assert found["stopped"] and found["asked"] == [6, 10], "what was scored before Stop is not asked again"
    assert found["again"] == pytest.approx(found["whole"], abs=1e-6)


@pytest.mark.parametrize(("command", "count"), [("score", 3), ("eval", 4)])
def test_the_commands_ask_a_judge_from_a_file_that_comfyui_loads(able, tmp_path, command, count):
    found = able.ask("by_command", command=command, folder=str(tmp_path))
    assert found["code"] == 0 and found["loaded"], "by ComfyUI, from the file that was named"
    assert len(found["found"]) == count and found["found"] == pytest.approx(found["itself"], abs=1e-5)
    assert max(found["found"]) - min(found["found"]) > 1e-3, "the pictures matter"


def test_a_judges_file_that_is_not_there_is_said_with_its_folders(able):
    told = able.ask("no_file")["told"]
    assert told.startswith("'nowhere.safetensors' is neither a file nor in ") and "text_encoders" in told
    assert "Fix: put it there" in told


def test_it_is_held_out_in_a_headless_training(able, small_graph, tmp_path):
    """`otca train` in ComfyUI's own Python, with the tiny judge as a pack of ComfyUI's."""
    for name in ("custom_nodes", "output"):
        (tmp_path / "base" / name).mkdir(parents=True)
    (tmp_path / "base" / "custom_nodes" / "tiny_judge").symlink_to(judging.__path__[0], target_is_directory=True)
    graph = small_graph({"OTCA_TrainingRun": {"iterations": 2, "evaluate_every": 2, "evaluation_seeds": 1}})
    asked = {"url": "", "model": "", "questions": "Is this {prompt}?", "held_out": True, "judge": ["80", 0]}
    graph["80"] = {"class_type": "TinyJudge", "inputs": {}}
    graph["81"] = {"class_type": "OTCA_RewardVLMJudge", "inputs": asked}
    [stack] = [entry["inputs"] for entry in graph.values() if entry["class_type"] == "OTCA_RewardStack"]
    stack["reward_8"] = ["81", 0]
    (tmp_path / "workflow.json").write_text(json.dumps(graph))
    place = able.installation
    environment = ComfyUI.environment() | {"OMP_NUM_THREADS": "1"}
    environment["COMFYUI_ARGUMENTS"] = f"--base-directory {tmp_path / 'base'}"
    command = [
        place.python,
        ROOT,
        "train",
        tmp_path / "workflow.json",
        "--device",
        "cpu",
        "--output",
        tmp_path / "run",
        "--comfyui",
        place.folder,
        "--custom-nodes",
        "tiny_judge",
    ]
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    steps, evaluations = rows(tmp_path / "run"), rows(tmp_path / "run", "evaluation.jsonl")
    assert all(0 < row["held_out/vlm_judge/mean"] < 1 for row in steps) and len(steps) == 2
    judged = [row["rewards"]["vlm_judge"] for row in evaluations]
    assert [row["held_out"] for row in judged] == [True] * len(evaluations) and len(evaluations) == 2
    assert all(0 < value < 1 for row in judged for value in row["values"])


def test_it_leaves_when_room_is_made_and_between_uses_where_it_shall(able):
    found = able.ask("leaves")
    assert (found["asked"], found["room"], found["offload"]) == (True, False, False)


def test_a_question_that_is_not_answered_is_said_with_the_answer(able):
    found = able.ask("unanswered")
    assert (
        "2 of 2 questions are not answered: question 0: yes or no is only 0.00 probable, and it would"
        in found["indifferent"]
    )
    assert "question 0: the model's numbers are NaN" in found["nan"]


def test_text_encoders_that_cannot_answer_are_refused_by_name(able):
    found = able.ask("refused_judges")
    reasons = {
        "klein": "judge: the text encoder of Flux2 (Qwen3_4B) reads text alone",
        "Ideogram 4": "judge: the text encoder of Ideogram4 (Qwen3_8B) reads text alone",
        "MiniMax H3": "judge: the text encoder of MiniMaxH3 (MiniMaxQwen3VL) is cut off before its last layers",
        "Qwen-Image": "judge: the text encoder of QwenImage (Qwen25_7BVLI) was published with a head of its own",
        "SD3": "judge: the text encoder of SD3 only encodes text",
    }
    for name, reason in reasons.items():
        assert found[name].startswith(reason) and "Fix: load Qwen3-VL 4B or 8B, Qwen3.5" in found[name]


def test_an_old_comfyui_is_told_so(inside):
    if not inside.installation.version.startswith("0.3."):
        pytest.skip("this ComfyUI's text encoders write answers")
    assert "Fix: ComfyUI 0.33 or newer" in inside.ask("too_old", "Flux")["told"]
