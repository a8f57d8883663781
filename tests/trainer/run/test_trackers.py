"""metrics.jsonl, TensorBoard and wandb say the same, also after a resume; and wandb that is not there or knows nobody."""

from __future__ import annotations

import importlib.machinery
import json
import re
import shutil
import sys
import types

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.host import extras
from comfyui_otca.tests.training import rows
from comfyui_otca.trainer.run import record
from comfyui_otca.trainer.run.trackers import Trackers


class FakeWandb(types.ModuleType):
    """Records what is asked of it, in the words of wandb's own interface."""

    def __init__(self, refuse=None):
        super().__init__("wandb")
        self.__spec__ = importlib.machinery.ModuleSpec("wandb", None)  # libraries ask whether it is installed
        self.errors = types.SimpleNamespace(Error=type("Error", (Exception,), {}))
        self.begun, self.logged, self.finished, self.refuse = [], [], 0, refuse

    def init(self, **options):
        if self.refuse:
            raise self.errors.Error(self.refuse)
        self.begun.append(options)
        return self

    def log(self, figures, step):
        assert isinstance(figures, dict) and type(step) is int
        self.logged.append((step, figures))

    def finish(self):
        self.finished += 1

    def scalars(self):
        """{(name, step): value}"""
        return {(name, step): value for step, figures in self.logged for name, value in figures.items()}


def install(monkeypatch, module):
    """From now on that is wandb; None: it is not installed."""
    others = extras.installed
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(extras, "installed", lambda name: (module and "1.0") if name == "wandb" else others(name))


@pytest.fixture
def wandb(monkeypatch):
    module = FakeWandb()
    install(monkeypatch, module)
    monkeypatch.setenv("OTCA_ALLOW_HOSTS", "api.wandb.ai")
    return module


@pytest.fixture
def start(small_graph, tmp_path, monkeypatch):
    """start(*arguments): a training of two iterations with wandb, which is allowed; its exit code."""
    monkeypatch.setenv("OTCA_ALLOW_HOSTS", "api.wandb.ai")
    path = tmp_path / "workflow.json"
    changes = {"iterations": 2, "checkpoint_every": 1, "evaluate_every": 2, "wandb_project": "shapes"}
    path.write_text(json.dumps(small_graph({"OTCA_TrainingRun": changes})))

    def go(*arguments):
        record.open_runs.clear()
        return main(["train", str(path), "--output", str(tmp_path / "run"), *arguments])

    return go


def on_record(folder):
    """{(name, step): value} of the run's own files."""
    found = {
        (name, row["iteration"]): value for row in rows(folder) for name, value in row.items() if name != "iteration"
    }
    for row in rows(folder, "evaluation.jsonl"):
        for name, figures in row["rewards"].items():
            found[f"evaluation/{name}", row["iteration"]] = figures["mean"]
    return found


def in_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {(name, e.step): e.value for name in events.Tags()["scalars"] for e in events.Scalars(name)}


def test_all_three_agree_also_after_a_resume(start, wandb, tmp_path):
    folder = tmp_path / "run"
    assert start() == 0
    first = on_record(folder)
    assert len(first) > 60 and {step for _, step in first} == {0, 1, 2}
    assert wandb.scalars() == first, "to the last digit"
    assert in_tensorboard(folder) == pytest.approx(first, rel=1e-5, abs=1e-7)

    assert start("--resume", "--iterations", "3") == 0
    whole = on_record(folder)
    assert {step for _, step in whole} == {0, 1, 2, 3}
    assert wandb.scalars() == whole
    assert in_tensorboard(folder) == pytest.approx(whole, rel=1e-5, abs=1e-7)
    steps = [step for step, _ in wandb.logged]
    assert steps == sorted(steps), "wandb drops what comes late"

    one, other = wandb.begun
    assert one["project"] == "shapes" and one["resume"] == "allow" and one["name"] == "run"
    assert one["id"] == other["id"] and json.loads((folder / "wandb.json").read_text())["id"] == one["id"]
    assert one["config"]["TCD Weights"]["w_min"] == 0.5 and one["config"]["Training Run"]["wandb_project"] == "shapes"
    assert wandb.finished == 2


def test_after_a_kill_tensorboard_forgets_what_the_run_forgot(start, wandb, tmp_path):
    folder = tmp_path / "run"
    assert start() == 0
    shutil.rmtree(folder / "checkpoints" / "000002")
    assert start("--resume") == 0
    again, board, cloud = (
        {key: value for key, value in figures.items() if "second" not in key[0]}
        for figures in (on_record(folder), in_tensorboard(folder), wandb.scalars())
    )
    assert cloud == again and board == pytest.approx(again, rel=1e-5, abs=1e-7)


def test_without_tensorboard_the_log_says_it_once(start, wandb, monkeypatch, tmp_path, caplog):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with caplog.at_level("INFO"):
        assert start() == 0 and len(wandb.logged) == 4
    assert caplog.text.count("-m pip install tensorboard") == 1
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_another_project_is_another_run_there(wandb, tmp_path):
    for project in ("one", "one", "two", ""):
        Trackers(tmp_path, project, 0, {}).close()
    first, second, third = wandb.begun
    assert first["id"] == second["id"] != third["id"] and third["project"] == "two"


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (None, r"input wandb_project = 'shapes': Training Run needs wandb \(none is here\).*Fix: .*pip install wandb"),
        (
            FakeWandb(refuse="api_key not configured (no-tty)"),
            r"could not begin \(api_key not configured \(no-tty\)\). Fix: wandb login, or set WANDB_MODE=offline",
        ),
    ],
)
def test_who_cannot_use_it_is_told_before_training(start, monkeypatch, tmp_path, capsys, module, told):
    install(monkeypatch, module)
    assert start() == 2
    assert re.search(told, capsys.readouterr().err)
    assert (tmp_path / "run").exists() == (module is not None) and not [*tmp_path.glob("run/checkpoints/*")]
    assert not (tmp_path / "run" / "wandb.json").exists()


def test_on_the_canvas_a_project_may_be_named_later(small_workflow, comfyui, wandb, monkeypatch):
    from comfyui_otca.canvas import results

    monkeypatch.setattr(results, "picture", lambda draw: None)
    workflow = small_workflow()
    for iteration, project in enumerate(("", "shapes", "shapes")):
        workflow.set("OTCA_TrainingRun.wandb_project", project)
        workflow.run(overrides={(node, name): value + iteration for node, name, value in workflow.advancing()})
    assert [step for step, _ in wandb.logged] == [2, 3] and len(wandb.begun) == 1
