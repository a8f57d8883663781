"""The blueprints in subgraphs/ are graphs that ComfyUI can open, of nodes as they are now."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "subgraphs").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_blueprint_is_one_node_and_its_subgraph(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    (outer,), (graph,) = content["nodes"], content["definitions"]["subgraphs"]
    assert outer["type"] == graph["id"] and outer["title"] == graph["name"] == path.stem
    assert [slot["name"] for slot in outer["inputs"]] == [slot["name"] for slot in graph["inputs"]]
    assert [slot["name"] for slot in outer["outputs"]] == [slot["name"] for slot in graph["outputs"]]
    assert graph["category"] == "OTCA" and len(graph["description"]) > 20
    assert all(slot["linkIds"] for slot in (*graph["inputs"], *graph["outputs"])), "each leads somewhere"
    names = {slot["name"]: number for number, slot in enumerate(graph["inputs"])}
    assert len(names) == len(graph["inputs"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_nodes_have_the_inputs_that_they_have_now(path):
    (graph,) = json.loads(path.read_text(encoding="utf-8"))["definitions"]["subgraphs"]
    ours = [node for node in graph["nodes"] if node["type"].startswith("OTCA_")]
    assert ours
    for node in ours:
        declared = NODE_CLASS_MAPPINGS[node["type"]].INPUT_TYPES()
        wanted = {name for section in ("required", "optional") for name in declared.get(section, {})}
        named = {slot["name"] for slot in node["inputs"]}
        assert {name for name in named if not name.startswith("reward_")} == {
            name for name in wanted if not name.startswith("reward_")
        }, "make it anew: python -m comfyui_otca.tools.canvases --blueprints"


def test_pick_best_generates_eight_and_keeps_two():
    content = json.loads((ROOT / "subgraphs" / "Pick Best.json").read_text(encoding="utf-8"))
    values = content["nodes"][0]["widgets_values_named"]
    assert (values["generate"], values["keep"]) == (8, 2)


def test_they_are_in_the_package():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (data,) = re.findall(r'package-data = \{ "comfyui_otca" = (\[.*\]) \}', project)
    assert "subgraphs/**" in json.loads(data)
