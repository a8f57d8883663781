"""200 graphs of strangers, 2,000 by `make test-all`: every one is accepted, or refused with node, input, value and fix in a short
line. Never a traceback. That train does not refuse what is accepted is tested in test_fuzz_training.py."""

from __future__ import annotations

import functools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from comfyui_otca.host import paths, search
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from comfyui_otca.trainer.checks import preflight
from comfyui_otca.trainer.families import configured, folder
from comfyui_otca.trainer.workflow.problem import as_json
from comfyui_otca.trainer.workflow.running import Workflow, WorkflowError

from .strangers import changed, made_up

LONGEST_LINE = 2000
FUZZ = dict(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def folders_do_not_change():
    """What is looked up on the disk is looked up once: nothing there changes, and all graphs ask for the same."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (paths, "list_models"),
            (paths, "list_weights"),
            (search, "in_hub_cache"),
            (configured, "read_object"),
            (configured, "modules"),
            (folder, "tensors"),
        ):
            patch.setattr(module, name, functools.cache(getattr(module, name)))
        yield


def refusals(graph):
    """All that is wrong with a graph. Raises whatever is no refusal."""
    try:
        return preflight.problems(Workflow(graph, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS))
    except WorkflowError as error:
        return error.problems


def look(graph):
    problems = refusals(graph)
    json.dumps(as_json(problems), allow_nan=False).encode()  # the page can be told
    for problem in problems:
        line = str(problem)
        assert line.isprintable()
        assert len(line) < LONGEST_LINE and "\n" not in line and problem.message
        if problem.severity == "error":
            assert problem.fix and "Fix: " in line
        if problem.input is not None:
            assert problem.node_id is not None and f"input {problem.input}"[:80].split()[0] in line
            if problem.value is not None:
                assert " = " in line


@settings(**FUZZ)
@given(st.integers(0, 2**32))
def test_examples_with_something_changed(seed):
    look(changed(seed))


@settings(**FUZZ)
@given(made_up)
def test_graphs_made_of_nothing(graph):
    look(graph)
