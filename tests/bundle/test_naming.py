"""A node's hook is the one place that says what it names: permissions, validate and the bundle know every such input by it."""

from __future__ import annotations

import ast
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from comfyui_otca.bundle.contents import Collector, Contents
from comfyui_otca.host import paths
from comfyui_otca.host.access import permissions, wants
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.bundle.conftest import SET, file_inputs
from comfyui_otca.trainer import types
from comfyui_otca.trainer.opinions import kinds
from comfyui_otca.trainer.rewards.taste import Head, Scaling
from comfyui_otca.trainer.workflow.running import Workflow

PACK = paths.ASSETS.parent
STAYS = (wants.GUIDE, permissions.PICTURES)  # of nodes that train nothing


INPUTS = list(file_inputs())
IDS = [f"{class_type}.{name}" for class_type, name in INPUTS]


@pytest.fixture
def elsewhere(places, tmp_path, monkeypatch):
    """A folder of the user's outside of every known one, which the user has allowed."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.setenv("OTCA_ALLOW_FOLDERS", str(folder))
    monkeypatch.setenv("OTCA_VOTES", str(folder))
    monkeypatch.setenv("OTCA_ALLOW_PYTHON_REWARDS", str(folder))
    return folder


COPIES = {
    wants.MODEL: "shapes-flux",
    **dict.fromkeys((wants.REWARD_MODEL, wants.ENCODER, wants.TOKENIZER), "shapes-clip"),
}
COPIES[permissions.PAIRS] = "prompts/shapes_pairs"
FILES = {permissions.PROMPTS: "mine.txt", wants.ADAPTER: "mine.safetensors", "a reward": "mine.py"}


def made(folder, why):
    """What an input for that names, as a user has it: a file or a folder."""
    mine = folder / FILES.get(why, "mine")
    if why in COPIES:
        return shutil.copytree(paths.ASSETS / COPIES[why], mine)
    if why in FILES:
        mine.write_text("pass")
        return mine
    if why == wants.TASTE:
        one = np.ones(1, np.float32)
        Head(Scaling(one, one), one, "shapes-clip", "").save(folder / "mine.safetensors")
        return folder / "mine.safetensors"
    mine.mkdir()
    Image.new("RGB", (8, 8)).save(mine / "a.png")
    rows = kinds.line(kinds.Picture("0" * 64, path="a.png")), kinds.line(kinds.Opinion("thumb", "0" * 64, 1))
    (mine / "opinions.jsonl").write_text("\n".join(rows) + "\n")
    return "mine" if why == wants.VOTES else mine


@pytest.mark.parametrize(("class_type", "name"), INPUTS, ids=IDS)
def test_every_input_that_names_a_file_is_asked_for_and_bundled(class_type, name, elsewhere):
    """That validate refuses what is missing, by name, is in tests/page/test_refusals.py."""
    node, more = NODE_CLASS_MAPPINGS[class_type], SET.get((class_type, name), {})
    value = "/nowhere = 1" if name == "guides" else "/nowhere"
    [want] = [want for want in wants.of_node(node, {name: value, **more}) if want.input == name]
    if want.why in (wants.RUN_BEFORE, wants.PROMPT_LINES):  # a run's adapter takes its place; lines of text
        return
    graph = {"1": {"class_type": class_type, "inputs": {name: value, **more}}}
    asked = [want.input for want in wants.wants_of(graph, NODE_CLASS_MAPPINGS)]
    assert asked == ([] if want.why == wants.VOTES else [name])  # which has but a name, and is made where it is missing
    graph["1"]["inputs"][name] = str(made(elsewhere, want.why)) + (" = 1" if name == "guides" else "")
    collector = Collector(Workflow(graph, NODE_CLASS_MAPPINGS), Contents(graph, "run"))
    collector.take("1")
    if want.why in STAYS:
        assert [problem.input for problem in collector.problems] == [name]
        return
    held = collector.contents
    assert not collector.problems and "/" not in graph["1"]["inputs"][name]
    assert any("mine" in file for file in held.copied) or [model.name for model in held.models] == ["mine"]


# --- nobody else says it ----------------------------------------------------------------------------------------------

# a socket of that name, of other nodes
SOCKETS = {("graph.py", "OTCA_LoadFlowModel", "model"), ("preflight.py", "OTCA_PromptDataset", "prompts")}
ROOMS = tuple("bundle canvas commands host page trainer/checks trainer/workflow/graph.py".split())  # those that ask
CLASSES = {
    name: {ids} if isinstance(ids, str) else set(ids)
    for name, ids in vars(types).items()
    if re.fullmatch(r"[A-Z]+_NODES?", name)
}
NAMED = {id_: {name for class_type, name in INPUTS if class_type == id_} for id_ in NODE_CLASS_MAPPINGS}


def lists_of_files(source):
    """(line, class, input) where a statement names a node class and one of the inputs by which that names files."""
    bodies = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Module | ast.ClassDef)]
    for statement in (
        statement for body in bodies for statement in body.body if not isinstance(statement, ast.ClassDef)
    ):
        texts = {node.value for node in ast.walk(statement) if isinstance(node, ast.Constant)}
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
        classes = texts & NAMED.keys() | {id_ for name in names & CLASSES.keys() for id_ in CLASSES[name]}
        yield from (
            (statement.lineno, id_, name) for id_ in sorted(classes) for name in sorted(NAMED.get(id_, set()) & texts)
        )


def test_no_list_of_node_classes_says_which_files_they_name():
    old = (
        'def f(g):\n    return [e["inputs"].get("start_from") for e in g.values() if e["class_type"] in MODEL_NODES]\n'
    )
    assert (1, "OTCA_MakeTrainable", "start_from") in list(lists_of_files(old)), "it finds what was there once"
    assert list(lists_of_files('LISTS = {"OTCA_RewardVote": ("votes",)}')) == [(1, "OTCA_RewardVote", "votes")]
    for room in ROOMS:
        for file in [PACK / room] if room.endswith(".py") else sorted((PACK / room).rglob("*.py")):
            lists = {(file.name, *hit) for _, *hit in lists_of_files(file.read_text(encoding="utf-8"))}
            assert not lists - SOCKETS, file
