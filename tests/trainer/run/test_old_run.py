"""A run that an earlier version wrote (in old_run/, two iterations of version 0.2.0 in November 2026) resumes, and compares.

`undisturbed` beside it is what the same version came to in four iterations without a break.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from comfyui_otca.__main__ import main
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.study import comparison
from comfyui_otca.study.trainings import Training, check_folder
from comfyui_otca.tests.training import untimed
from comfyui_otca.trainer.run.folder import RunError
from comfyui_otca.trainer.workflow import Workflow

OLD = Path(__file__).resolve().parent / "old_run"


@pytest.fixture
def run(tmp_path):
    return Path(shutil.copytree(OLD, tmp_path / "run", ignore=shutil.ignore_patterns("undisturbed.*")))


def figures(*place):
    return [json.loads(line) for line in untimed(*place)]


def test_it_resumes_to_the_figures_of_a_training_without_a_break(run, real_model, capsys):
    assert main(["train", str(run), "--resume", "--iterations", "4", "--device", "cpu"]) == 0
    assert "resuming" in capsys.readouterr().out
    rows, expected = figures(run), figures(OLD, "undisturbed.jsonl")
    assert len(rows) == len(expected) == 4 and rows[:2] == expected[:2]
    # That version asked the untrained model after each update, for the curve of kl/reference; now it is after some. It had
    # no curve of the diversity.
    asked = ("kl/reference", "forwards/all")
    for row, same in zip(rows, expected, strict=True):
        kept = {name: value for name, value in same.items() if name not in asked or "kl/reference" in row}
        plain = {name: value for name, value in row.items() if name in kept or name not in (*asked, "diversity")}
        assert plain == pytest.approx(kept, rel=1e-4, abs=1e-6, nan_ok=True)
    assert ["kl/reference" in row for row in rows] == [True, True, False, False]
    adapter, same = load_file(run / "lora.safetensors"), load_file(OLD / "undisturbed.safetensors")
    assert adapter.keys() == same.keys()
    for name, tensor in same.items():
        torch.testing.assert_close(adapter[name], tensor, rtol=1e-4, atol=1e-6)
    # Its evaluations drew a picture's noise from the seed alone: the curve is there, and says where that has changed.
    before, after = figures(OLD, "evaluation.jsonl"), figures(run, "evaluation.jsonl")
    assert after[: len(before)] == before and [row["noise"] for row in after[len(before) :]] == ["seed and prompt"]
    [change] = figures(run, "changes.jsonl")
    noise = {"node": "Evaluation", "input": "noise by", "before": "seed", "now": "seed and prompt"}
    assert change == {"iteration": after[-1]["iteration"], "changes": [noise]}


def test_it_is_compared_as_a_training_of_its_own_settings(run):
    workflow = Workflow.load(run / "workflow.json", NODE_CLASS_MAPPINGS)
    training = Training("old", 1e-3, 0, run, workflow)
    check_folder(training)
    assert training.finished
    assert comparison.read(run)
    workflow.set("GRPOStep.learning_rate", 0.25)
    with pytest.raises(RunError, match="was trained otherwise: .*learning_rate"):
        check_folder(training)
