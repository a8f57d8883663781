"""`otca train` as a shell runs it prepares once: the graph is read, and the folder judged and claimed, by one process alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Python imports this by itself when it starts: every process of the command writes down each call of what is counted.
COUNTING = """
import functools, importlib.abc, importlib.machinery, os, sys

COUNTED = {
    "comfyui_otca.trainer.workflow.reading": ["read_workflow"],
    "comfyui_otca.trainer.workflow.declared": ["DeclaredGraph.read"],
    "comfyui_otca.trainer.checks.preflight": ["problems"],
    "comfyui_otca.trainer.run.held": ["hold"],
    "comfyui_otca.host.claim": ["take"],
}

def counted(function, name):
    @functools.wraps(function)
    def wrapped(*arguments, **options):
        with open(os.environ["COUNTED"], "a") as file:
            file.write(f"{name} {os.getpid()}\\n")
        return function(*arguments, **options)
    return wrapped

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in COUNTED else None
        if spec is not None:
            run = spec.loader.exec_module
            def exec_module(module):
                run(module)
                for each in COUNTED[name]:
                    owner = module
                    *owners, last = each.split(".")
                    for one in owners:
                        owner = getattr(owner, one)
                    function = counted(getattr(owner, last), each)
                    setattr(owner, last, staticmethod(function) if owners else function)
            spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""
FEW = {
    "OTCA_SDESampler": {"group_size": 2, "steps": 2},
    "OTCA_PromptDataset": {"prompts_per_iteration": 2},
    "OTCA_TrainingRun": {"iterations": 1, "evaluate_every": 0},
}


@pytest.fixture
def counts(small_graph, tmp_path):
    """counts(options …): how often each of COUNTED was called in a training by the command line, and in how many processes."""
    (tmp_path / "given.json").write_text(json.dumps(small_graph(FEW)))
    (tmp_path / "sitecustomize.py").write_text(COUNTING)

    def train(*options):
        told = tmp_path / "counted"
        told.unlink(missing_ok=True)
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "COUNTED": str(told), "OMP_NUM_THREADS": "1"}
        environment.pop("RANK", None)
        command = [sys.executable, str(ROOT), "train", "given.json", "--output", "run", "--device", "cpu", *options]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        calls = [line.split() for line in told.read_text().splitlines()]
        return Counter(name for name, _ in calls), len({process for _, process in calls})

    return train


ONCE = {"read_workflow": 1, "problems": 1, "hold": 1, "take": 1}


def test_one_process_prepares_once_also_with_changes_and_when_it_resumes(counts):
    for options in (
        (),
        ("--resume", "--iterations", "2", "--set", "SDESampler.eta=0.4", "GRPOStep.learning_rate=0.001"),
    ):
        assert counts(*options) == ({**ONCE, "DeclaredGraph.read": 1}, 1), options


def test_several_processes_are_told_what_the_launching_one_has_prepared(counts):
    """Each of the two puts the graph, which it is given, together with its node classes; no other reads or judges anything."""
    assert counts("--gpus", "2") == ({**ONCE, "DeclaredGraph.read": 3}, 3)
