"""Graphs of a stranger whose values are huge, deep or of another type: one short refusal each, never a traceback."""

from __future__ import annotations

import itertools
import json
import os
import struct

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.page import run_page
from comfyui_otca.tests.page.strange_pictures import chunk
from comfyui_otca.trainer.workflow import graph
from comfyui_otca.trainer.workflow import reading as workflow_file
from comfyui_otca.trainer.workflow.problem import as_json
from comfyui_otca.trainer.workflow.running import NodeError, Problem, Workflow, WorkflowError

TEXT = "x" * 10_000_000
LONGEST_LINE = 2000


def deep(levels):
    value = "leaf"
    for _ in range(levels):
        value = [value]
    return value


def png(width, height, prompt):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    text = chunk(b"tEXt", b"prompt\0" + prompt.encode())
    return b"\x89PNG\r\n\x1a\n" + header + text + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def refusals(content):
    """The lines that a graph gets, of all its problems."""
    try:
        problems = Workflow(content, NODE_CLASS_MAPPINGS).validate()
    except WorkflowError as error:
        problems = error.problems
    return [str(problem) for problem in problems if problem.severity == "error"]


# --- F9: `_meta` and titles of any type -------------------------------------------------------------------------------

ODD = [[], ["title"], "title", 7, None, True, {"title": ["a"]}, {"title": {"b": 1}}, {"title": 3}, {"title": "  "}]


def test_what_is_no_title_leaves_the_class_name(small_graph):
    for meta in ODD:
        content = {node: {**entry, "_meta": meta} for node, entry in small_graph().items()}
        workflow = Workflow(content, NODE_CLASS_MAPPINGS)
        assert [problem for problem in workflow.validate() if problem.severity == "error"] == [], meta
        assert {workflow.title(node) for node in content} == {entry["class_type"] for entry in content.values()}
        assert all(name.startswith("OTCA_") for name in graph.settings(content)), meta
        run_page.workflow_cards(content, NODE_CLASS_MAPPINGS)


def test_titles_are_text_of_one_short_line(small_graph):
    first = next(iter(small_graph().values()))
    first["_meta"] = {"title": "a\nb\t" + TEXT}
    assert graph.title(first).startswith("a b xxx") and len(graph.title(first)) <= graph.LONGEST_TITLE


# --- F10: bounded lines -----------------------------------------------------------------------------------------------


def test_ten_megabytes_make_one_short_line(small_graph):
    [sampler] = [node for node, entry in small_graph().items() if entry["class_type"] == "OTCA_SDESampler"]
    nothing = {"class_type": "OTCA_Nothing", "inputs": {}}
    for inputs, sampler_has, beside in (
        ({"steps": TEXT}, {}, {}),
        ({"kind": TEXT}, {}, {}),
        ({"kind": {"__value__": list(TEXT[:100_000])}}, {}, {}),
        ({TEXT: TEXT, "steps": -1}, {}, {}),
        ({"model": [TEXT, 0]}, {}, {}),
        ({}, {"class_type": "OTCA_" + TEXT}, {}),
        ({}, {}, {TEXT: nothing}),
        ({"steps": 0}, {"_meta": {"title": TEXT}}, {}),
        ({"steps": {TEXT: TEXT}}, {}, {}),
    ):
        content = {**small_graph(), **beside}
        content[sampler] |= sampler_has
        content[sampler]["inputs"] |= inputs
        lines = refusals(content)
        assert lines and all(len(line) < LONGEST_LINE and "Fix: " in line for line in lines)


def test_what_the_page_and_a_failed_node_say_is_as_short():
    problem = Problem(TEXT, TEXT, TEXT, TEXT, TEXT, TEXT)
    assert len(str(problem)) < LONGEST_LINE
    assert sum(len(str(value)) for value in as_json([problem])[0].values()) < LONGEST_LINE
    assert len(str(NodeError(TEXT, TEXT, TEXT, ValueError(TEXT)))) < LONGEST_LINE


def test_a_thousand_problems_are_counted_and_not_all_told():
    problems = [Problem(str(n), "a", "b", n, "is wrong", "mend it") for n in range(1000)]
    text = str(WorkflowError(problems))
    assert text.count("\n") == 50 and text.endswith("and 950 more problems. Fix: mend these first")


# --- F10: deep, large and strange files -------------------------------------------------------------------------------


def test_deep_values_are_refused_with_their_node(small_graph):
    for place, levels in itertools.product(["input", "unknown input", "meta", "beside"], [70, 900, 20_000]):
        content = small_graph()
        node = next(iter(content))
        if place == "meta":
            content[node]["_meta"] = {"title": deep(levels)}
        elif place == "beside":
            content[node]["more"] = deep(levels)
        else:
            content[node]["inputs"]["seed" if place == "input" else "other"] = deep(levels)
        [line] = refusals(content)
        assert f"node {node}" in line and "deep" in line and "Fix: " in line, (place, levels)


@pytest.mark.parametrize("levels", [900, 100_000])
def test_a_deep_file_is_one_line(tmp_path, capsys, levels):
    path = tmp_path / "deep.json"
    path.write_text(
        '{"1": {"class_type": "OTCA_SDESampler", "inputs": {"steps": ' + "[" * levels + "]" * levels + "}}}"
    )
    assert main(["validate", str(path)]) == 2
    told = capsys.readouterr().err
    assert "deep" in told and "Fix: " in told and "Traceback" not in told


def test_a_picture_bomb_is_one_line_and_a_small_picture_carries_its_workflow(tmp_path, capsys, small_graph):
    path = tmp_path / "bomb.png"
    path.write_bytes(png(20_000, 20_000, json.dumps(small_graph())))
    assert main(["validate", str(path)]) == 2
    told = capsys.readouterr().err
    assert str(path) in told and "pixels" in told and "Fix: " in told
    path.write_bytes(png(8, 8, json.dumps(small_graph())))
    assert Workflow.load(path, NODE_CLASS_MAPPINGS).graph == small_graph()


@pytest.mark.parametrize("name", ["large.json", "large.png"])
def test_a_file_above_the_limit_is_not_read(tmp_path, monkeypatch, name):
    monkeypatch.setattr(workflow_file, "MOST_BYTES", {".json": 1000, ".png": 1000})
    path = tmp_path / name
    path.write_bytes(b" " * 1001)
    with pytest.raises(WorkflowError, match=r"larger than .*Fix: "):
        Workflow.load(path, NODE_CLASS_MAPPINGS)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no FIFO in a folder, and no such device")
@pytest.mark.parametrize("name", ["pipe.json", "pipe.png", "/dev/zero"])
def test_a_pipe_or_a_device_is_not_a_workflow(tmp_path, name):
    if name.startswith("pipe"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(WorkflowError, match=r"not a plain file.*Fix: "):
        Workflow.load(tmp_path / name, NODE_CLASS_MAPPINGS)


def test_too_many_nodes_and_text_that_is_no_unicode_are_refused(small_graph):
    content = {str(n): {"class_type": "OTCA_SDESampler", "inputs": {}} for n in range(100_000)}
    [line] = refusals(content)
    assert "100000 nodes" in line and "Fix: " in line
    content = small_graph()
    node = next(iter(content))
    content[node]["inputs"]["name"] = "\ud800"
    [line] = refusals(content)
    assert f"node {node}" in line and "Fix: " in line
