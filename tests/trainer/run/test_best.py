"""The best evaluation and a decline that lasts, by hand; and runs that keep the one and end by the other."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from comfyui_otca.__main__ import main
from comfyui_otca.canvas import results
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.processes import together
from comfyui_otca.tests.training import rows, train
from comfyui_otca.trainer.policy.files import read_metadata
from comfyui_otca.trainer.policy.policy import Policy
from comfyui_otca.trainer.rewards import pixels, shapes
from comfyui_otca.trainer.run import checkpoint, record, verdicts
from comfyui_otca.trainer.run import evaluation as evaluation_module
from comfyui_otca.trainer.run.folder import Lines, RunError
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
    assert (verdicts.decline(declining(differences), 1) is not None) == declined


def test_so_many_in_a_row():
    down, up, little = (-2, -2, -1), (1, 1, 2), (-3, 0, 0)
    rows = declining(up, down, down, down)
    name, told = verdicts.decline(rows, 3)
    # From (1, 1, 2) to (-2, -2, -1) above the start: -3 for every prompt, so without an error.
    assert name == "h" and told == (
        "h, which is held out, has declined for 3 evaluations in a row: from 21.3 at iteration 1 to 18.3 at 4, a change of -3 ± 0"
    )
    assert verdicts.decline(rows, 4) is None and verdicts.decline(rows, 0) is None
    assert verdicts.decline(declining(down, down, little), 3) is None, "the last did not"
    assert verdicts.decline(declining(down, little, down), 2) is None
    assert verdicts.decline(declining(down, down), 3) is None, "too few"
    assert verdicts.decline([], 1) is None


def test_of_one_and_the_same_reward():
    start, down = [1, 2, 3], [0, 1, 2]
    rows = [evaluation(0, h1=start, h2=start, r=start), evaluation(1, h1=down, h2=start, r=down)]
    assert verdicts.decline([*rows, evaluation(2, h1=start, h2=down, r=down)], 2) is None
    assert verdicts.decline([*rows, evaluation(2, h1=down, h2=down, r=down)], 2)[0] == "h1"


def test_what_cannot_be_compared_is_no_decline():
    rows = declining((-2, -2, -2))
    assert verdicts.decline([rows[0], evaluation(1, prompts=("other",), h=[0, 0, 0])], 1) is None
    single = [evaluation(0, h=[5]), evaluation(1, h=[1])]
    assert verdicts.decline(single, 1) is None, "one pair has no standard error"
    rows = declining((-2, -2, -2))
    rows[1]["rewards"]["h"]["values"] = [None, 18.0, math.nan]
    assert verdicts.decline(rows, 1) is None
    rows[1]["rewards"]["h"]["values"] = [None, 18.0, 28.0]
    assert verdicts.decline(rows, 1) is not None


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

    def go(resume=False, ema_decay=0.5, held_out=("accuracy",), **changes):
        said = []
        nodes = {
            "OTCA_TrainingRun": {**RUN, **changes},
            "OTCA_GRPOStep": {"learning_rate": 1e-3, "ema_decay": ema_decay},
        }
        for kind, name in (("Sharpness", "sharpness"), ("ShapesAccuracy", "accuracy")):
            nodes[f"OTCA_Reward{kind}"] = {"held_out": name in held_out}
        workflow = small_workflow(nodes)
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
    assert "the best is kept by evaluation/accuracy now" in caplog.text
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


DECLINES = [0.5, 0.8, 0.6, 0.4, 0.9, 0.9, 0.9]  # the held-out reward stands best after iteration 1, and declines twice
TOLD = (
    "accuracy, which is held out, has declined for 2 evaluations in a row: from 0.815 at iteration 1 to 0.415 at 3, a change of "
    "-0.4 ± 0. The adapter of iteration 1 is kept, the best by evaluation/accuracy"
)


def adapter(folder):
    """A copy, since a file that is mapped cannot be written over."""
    return {key: value.clone() for key, value in load_file(folder / "lora.safetensors").items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture
def after_each(scripted, run, tmp_path):
    """The adapters that a training without brakes evaluates after each iteration, as its file would hold them."""
    scripted([1.0] * 9, DECLINES)
    found = []
    for iterations in (1, 2, 3):
        run(resume=iterations > 1, iterations=iterations)
        found.append(adapter(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run")
    record.open_runs.clear()
    return found


def test_a_declining_run_goes_back_to_its_best(after_each, scripted, small_graph, tmp_path, capsys, caplog):
    """Evaluations before training and after 1, 2, 3: the last two are below the best."""
    path = tmp_path / "workflow.json"
    changes = {"OTCA_TrainingRun": {**RUN, "stop_after_decline": 2}}
    path.write_text(json.dumps(small_graph(changes)))
    folder = tmp_path / "run"
    scripted([1.0] * 9, DECLINES)
    assert main(["train", str(path), "--output", str(folder)]) == 0
    said, reason = capsys.readouterr().out, f"stopped by a brake, stop_after_decline = 2, after iteration 3: {TOLD}"
    assert f"{reason}\n" in said and "--resume --set OTCA_TrainingRun.stop_after_decline=0" in said
    assert "accuracy (held out): 0.515 ± 0.005 -> 0.815 ± 0.005" in said, (
        "the final figures are those of the adapter kept"
    )
    assert len(rows(folder)) == 3
    written = status(folder)
    assert (written["status"], written["reason"], written["total"]) == ("finished", reason, 6)
    assert [place.name for place in checkpoint.complete(folder / "checkpoints")] == ["000003"]
    assert rows(folder, "evaluation.jsonl")[-1]["brake"]["kept"] == 1
    for name in ("lora.safetensors", "best/lora.safetensors", "otca_lora.safetensors"):
        assert same(load_file(folder / name), after_each[0]), name
        assert not same(load_file(folder / name), after_each[2])
    for name in ("lora.safetensors", "best/lora.safetensors"):
        assert read_metadata(folder / name)["otca_iteration"] == "1"
    before = (folder / "metrics.jsonl").read_text()

    record.open_runs.clear()
    assert main(["train", str(folder), "--resume"]) == 0
    assert TOLD in capsys.readouterr().out and (folder / "metrics.jsonl").read_text() == before
    assert same(adapter(folder), after_each[0])

    record.open_runs.clear()
    arguments = ["--resume", "--set", "OTCA_TrainingRun.stop_after_decline=0", "--iterations", "4"]
    assert main(["train", str(folder), *arguments]) == 0
    assert len(rows(folder)) == 4 and status(folder)["reason"] is None


@pytest.mark.parametrize("killed_at", ["begin_from_here", "save", "write"])
def test_killed_amid_the_return_it_comes_to_the_same_end(after_each, scripted, run, tmp_path, monkeypatch, killed_at):
    """Before the model goes back, before its checkpoint is written, and before the record says so."""
    scripted([1.0] * 9, DECLINES)
    run(iterations=2, checkpoint_every=1, stop_after_decline=2)
    owner, name = {
        "begin_from_here": (Policy, "begin_from_here"),
        "save": (record.Run, "save"),
        "write": (Lines, "write"),
    }[killed_at]
    real = getattr(owner, name)

    class Killed(BaseException):
        pass

    def dies(self, *args, **kwargs):
        if any("brake" in row for row in rows_of(self)):
            raise Killed
        return real(self, *args, **kwargs)

    rows_of = {
        "begin_from_here": lambda policy: [{"brake": 1}],
        "save": lambda run: run.evaluations,
        "write": lambda lines: lines.rows,
    }[killed_at]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dies)
        with pytest.raises(Killed):
            run(resume=True, checkpoint_every=1, stop_after_decline=2)
    assert "brake" not in rows(tmp_path / "run", "evaluation.jsonl")[-1]
    scripted([1.0] * 9, [0.4, 0.9])  # the evaluation of 3 again, if its line was ahead of the last checkpoint
    said = run(resume=True, checkpoint_every=1, stop_after_decline=2)
    assert TOLD in said and same(adapter(tmp_path / "run"), after_each[0])
    assert [row["iteration"] for row in rows(tmp_path / "run", "evaluation.jsonl")] == [0, 1, 2, 3]


def test_the_untrained_model_may_be_the_best(scripted, run, tmp_path):
    scripted([1.0] * 9, [0.9, 0.8, 0.6])
    assert "The adapter of iteration 0, the untrained model, is kept" in run(stop_after_decline=2)
    tensors = adapter(tmp_path / "run")
    assert all(bool(value.any()) == ("lora_A" in key) for key, value in tensors.items())
    assert read_metadata(tmp_path / "run" / "lora.safetensors")["otca_iteration"] == "0"


def test_of_two_held_out_rewards_the_best_by_the_one_that_fell(scripted, run, tmp_path):
    """sharpness, held out too, stands best at 2, and accuracy, which declines, at 1."""
    scripted([1.0, 2.0, 3.0, 3.0], DECLINES)
    said = run(stop_after_decline=2, held_out=("accuracy", "sharpness"))
    assert "accuracy, which is held out, has declined" in said and "The adapter of iteration 1 is kept" in said
    kept = {json.loads(file.read_text())["metric"]: file for file in (tmp_path / "run").glob("best*/best.json")}
    assert {metric: json.loads(file.read_text())["iteration"] for metric, file in kept.items()} == {
        "evaluation/accuracy": 1,
        "evaluation/sharpness": 2,
    }
    adapters = {metric: load_file(file.with_name("lora.safetensors")) for metric, file in kept.items()}
    assert same(adapter(tmp_path / "run"), adapters["evaluation/accuracy"])
    assert not same(adapter(tmp_path / "run"), adapters["evaluation/sharpness"])


def test_after_a_brake_the_count_begins_anew(scripted, run, tmp_path):
    """It goes on with patience 3, and two declines of before are no part of it."""
    scripted([1.0] * 12, [0.5, 0.8, 0.6, 0.4, 0.7, 0.7, 0.7, 0.9])
    run(stop_after_decline=2)
    said = run(resume=True, stop_after_decline=3)
    assert "declined for 3 evaluations in a row: from 0.815 at iteration 1 to 0.715 at 6" in said
    assert [row.get("brake", {}).get("value") for row in rows(tmp_path / "run", "evaluation.jsonl")] == [None] * 3 + [
        2,
        None,
        None,
        3,
    ]


def test_without_a_held_out_reward_or_evaluations_it_does_nothing(scripted, run, tmp_path):
    scripted([5.0, 4.0, 3.0, 2.0, 1.0], DECLINES)
    assert "brake" not in run(stop_after_decline=2, iterations=3, held_out=())
    assert not (tmp_path / "run" / "best").exists()
    shutil.rmtree(tmp_path / "run")
    assert "brake" not in run(stop_after_decline=2, iterations=2, evaluate_every=0)
    assert len(rows(tmp_path / "run")) == 2


@pytest.mark.parametrize("mode", ["off", "warn", "stop"])
def test_artefacts_are_told_or_end_the_run(scripted, run, tmp_path, monkeypatch, caplog, mode):
    """From the evaluation after 3 on, every other column of the pictures is black."""
    evaluate = evaluation_module.rollout.generate

    def spoiled(model, texts, *rest):
        images = evaluate(model, texts, *rest)
        if len(rows(tmp_path / "run")) >= 3:
            images[:, :, ::2] = 0
        return images

    monkeypatch.setattr(evaluation_module.rollout, "generate", spoiled)
    scripted([1.0, 1.5, 2.0, 3.0, 3.0], [0.5] * 9)
    folder = tmp_path / "run"
    said = run(iterations=4, artefacts=mode, best_metric="evaluation/sharpness" if mode == "stop" else "")
    found = [record.getMessage() for record in caplog.records if "show artefacts" in record.getMessage()]
    evaluations = rows(folder, "evaluation.jsonl")
    assert all(("artefacts" in row) == (mode != "off") for row in evaluations)
    assert len(rows(folder)) == (3 if mode == "stop" else 4)
    if mode == "off":
        assert not found and "show artefacts" not in said
        return
    before, now = (sum(row["artefacts"]["high_frequency"]) / 4 for row in (evaluations[0], evaluations[3]))
    told = f"at iteration 3: high_frequency is {now:.3g}, and was {before:.3g} before training, on the same prompts and seeds"
    assert told in found[0] and "the limits are × 2 and 4" in found[0]
    assert "samples/000003-high_frequency.png shows it most" in found[0]
    with Image.open(folder / "samples" / "000003-high_frequency.png") as picture:
        assert picture.height > 2 * 120 > picture.width / 2, "one picture above the other"
    if mode == "stop":
        assert f"stopped by a brake, artefacts = stop, after iteration 3: pictures show artefacts {told}" in said
        assert "--resume --set OTCA_TrainingRun.artefacts=warn" in said
        assert keep(folder) == ("sharpness", 2), "3.0 at 3 was of spoiled pictures"
        assert same(adapter(folder), load_file(folder / "best" / "lora.safetensors"))


def test_a_best_that_cannot_be_read_is_said(scripted, run, tmp_path, monkeypatch):
    scripted([1.0] * 9, DECLINES)
    run(iterations=2, checkpoint_every=1, stop_after_decline=2)
    (tmp_path / "run" / "best" / "lora.safetensors").write_bytes(b"damaged")
    with pytest.raises(NodeError, match="best adapter cannot be read .* Fix: put .*best back and resume"):
        run(resume=True, checkpoint_every=1, stop_after_decline=2)
    (tmp_path / "run" / "best" / "lora.safetensors").unlink()
    scripted([1.0] * 9, [0.4] * 9)
    with pytest.raises((NodeError, RunError), match="best adapter cannot be read"):
        run(resume=True, checkpoint_every=1, stop_after_decline=2)


def test_killed_amid_the_decline_it_ends_where_it_would_have(scripted, run, tmp_path):
    """The verdict comes from the evaluations on record, not from what a process remembers."""
    scripted([1.0] * 9, DECLINES)
    run(iterations=2, checkpoint_every=1, stop_after_decline=2)
    run(resume=True, checkpoint_every=1, stop_after_decline=2)
    assert [row["iteration"] for row in rows(tmp_path / "run", "evaluation.jsonl")] == [0, 1, 2, 3]


@pytest.fixture
def queue(small_graph, comfyui, monkeypatch):
    """queue(number, **inputs of Training Run): the prompt of that number on the canvas, Save LoRA before Training Run."""
    monkeypatch.setattr(results, "picture", lambda draw: None)

    def queued(number, **inputs):
        graph = small_graph({"OTCA_TrainingRun": {**RUN, "stop_after_decline": 2, **inputs}})
        workflow = Workflow(dict(sorted(graph.items(), key=lambda entry: -int(entry[0]))), NODE_CLASS_MAPPINGS)
        overrides = {(node, name): value + number for node, name, value in workflow.advancing()}
        with torch.inference_mode():
            return workflow.run(overrides=overrides)

    return queued


def test_on_the_canvas_it_goes_back_and_trains_no_more(scripted, queue, comfyui, tmp_path, caplog):
    scripted([1.0] * 12, DECLINES)
    folder = tmp_path / "files" / "otca" / "otca"
    queue(0)
    first = adapter(folder)
    queue(1)
    assert not same(adapter(folder), first)
    queue(2)
    [said] = [r.getMessage() for r in caplog.records if "has declined" in r.getMessage()]
    assert said == status(folder)["reason"] == f"stopped by a brake, stop_after_decline = 2, after iteration 3: {TOLD}"
    assert status(folder)["status"] == "finished"
    [saved] = (tmp_path / "loras").rglob("otca_lora.safetensors")
    for file in (folder / "lora.safetensors", folder / "best" / "lora.safetensors", saved):
        assert same(load_file(file), first), file
    shown = [event["data"]["brake"] for _, event, *_ in comfyui.events if event.get("kind") == "run"]
    assert shown == [None, None, said]

    told = "set stop_after_decline to 0 on Training Run, where it is 2; for a new run, change its run_name"
    for number in (3, 4):
        with pytest.raises(NodeError, match=f"The adapter of iteration 1 is kept.*Nothing was trained. Fix: .*{told}"):
            queue(number)
    assert len(rows(folder)) == 3
    queue(5, stop_after_decline=0)
    assert len(rows(folder)) == 4 and status(folder)["reason"] is None
    queue(6, run_name="another")
    assert len(rows(folder.with_name("another"))) == 1 and len(rows(folder)) == 4


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


@pytest.mark.parametrize("processes", [1, 2])
def test_a_whole_model_goes_back_too(scripted, small_graph, tmp_path, processes):
    """Of several processes each has a part of it."""
    run = {**RUN, "evaluation_seeds": 2 * processes, "stop_after_decline": 2}
    graph = small_graph({"OTCA_LoadFlowModel": {"training": "full"}, "OTCA_TrainingRun": run})
    del graph["13"]  # Save LoRA has no adapter to save
    folder, weights = tmp_path / "run", "transformer/diffusion_pytorch_model.safetensors"
    scripted([1.0] * 9, DECLINES)
    workflow = Workflow(graph, NODE_CLASS_MAPPINGS)
    if processes == 1:
        assert train(workflow, folder) == 0
    else:
        assert together(2, train, workflow, folder) == [0, 0]
    assert rows(folder, "evaluation.jsonl")[-1]["brake"]["kept"] == 1 and len(rows(folder)) == 3
    went_back, best_one = (load_file(place / weights) for place in (folder, folder / "best"))
    assert same(went_back, best_one)
    saved = load_file(folder / "checkpoints" / "000003" / "adapter.safetensors")
    for name, value in best_one.items():
        assert torch.equal(saved[name].to(value.dtype), value), name


def test_several_processes_agree_on_both(scripted, small_workflow, tmp_path):
    """Each scores half of the eight pairs, and all come to one verdict."""
    run = {**RUN, "evaluation_seeds": 4, "stop_after_decline": 2, "best_metric": "evaluation/sharpness"}
    scripted([1.0, 3.0, 2.0, 1.0, 1.0, 1.0], [0.5, 0.8, 0.6, 0.4, 0.9, 0.9])
    workflow = small_workflow({"OTCA_TrainingRun": run})
    assert together(2, train, workflow, tmp_path / "run") == [0, 0]
    assert [row["iteration"] for row in rows(tmp_path / "run", "evaluation.jsonl")] == [0, 1, 2, 3]
    assert best(tmp_path / "run")["iteration"] == 1
    assert (tmp_path / "run" / "best" / "lora.safetensors").is_file()
    assert "accuracy, which is held out" in status(tmp_path / "run")["reason"]
    assert same(adapter(tmp_path / "run"), load_file(tmp_path / "run" / "best" / "lora.safetensors"))
