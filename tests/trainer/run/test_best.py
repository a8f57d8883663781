"""The best evaluation and a decline that lasts, by hand; and runs that keep the one and end by the other."""

from __future__ import annotations

import json
import logging
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file

from comfyui_otca.__main__ import main
from comfyui_otca.canvas import results
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.processes import together
from comfyui_otca.tests.training import rows, train
from comfyui_otca.trainer.rewards import pixels, shapes
from comfyui_otca.trainer.run import checkpoint, opening, verdicts
from comfyui_otca.trainer.workflow.running import NodeError, Workflow


def evaluation(iteration, prompts=("a", "b", "c"), **values):
    """A row of evaluation.jsonl; rewards whose name begins with h are held out."""
    rewards = {}
    for name, own in values.items():
        mean = sum(own) / len(own)
        std = math.sqrt(sum((v - mean) ** 2 for v in own) / (len(own) - 1)) if len(own) > 1 else 0.0
        rewards[name] = {"mean": mean, "std": std, "held_out": name[0] == "h", "values": list(own)}
    return {"iteration": iteration, "prompts": list(prompts), "rewards": rewards}


# --- the best ---------------------------------------------------------------------------------------------------------


def test_the_value_of_a_reward_is_its_mean():
    rows = [evaluation(0, r=[1, 3], h=[5, 5]), evaluation(2, r=[2, 4], h=[7, 8])]
    assert verdicts.metric_value(rows, rows[1], "evaluation/r") == 3
    assert verdicts.metric_value(rows, rows[1], "evaluation/h") == 7.5
    rows[1]["rewards"]["r"]["mean"] = math.nan
    assert verdicts.metric_value(rows, rows[1], "evaluation/r") is None
    rows[1]["rewards"]["r"]["mean"] = None  # as it is read back
    assert verdicts.metric_value(rows, rows[1], "evaluation/r") is None


def test_the_sum_is_in_units_before_training():
    # r: 2 ± √2 to 5; s: 10 ± 4 to 8; a reward that is held out, and one without a spread, have no part in it.
    before = evaluation(0, r=[1, 3], s=[10 - 2 * math.sqrt(2), 10 + 2 * math.sqrt(2)], flat=[1, 1], h=[0, 1])
    after = evaluation(4, r=[4, 6], s=[7, 9], flat=[9, 9], h=[9, 9])
    rows = [before, after]
    assert verdicts.metric_value(rows, after, "evaluation/sum") == pytest.approx(3 / math.sqrt(2) - 2 / 4)
    assert verdicts.metric_value(rows, before, "evaluation/sum") == 0
    assert verdicts.metric_value(rows[1:], after, "evaluation/sum") is None, "nothing to compare with"
    after["rewards"]["s"]["mean"] = None
    assert verdicts.metric_value(rows, after, "evaluation/sum") is None
    single = [evaluation(0, prompts=("a",), r=[1]), evaluation(4, prompts=("a",), r=[2])]
    assert verdicts.metric_value(single, single[1], "evaluation/sum") is None, "one picture has no spread"


def kept_in_turn(rows, metric="evaluation/r", kept=None):
    """best.json after each evaluation since training began."""
    for end in range(2, len(rows) + 1):
        new = verdicts.last_evaluation(rows[:end], metric)
        kept = new if verdicts.is_better(rows[:end], new, kept) else kept
        yield kept


def test_the_best_is_the_first_of_the_highest_since_training_began():
    rows = [evaluation(i, r=[mean, mean]) for i, mean in ((0, 9), (5, 1), (10, 3), (15, 3), (20, 2))]
    rows.append(evaluation(25, prompts=("other", "b"), r=[0, 0]))
    assert [kept["iteration"] for kept in kept_in_turn(rows)] == [5, 10, 10, 10, 25], (
        "the untrained model is nobody's adapter, and other prompts are another scale"
    )
    figures = verdicts.last_evaluation(rows[:3], "evaluation/r")
    assert figures == {"metric": "evaluation/r", "value": 3, "iteration": 10, "before_training": 9}
    rows[2]["rewards"]["r"]["mean"] = None
    assert verdicts.last_evaluation(rows[:3], "evaluation/r") is None


def test_what_is_kept_must_be_on_record():
    rows = [evaluation(i, r=[mean, mean]) for i, mean in ((0, 9), (5, 1), (10, 3))]
    kept = verdicts.last_evaluation(rows, "evaluation/r")
    assert verdicts.is_on_record(rows, kept)
    assert not verdicts.is_on_record(rows[:2], kept), "it is ahead of the run"
    assert not verdicts.is_on_record(rows, {**kept, "value": 3.5}), "another training's"


def test_names_that_are_known():
    for metric in ("evaluation/sum", "evaluation/clip_t"):
        verdicts.check_metric({"best_metric": metric}, ["clip_t"])
    for metric in ("clip_t", "evaluation/clip", "reward/clip_t/mean"):
        with pytest.raises(ValueError, match="Fix: one of evaluation/sum, evaluation/clip_t, evaluation/h, or empty"):
            verdicts.check_metric({"best_metric": metric}, ["clip_t", "h"])


# --- a decline --------------------------------------------------------------------------------------------------------


def declining(*differences, start=(10.0, 20.0, 30.0)):
    """Evaluations that differ from the first, pair by pair, by so much."""
    rows = [evaluation(0, h=start)]
    return rows + [
        evaluation(i, h=[s + d for s, d in zip(start, own, strict=True)]) for i, own in enumerate(differences, 1)
    ]


@pytest.mark.parametrize(
    ("differences", "declined"),
    [
        ((-1, -1, -1), True),
        ((-1, -2, 0), True),  # mean -1, standard error 1/√3 = 0.577
        ((-3, 0, 0), False),  # mean -1, standard error √3/√3 = 1: not below it by more
        ((-3.1, -0.1, 0), True),  # mean -1.067, standard error 1.01
        ((1, 1, 1), False),
        ((0, 0, 0), False),
    ],
)
def test_one_evaluation_by_hand(differences, declined):
    """The spread among prompts, from 10 to 30, says nothing of the differences."""
    assert (verdicts.early_stop(declining(differences), 1) is not None) == declined


def test_so_many_in_a_row():
    down, up, little = (-2, -2, -1), (1, 1, 2), (-3, 0, 0)
    rows = declining(up, down, down, down)
    told = verdicts.early_stop(rows, 3)
    assert (
        told == "h, which is held out, has declined for 3 evaluations in a row: from 21.3 at iteration 1 to 18.3 at 4"
    )
    assert verdicts.early_stop(rows, 4) is None and verdicts.early_stop(rows, 0) is None
    assert verdicts.early_stop(declining(down, down, little), 3) is None, "the last did not"
    assert verdicts.early_stop(declining(down, little, down), 2) is None
    assert verdicts.early_stop(declining(down, down), 3) is None, "too few"
    assert verdicts.early_stop([], 1) is None


def test_of_one_and_the_same_reward():
    start, down = [1, 2, 3], [0, 1, 2]
    rows = [evaluation(0, h1=start, h2=start, r=start), evaluation(1, h1=down, h2=start, r=down)]
    assert verdicts.early_stop([*rows, evaluation(2, h1=start, h2=down, r=down)], 2) is None
    assert verdicts.early_stop([*rows, evaluation(2, h1=down, h2=down, r=down)], 2).startswith("h1, ")


def test_what_cannot_be_compared_is_no_decline():
    rows = declining((-2, -2, -2))
    assert verdicts.early_stop([rows[0], evaluation(1, prompts=("other",), h=[0, 0, 0])], 1) is None
    single = [evaluation(0, h=[5]), evaluation(1, h=[1])]
    assert verdicts.early_stop(single, 1) is None, "one pair has no standard error"
    rows = declining((-2, -2, -2))
    rows[1]["rewards"]["h"]["values"] = [None, 18.0, math.nan]
    assert verdicts.early_stop(rows, 1) is None
    rows[1]["rewards"]["h"]["values"] = [None, 18.0, 28.0]
    assert verdicts.early_stop(rows, 1) is not None


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scripted(monkeypatch):
    """scripted(sharpness, accuracy): what these rewards give in each evaluation, plus a little that differs by picture."""

    def script(sharpness, accuracy):
        for cls, means in ((pixels.Sharpness, sharpness), (shapes.ShapesAccuracy, accuracy)):
            left = iter(means)

            def score(self, images, prompts, left=left):
                if len(images) != 4:  # not the two prompts and two seeds of an evaluation, but a group of six
                    return torch.arange(len(images)).float()
                return next(left) + 0.01 * torch.arange(len(images))

            monkeypatch.setattr(cls, "score", score)

    return script


RUN = {"evaluate_every": 1, "checkpoint_every": 100, "iterations": 6}


@pytest.fixture
def run(small_workflow, tmp_path):
    """run(best_metric=…): a training that evaluates after every iteration, in one folder; returns what it said."""

    def go(resume=False, ema_decay=0.5, **changes):
        said = []
        step = {"learning_rate": 1e-3, "ema_decay": ema_decay}
        workflow = small_workflow({"OTCA_TrainingRun": {**RUN, **changes}, "OTCA_GRPOStep": step})
        assert train(workflow, tmp_path / "run", resume=resume, say=said.append) == 0
        return "\n".join(said)

    return go


SHARPNESS = {"best_metric": "evaluation/sharpness"}


def best(folder):
    return json.loads((folder / "best" / "best.json").read_text())


def keep(folder):
    return best(folder)["metric"].removeprefix("evaluation/"), best(folder)["iteration"]


def status(folder):
    return json.loads((folder / "status.json").read_text())


@pytest.mark.parametrize("ema_decay", [0.0, 0.5])
def test_the_best_adapter_is_kept(scripted, run, load_toy, tmp_path, ema_decay):
    scripted([5.0, 1.0, 3.0, 2.0], [0.5] * 4)
    folder = tmp_path / "run"
    said = run(ema_decay=ema_decay, iterations=3, checkpoint_every=1, keep_checkpoints=5, **SHARPNESS)
    assert keep(folder) == ("sharpness", 2)
    figures = best(folder)
    assert figures["value"] == pytest.approx(3.015) and figures["before_training"] == pytest.approx(5.015)
    assert "best: evaluation/sharpness 3.015 at iteration 2, 5.015 before training" in said
    # The evaluated weights: of the average where there is one; the file's B holds alpha/rank, which is 1.
    kept = load_file(folder / "best" / "lora.safetensors")
    place = folder / "checkpoints" / "000002"
    expected = load_file(place / "adapter.safetensors")
    if ema_decay:
        average = load_file(place / "ema.safetensors")
        names = list(load_toy().policy.trainable_named())
        assert set(expected) == set(names)
        expected = dict(zip(names, [average[key] for key in sorted(average)], strict=True))
    for name, tensor in expected.items():
        key = "transformer." + name.replace(".default", "")
        assert torch.equal(kept[key], tensor), name
    assert not torch.equal(kept[key], load_file(folder / "lora.safetensors")[key])
    assert sorted(path.name for path in (folder / "best").iterdir()) == [".otca", "best.json", "lora.safetensors"]


def test_a_resumed_run_keeps_the_best_of_before_and_by_another_metric_lets_it_go(scripted, run, tmp_path, caplog):
    """accuracy was highest at 1, when sharpness decided: that adapter is nowhere, so nothing says that it is."""
    scripted([5.0, 1.0, 3.0, 2.0, 2.0], [0.5, 0.9, 0.6, 0.65, 0.7])
    folder = tmp_path / "run"
    run(iterations=2, **SHARPNESS)
    assert keep(folder) == ("sharpness", 2)
    said = run(resume=True, iterations=3, **SHARPNESS)
    assert keep(folder) == ("sharpness", 2) and "is deleted" not in caplog.text
    assert "best: evaluation/sharpness 3.015 at iteration 2" in said
    said = run(resume=True, iterations=4, best_metric="evaluation/accuracy")
    assert f"{folder / 'best'} is deleted, with the best by evaluation/sharpness" in caplog.text
    assert "best_metric is evaluation/accuracy now" in caplog.text
    assert keep(folder) == ("accuracy", 4) and "best: evaluation/accuracy 0.715 at iteration 4" in said
    adapters = [load_file(folder / place / "lora.safetensors") for place in (".", "best")]
    assert all(torch.equal(adapters[0][key], adapters[1][key]) for key in adapters[0]), "the one of iteration 4"


def test_a_best_that_is_ahead_of_the_checkpoint_is_let_go(scripted, run, tmp_path, caplog):
    scripted([5.0, 1.0, 2.0, 3.0, 1.5], [0.5] * 9)
    folder, options = tmp_path / "run", {"iterations": 3, "checkpoint_every": 1, **SHARPNESS}
    run(**options)
    assert keep(folder) == ("sharpness", 3)
    shutil.rmtree(folder / "checkpoints" / "000003")
    said = run(resume=True, **options)
    assert f"{folder / 'best'} is deleted" in caplog.text and "evaluation.jsonl has no such evaluation" in caplog.text
    assert best(folder)["iteration"] == 3 and best(folder)["value"] == pytest.approx(1.515), "this time's"
    assert "best: evaluation/sharpness 1.515 at iteration 3" in said


def test_an_unknown_metric_is_said_before_anything_is_trained(small_graph, tmp_path, capsys):
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(small_graph({"OTCA_TrainingRun": {"best_metric": "evaluation/sharp"}})))
    assert main(["train", str(path), "--output", str(tmp_path / "run")]) == 2
    known = ", ".join(f"evaluation/{name}" for name in ("sum", "clip_t", "colorfulness", "sharpness", "accuracy"))
    told = f"best_metric 'evaluation/sharp' is not a figure of this run. Fix: one of {known}"
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_declining_run_ends_and_a_resumed_one_too(scripted, small_graph, tmp_path, capsys):
    """Evaluations before training and after 1, 2, 3: the last two are below the best."""
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(small_graph({"OTCA_TrainingRun": {**RUN, "stop_after_decline": 2}})))
    folder = tmp_path / "run"
    scripted([1.0] * 9, [0.5, 0.8, 0.6, 0.4, 0.9, 0.9, 0.9])
    assert main(["train", str(path), "--output", str(folder)]) == 0
    told = (
        "accuracy, which is held out, has declined for 2 evaluations in a row: from 0.815 at iteration 1 to 0.415 at 3"
    )
    assert f"stopped early: {told}" in capsys.readouterr().out
    assert len(rows(folder)) == 3
    written = status(folder)
    assert (written["status"], written["reason"], written["total"]) == ("finished", told, 6)
    assert [place.name for place in checkpoint.complete(folder / "checkpoints")] == ["000003"]
    assert (folder / "lora.safetensors").is_file() and (folder / "otca_lora.safetensors").is_file()
    before = (folder / "metrics.jsonl").read_text()

    opening._open.clear()
    assert main(["train", str(folder), "--resume"]) == 0
    assert told in capsys.readouterr().out and (folder / "metrics.jsonl").read_text() == before

    opening._open.clear()
    arguments = ["--resume", "--set", "OTCA_TrainingRun.stop_after_decline=0", "--iterations", "4"]
    assert main(["train", str(folder), *arguments]) == 0
    assert len(rows(folder)) == 4
    assert status(folder)["reason"] is None


def test_killed_amid_the_decline_it_ends_where_it_would_have(scripted, run, tmp_path):
    """The verdict comes from the evaluations on record, not from what a process remembers."""
    scripted([1.0] * 9, [0.5, 0.8, 0.6, 0.4, 0.9, 0.9, 0.9])
    run(iterations=2, checkpoint_every=1, stop_after_decline=2)
    run(resume=True, checkpoint_every=1, stop_after_decline=2)
    assert [row["iteration"] for row in rows(tmp_path / "run", "evaluation.jsonl")] == [0, 1, 2, 3]


def test_the_canvas_only_says_so(scripted, small_workflow, comfyui, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(results, "picture", lambda draw: None)
    scripted([1.0, 2.0, 3.0, 1.5, 1.0], [0.5, 0.8, 0.6, 0.4, 0.3])
    workflow = small_workflow({"OTCA_TrainingRun": {**RUN, "stop_after_decline": 2, **SHARPNESS}})
    folder = tmp_path / "files" / "otca" / "otca"
    for iteration in range(4):
        overrides = {(node, name): value + iteration for node, name, value in workflow.advancing()}
        with caplog.at_level(logging.WARNING), torch.inference_mode():
            workflow.run(overrides=overrides)
        assert status(folder)["status"] == "idle" and bool(status(folder)["reason"]) == (iteration >= 2)
    said = [r.getMessage() for r in caplog.records if "has declined for 2 evaluations" in r.getMessage()]
    assert len(said) == 2 and said[0].startswith("iteration 3: accuracy")
    assert best(folder)["iteration"] == 2


def test_an_unknown_metric_on_the_canvas_loses_no_update(small_workflow, comfyui, monkeypatch, tmp_path):
    monkeypatch.setattr(results, "picture", lambda draw: None)
    workflow = small_workflow({"OTCA_TrainingRun": {**RUN, "best_metric": "nothing"}})
    with pytest.raises(NodeError, match="best_metric 'nothing' is not a figure of this run. Fix: one of evaluation"):
        workflow.run()
    workflow.set("OTCA_TrainingRun.best_metric", "evaluation/sum")
    workflow.run()
    assert len(rows(tmp_path / "files" / "otca" / "otca")) == 1


def test_two_experts_and_whole_models_have_a_best_too(small_workflow, small_graph, real_model, tmp_path, tiny_folder):

    changes = {
        "OTCA_LoadFlowModel": {"path": str(tiny_folder("wan22"))},
        "OTCA_SDESampler": {"width": 32, "height": 16, "frames": 5, "guidance": 1.0},
        "OTCA_TrainingRun": {"iterations": 1, "best_metric": "evaluation/sum"},
    }
    assert train(small_workflow(changes), tmp_path / "two") == 0
    names = sorted(path.name for path in (tmp_path / "two" / "best").iterdir())
    assert names == [".otca", "best.json", "lora_high_noise.safetensors", "lora_low_noise.safetensors"]
    changes = {"OTCA_LoadFlowModel": {"training": "full"}, "OTCA_TrainingRun": changes["OTCA_TrainingRun"]}
    graph = small_graph(changes)
    del graph["13"]  # Save LoRA has no adapter to save
    assert train(Workflow(graph, NODE_CLASS_MAPPINGS), tmp_path / "whole") == 0
    place = tmp_path / "whole" / "best"
    found = sorted(str(path.relative_to(place)) for path in place.rglob("*.*"))
    assert found == [".otca", "best.json", "transformer/config.json", "transformer/diffusion_pytorch_model.safetensors"]


def test_several_processes_agree_on_both(scripted, small_workflow, tmp_path):
    """Each scores half of the eight pairs, and all come to one verdict."""
    run = {**RUN, "evaluation_seeds": 4, "stop_after_decline": 2, "best_metric": "evaluation/sharpness"}
    scripted([1.0, 3.0, 2.0, 1.0, 1.0, 1.0], [0.5, 0.8, 0.6, 0.4, 0.9, 0.9])
    workflow = small_workflow({"OTCA_TrainingRun": run})
    assert together(2, train, workflow, tmp_path / "run") == [0, 0]
    assert [row["iteration"] for row in rows(tmp_path / "run", "evaluation.jsonl")] == [0, 1, 2, 3]
    assert best(tmp_path / "run")["iteration"] == 1
    assert (tmp_path / "run" / "best" / "lora.safetensors").is_file()
    assert status(tmp_path / "run")["reason"].startswith("accuracy, which is held out")
