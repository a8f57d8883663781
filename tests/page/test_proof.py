"""`otca prove`, whole: what it trains and says, what its folder holds and does not, and that any end is continued."""

from __future__ import annotations

import json

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.bundle import making
from comfyui_otca.page import proof
from comfyui_otca.study import prove
from comfyui_otca.tests.page.test_run_page import Page
from comfyui_otca.tests.training import rows
from comfyui_otca.trainer.run import record

HOURS = 1e-4  # a second is trained at least


@pytest.fixture
def proves(small_graph, tmp_path, monkeypatch):
    """proves(*arguments, changes): exit code and the folder of a proof of the toy."""
    folder = tmp_path / "mine"
    monkeypatch.setattr(making, "memory", lambda graph: (None, "memory: 1.5 GB"))  # which has its own tests

    def go(*arguments, changes=None):
        path = tmp_path / "graph.json"
        path.write_text(json.dumps(small_graph(changes)))
        record.open_runs.clear()
        command = ["prove", path, "--hours", HOURS, "--pictures", 6, "--output", folder, *arguments]
        return main(list(map(str, command))), folder

    return go


def test_a_learning_rate_of_zero_learns_nothing(proves, capsys, tmp_path):
    code, folder = proves(changes={"OTCA_GRPOStep": {"learning_rate": 0.0}})
    said = capsys.readouterr().out
    # How many fit into the time is the machine's matter.
    verdict = "iterations are too few to tell" if len(rows(folder)) < 10 else "Nothing was learned: the interval"
    assert code == 0 and verdict in said
    target = folder / "proof"
    assert {p.name for p in target.iterdir()} == {
        "proof.html",
        "proof.json",
        "workflow.json",
        "metrics.jsonl",
        "evaluation.jsonl",
    }
    page = Page((target / "proof.html").read_text())
    assert not page.open and verdict in page.text and "it learned" not in page.text
    for text in [p.read_text() for p in target.iterdir()]:
        assert str(tmp_path) not in text and str(folder.home()) not in text
    evaluations = rows(folder, "evaluation.jsonl")
    first, last = evaluations[0], evaluations[-1]
    assert first["iteration"] == 0 and last["iteration"] == len(rows(folder)) > 1
    assert all(
        len(each["values"]) >= 6 and each["values"] == last["rewards"][name]["values"]
        for name, each in first["rewards"].items()
    )
    pictures = [a["alt"] for tag, a in page.tags if tag == "img"]
    assert len(pictures) == 12 and [p.partition(":")[0] for p in pictures] == ["before", "after"] * 6
    facts = json.loads((target / "proof.json").read_text())
    assert facts["peaks"]["main memory"] > 1e8 and set(facts["seconds"]) == {"loading the model", "estimating memory"}


def test_a_killed_proof_is_continued_and_a_finished_one_only_with_more_time(proves, monkeypatch):
    with monkeypatch.context() as patch:

        def killed(prepared, say):
            prepared.held.close()
            raise KeyboardInterrupt

        patch.setattr(prove, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            proves()
    code, folder = proves()
    done = len(rows(folder))
    assert code == 0 and done > 1
    html = (folder / "proof" / "proof.html").read_text()
    assert "is used up" not in html, "the end of the time is no warning"
    assert proves()[0] == 0 and len(rows(folder)) == done, "the same time again trains nothing"
    assert proves("--hours", 3 / 3600)[0] == 0 and len(rows(folder)) > done
    assert proves("--set", "GRPO Step.learning_rate=0.5")[0] == 2, "another workflow is another proof"
    assert proves("--hours", "0")[0] == 2


def test_what_ended_it_is_on_the_page_without_folders(proves, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OTCA_ALLOW_PYTHON_REWARDS", str(tmp_path))
    file = tmp_path / "mine.py"
    file.write_text(f"def score(images, prompts):\n    raise ValueError('no {tmp_path}/secret/list.txt')\n")
    inputs = {"file": str(file), "function": "score", "coefficient": 1.0}
    code, folder = proves("--set", "4=OTCA_RewardPython", *(f"4.{name}={value}" for name, value in inputs.items()))
    assert code == 1, capsys.readouterr()
    html = (folder / "proof" / "proof.html").read_text()
    assert "list.txt" in html and str(tmp_path) not in html and "No verdict" in html


def test_a_graph_with_a_key_is_refused_before_anything_is_trained(proves, capsys):
    reward = {"url": "http://127.0.0.1:1/score?key=abc"}
    code, folder = proves("--set", "4=OTCA_RewardHTTP", *(f"4.{name}={value}" for name, value in reward.items()))
    assert code == 2 and "carries a query, which may hold a key" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/me/models/x.safetensors is not here", "x.safetensors is not here"),
        (r"C:\Users\me\x.png is damaged", "x.png is damaged"),
        ("~/runs/a/b.json: gone", "b.json: gone"),
        ("docs/models.md and 3/4 of https://a.org/b/c", "docs/models.md and 3/4 of https://a.org/b/c"),
    ],
)
def test_folders_of_this_machine_are_left_out(text, left):
    assert proof.without_folders(text) == left
