"""A training whose rewards score nothing says so, instead of running to its end and exit code 0."""

from __future__ import annotations

import json
import math

import pytest
import torch

from comfyui_otca.__main__ import main
from comfyui_otca.canvas import results
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.rewards.base import FAILED, LEFT_OUT, Reward, as_column, nothing_to_learn, score, score_stack
from comfyui_otca.trainer.workflow.running import NodeError, Workflow

REWARD = "def score(images, prompts):\n    return {}\n"
NAN = "[float('nan')] * len(prompts)"
NONE = "[None] * len(prompts)"
GOOD = "images.mean((1, 2, 3))"


@pytest.fixture
def judged(small_graph, tmp_path, monkeypatch):
    """judged(class={input: value}): a graph, the file of its Python reward `mine`, and the inputs of its Reward Stack."""
    monkeypatch.setenv("OTCA_ALLOW_PYTHON_REWARDS", str(tmp_path))
    few = {"OTCA_SDESampler": {"group_size": 2, "steps": 2}, "OTCA_PromptDataset": {"prompts_per_iteration": 1}}

    def make(**changes):
        content, file = small_graph({**few, **changes}), tmp_path / "mine.py"
        inputs = {"file": str(file), "function": "score", "coefficient": 1.0}
        content["mine"] = {"class_type": "OTCA_RewardPython", "inputs": inputs}
        [stack] = [entry["inputs"] for entry in content.values() if entry["class_type"] == "OTCA_RewardStack"]
        return content, file, stack

    return make


@pytest.fixture
def trained(judged, tmp_path, capsys):
    """trained(what the reward returns, *arguments): exit code, what was said, and the run's status; 5 iterations."""
    few = {"iterations": 5, "evaluation_seeds": 1, "evaluation_prompts": "a red circle"}
    content, file, stack = judged(OTCA_TrainingRun=few)
    stack["reward_8"] = ["mine", 0]
    path, run = tmp_path / "graph.json", tmp_path / "run"
    path.write_text(json.dumps(content))

    def go(returns, *arguments):
        file.write_text(REWARD.format(returns))
        code = main(["train", str(path), "--output", str(run), *arguments])
        assert run.is_dir(), capsys.readouterr().err
        rows = (run / "metrics.jsonl").read_text().splitlines()
        return code, capsys.readouterr().err, json.loads((run / "status.json").read_text()), len(rows)

    return go


def test_three_iterations_without_a_score_end_the_run_and_a_repair_goes_on(trained):
    code, said, status, rows = trained(NAN)
    assert (code, rows, status["status"]) == (1, 3, "failed")
    told = said.splitlines()[-1]
    assert "Training Run" in told and "'mine'" in told and "3 iterations" in told and "Fix: " in told
    assert "'mine'" in status["error"]
    code, _, status, rows = trained(GOOD, "--resume")
    assert (code, rows, status["status"]) == (0, 5, "finished")


def test_what_is_left_out_on_purpose_ends_nothing(trained):
    code, said, status, rows = trained(NONE)
    assert (code, rows, status["status"]) == (0, 5, "finished")
    assert "mine" not in said


def test_what_applies_to_nothing_ends_the_run_after_three_iterations(judged, tmp_path, capsys):
    content, file, stack = judged(OTCA_TrainingRun={"iterations": 5, "evaluate_every": 0})
    trajectories = stack["trajectories"]
    stack.clear()
    stack.update(trajectories=trajectories, reward_1=["mine", 0])
    file.write_text(REWARD.format(NONE))
    (tmp_path / "graph.json").write_text(json.dumps(content))
    assert main(["train", str(tmp_path / "graph.json"), "--output", str(tmp_path / "run")]) == 1
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    assert (
        "'mine' applies to no sample in the last 3 iterations, so nothing was learned. Fix: give prompts"
        in capsys.readouterr().err
    )


def test_on_the_canvas_the_node_says_so_until_it_is_mended(judged, tmp_path, monkeypatch, comfyui):
    monkeypatch.setattr(results, "picture", lambda draw: None)
    content, file, stack = judged()
    trajectories = stack["trajectories"]
    stack.clear()
    stack.update(trajectories=trajectories, reward_1=["mine", 0])
    workflow = Workflow(content, NODE_CLASS_MAPPINGS)

    def queue(iteration):
        with torch.inference_mode():
            workflow.run({(node, name): value + iteration for node, name, value in workflow.advancing()})
        return json.loads((tmp_path / "files" / "otca" / "otca" / "status.json").read_text())["status"]

    file.write_text(REWARD.format(NAN))
    assert [queue(0), queue(1)] == ["idle", "idle"]
    with pytest.raises(NodeError, match=r"Training Run.*'mine'.*3 iterations.*Fix: "):
        queue(2)
    assert json.loads((tmp_path / "files" / "otca" / "otca" / "status.json").read_text())["status"] == "failed"
    file.write_text(REWARD.format(GOOD))
    assert queue(3) == "idle"


class Fixed(Reward):
    def __init__(self, values, name):
        super().__init__(name)
        self.values = values

    def score(self, images, prompts):
        return self.values


def scores(*columns):
    rewards = [Fixed(column, f"r{number}") for number, column in enumerate(columns)]
    samples = len(columns[0])
    return score_stack(rewards, torch.zeros(samples, 2, 2, 3), ["a"], torch.zeros(samples, dtype=torch.long))


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ([[1.0, 2.0]], None),
        ([[1.0, math.nan]], None),  # one sample is enough to go on
        ([[math.nan, math.nan]], "'r0' gave no score"),
        ([[1.0, 2.0], [math.nan, math.nan]], "'r1' gave no score"),
        ([[1.0, math.nan], [math.nan, 1.0]], "'r0' and 'r1' gave no score"),  # each works, and no sample has both
        ([[None, None]], "'r0' applies to no sample"),
        ([[None, None], [None, None]], "'r0' and 'r1' applies to no sample"),
        ([[None, math.nan]], "'r0' gave no score"),  # of what it applies to, nothing was scored
        ([[None, 1.0], [1.0, None]], None),  # each sample has what applies to it
        ([[None, math.nan], [1.0, 1.0]], None),
        ([[None, None], [math.nan, math.nan]], "'r1' gave no score"),
        ([[math.inf, -math.inf]], "'r0' gave no score"),  # a division by zero is no purpose
    ],
)
def test_why_a_batch_cannot_be_learned_from(columns, why):
    reason, _ = nothing_to_learn(scores(*columns)) or (None, "")
    assert why is reason or why in reason


def test_marks_survive_bounds_and_no_score_becomes_one():
    reward = Fixed([None, math.nan, 20.0, math.inf], "r")
    reward.bounds = (0.0, 5.0)
    values = score_stack([reward], torch.zeros(4, 2, 2, 3), ["a"], torch.zeros(4, dtype=torch.long)).values[:, 0]
    assert values[0] == LEFT_OUT and values[1].isnan() and values[2] == 5.0 and values[3].isnan()
    assert score([reward], torch.zeros(4, 2, 2, 3), ["a"] * 4)[:, 0].isnan().tolist() == [True, True, False, True]
    assert math.isnan(FAILED) and as_column([None])[0] == LEFT_OUT


def test_a_video_is_left_out_where_its_frames_are():
    videos = torch.zeros(2, 3, 2, 2, 3)
    reward = Fixed([None, None, None, 1.0, 2.0, 3.0], "r")
    values = score_stack([reward], videos, ["a", "b"], torch.arange(2)).values[:, 0]
    assert values.tolist() == [LEFT_OUT, 2.0]
