"""A judge that a CLIP answers for, in a whole training: held out, it decides whether a brake ends the run."""

from __future__ import annotations

import json

import pytest

from comfyui_otca.tests.training import rows, train
from comfyui_otca.trainer.networks.answers import Reading
from comfyui_otca.trainer.rewards import clip_judge

# P(yes) in each evaluation, of four pictures: it stands best after iteration 1, and declines twice.
CHANCES = (0.5, 0.8, 0.6, 0.4)
LITTLE = 0.01  # more for each next picture, so that they differ


class Clip:
    """What ComfyUI's loader gives."""

    RETURN_TYPES, FUNCTION = ("CLIP",), "load"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def load(self):
        return (iter(CHANCES),)


class Scripted:
    """Answers the two prompts and two seeds of an evaluation by the script, and the six pictures of an iteration by a half."""

    def __init__(self, clip):
        self.left = clip

    def ask(self, asked, choices, batch_size=0):
        assert choices == ("yes", "no")
        chance = next(self.left) if len(asked) == 4 else 0.5
        yield {n: Reading((chance + LITTLE * n, 1 - chance - LITTLE * n)) for n in range(len(asked))}

    def leave(self):
        pass


@pytest.fixture
def workflow(small_workflow, monkeypatch):
    monkeypatch.setattr(clip_judge, "Answers", Scripted)
    run = {"evaluate_every": 1, "checkpoint_every": 100, "iterations": 6, "stop_after_decline": 2}
    made = small_workflow({"OTCA_TrainingRun": run, "OTCA_GRPOStep": {"learning_rate": 1e-3}}, {"Clip": Clip})
    graph = made.graph
    [stack] = [entry["inputs"] for entry in graph.values() if entry["class_type"] == "OTCA_RewardStack"]
    asked = {"url": "", "model": "", "questions": "Is this {prompt}?", "held_out": True, "judge": ["clip", 0]}
    graph["clip"] = {"class_type": "Clip", "inputs": {}}
    graph["judge"] = {"class_type": "OTCA_RewardVLMJudge", "inputs": asked}
    stack["reward_8"] = ["judge", 0]
    for name in [name for name, link in stack.items() if name.startswith("reward_") and link[0] != "judge"]:
        graph[stack[name][0]]["inputs"]["held_out"] = False  # the judge alone decides
    return type(made)(graph, made.node_classes)


def test_it_is_the_verdict_by_which_a_brake_ends_the_run(workflow, tmp_path):
    said = []
    assert train(workflow, tmp_path / "run", say=said.append) == 0
    told = (
        "vlm_judge, which is held out, has declined for 2 evaluations in a row: from 0.815 at iteration 1 to 0.415 at 3"
    )
    assert told in "\n".join(said)
    assert len(rows(tmp_path / "run")) == 3, "three of six iterations"
    best = json.loads((tmp_path / "run" / "best" / "best.json").read_text())
    assert (best["metric"], best["iteration"]) == ("evaluation/vlm_judge", 1)
    judged = [row["rewards"]["vlm_judge"] for row in rows(tmp_path / "run", "evaluation.jsonl")][:4]
    assert [row["mean"] for row in judged] == pytest.approx([chance + 1.5 * LITTLE for chance in CHANCES])
    assert all(row["held_out"] for row in judged)
