"""The pages of assets/pages/, whole, of a run and a proof that are written down here: tests/page/pages/ has what they look like.

After a change that is meant, look at the difference, and copy the page that the failing test names over it.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from comfyui_otca.bundle import packages
from comfyui_otca.host import extras
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.page import proof, run_page
from comfyui_otca.study.prove import Facts
from comfyui_otca.trainer.run import budget
from comfyui_otca.trainer.workflow.running import Workflow

PAGES = Path(__file__).parent / "pages"

INPUTS = {"run_name": "reds & greens", "iterations": 2, "evaluate_every": 5, "checkpoint_every": 25, "report": ["2", 0]}
GRAPH = {
    "1": {"class_type": "OTCA_TrainingRun", "inputs": INPUTS, "_meta": {"title": "My <run>"}},
    "2": {"class_type": "Elsewhere", "inputs": {"text": "a\nb", "number": 0.5, "list": {"x": [1]}}},
}
ROW = {
    **{"groups/masked_samples": 2, "samples_per_second": 3.0, "seconds/iteration": 10.0, "seconds/rollout": 6.0},
    **{"seconds/reward": 2.0, "seconds/reward/clip": 1.5, "seconds/credit": 0.5, "seconds/update": 1.5},
    **{"reward/clip/mean": 0.1, "reward/clip/std": 0.2, budget.USED: 10.0},
}


def evaluation(iteration, *values):
    mean = sum(values) / len(values)
    figures = {"mean": mean, "std": 0.5, "standard_error": 0.25, "held_out": False, "values": values}
    rewards = {"clip": figures, "watched <i>": {**figures, "held_out": True, "std": 0.0}}
    return {
        "iteration": iteration,
        "prompts": ["a & b", "c"],
        "noise": "seed and prompt",
        "count": 4,
        "rewards": rewards,
        budget.EVALUATED: 5.0,
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run's folder without any figure of the machine's."""
    monkeypatch.setattr(extras, "installed", lambda name: None)  # without matplotlib, which draws as its version does
    monkeypatch.setattr(packages, "version", lambda: "1.2.3")
    folder = tmp_path / "reds & greens"
    (folder / "best").mkdir(parents=True)
    (folder / "samples").mkdir()
    best = {"metric": "evaluation/sum", "value": 1.23456, "iteration": 2, "before_training": 0.0}
    rows = [{**ROW, "iteration": 1, "warning/reward_hacking": 1.0}, {**ROW, "iteration": 2}]
    evaluations = [evaluation(0, 0.0, 0.25, 0.5, 1.0), evaluation(2, 2.0, 2.5, 2.5, 3.25)]
    changes = [{"iteration": 2, "changes": [{"node": "My <run>", "input": "a", "before": 1, "now": 2}]}]
    status = {"status": "stopped", "total": 4, "started": None, "reason": "stop & <go>", "id": "a", "place": "headless"}
    for name, content in (("workflow.json", GRAPH), ("best/best.json", best), ("status.json", status)):
        (folder / name).write_text(json.dumps(content))
    for name, lines in (("metrics", rows), ("evaluation", evaluations), ("changes", changes)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("samples.png", "samples/000000.png", "samples/000002.png"):
        Image.new("RGB", (20, 10)).save(folder / name)
    return folder


def golden(folder, name, html):
    """Whether a page is the one that was looked at, but for its style, its pictures, the time and where Python is."""
    html = re.sub(r"<style>.*</style>", "", html.replace(sys.executable, "python"), flags=re.DOTALL)
    html = re.sub(r"page made [\d: -]+\d", "page made …", re.sub(r'base64,[^"]*', "base64,…", html))
    expected = PAGES / name
    if not expected.is_file() or expected.read_text(encoding="utf-8") != html:
        (place := folder.parent / name).write_text(html, encoding="utf-8")
        pytest.fail(f"{place} is another page than {expected}")


def test_the_page_of_a_run(folder):
    golden(folder, "run.html", run_page.page(folder, NODE_CLASS_MAPPINGS))


def test_the_page_of_a_proof(folder):
    facts = {"model": "a <model> of /home/me/x.safetensors", "peaks": {"main memory": 2_000_000_000}}
    Facts(hours=0.5, **facts, seconds={"loading": 90.0}, hardware={"CPU": "one"}, versions={"torch": "9"}).write(folder)
    proof.write(Workflow(copy.deepcopy(GRAPH), NODE_CLASS_MAPPINGS), folder, "an <error> in /home/me/list.txt")
    golden(folder, "proof.html", (folder / "proof" / "proof.html").read_text(encoding="utf-8"))
