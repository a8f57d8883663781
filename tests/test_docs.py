"""The help pages: one a node, complete, with the pictures that they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS

DOCS = Path(__file__).resolve().parent.parent / "web" / "docs"
SECTIONS = ["When to use it", "Equation", "Inputs", "Outputs", "When something goes wrong", "Reference"]
MOST_BYTES = 300_000


def page(node):
    return (DOCS / f"{node}.md").read_text(encoding="utf-8")


def table(text, section):
    """The names in the first column of that section's table."""
    part = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    return [name for row in re.findall(r"^\| (`.*?`) \|", part, re.M) for name in re.findall(r"`(\w+)`", row)]


def pictures(text):
    return re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text)


@pytest.mark.parametrize("node", NODE_CLASS_MAPPINGS)
def test_a_page_has_its_nodes_title_and_all_sections(node):
    text = page(node)
    assert text.startswith(f"# {NODE_CLASS_MAPPINGS[node].TITLE}\n")
    assert re.findall(r"^## (.*)", text, re.M) == SECTIONS


@pytest.mark.parametrize("node", NODE_CLASS_MAPPINGS)
def test_a_page_names_every_input_and_output_and_no_other(node):
    declared = NODE_CLASS_MAPPINGS[node].INPUT_TYPES()
    assert table(page(node), "Inputs") == [*declared["required"], *declared.get("optional", {})]
    assert table(page(node), "Outputs") == list(getattr(NODE_CLASS_MAPPINGS[node], "RETURN_NAMES", ()))


@pytest.mark.parametrize("node", NODE_CLASS_MAPPINGS)
def test_pictures_are_there_described_and_small(node):
    shown = pictures(page(node))
    assert shown
    for description, path in shown:
        assert description
        # The panel puts the pack's own address before a relative path, and before nothing else.
        assert path.startswith("pictures/") and (DOCS / path).is_file()
        assert (DOCS / path).stat().st_size <= MOST_BYTES


def test_there_is_no_page_of_an_unknown_node():
    assert {place.stem for place in DOCS.glob("*.md")} == set(NODE_CLASS_MAPPINGS)


def test_no_picture_is_left_over():
    shown = {path for node in NODE_CLASS_MAPPINGS for _, path in pictures(page(node))}
    assert {f"pictures/{place.name}" for place in (DOCS / "pictures").iterdir()} == shown
