"""What ComfyUI's translation files say in English is what the node classes and the extension say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from comfyui_otca.assets.make.locales import ENGLISH, as_text, node_definitions
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS

WEB = Path(__file__).resolve().parent.parent / "web"
COMMAND = re.compile(r'id: "(OTCA\.\w+)",\s*label: "([^"]+)"(?:,\s*menubarLabel: "([^"]+)")?')


def content(name):
    return json.loads((ENGLISH / f"{name}.json").read_text(encoding="utf-8"))


def strings(value):
    return [value] if isinstance(value, str) else [text for item in value.values() for text in strings(item)]


def commands():
    """(id, label, label in the menu) of every command that the extension registers."""
    scripts = [place.read_text(encoding="utf-8") for place in WEB.rglob("*.js")]
    return [match for script in scripts for match in COMMAND.findall(script)]


def test_node_definitions_are_those_of_the_classes():
    told = (ENGLISH / "nodeDefs.json").read_text(encoding="utf-8")
    assert told == as_text(node_definitions()), "run python -m comfyui_otca.assets.make.locales to renew nodeDefs.json"


def test_every_part_of_a_category_has_its_name():
    parts = {part for node in NODE_CLASS_MAPPINGS.values() for part in node.CATEGORY.split("/")}
    # ComfyUI shares these keys among all packs, so that English must leave them as they are.
    assert content("main")["nodeCategories"] == {part: part for part in parts}


def test_commands_are_those_of_the_extension():
    assert content("commands") == {name.replace(".", "_"): {"label": label} for name, label, _ in commands()}


def test_menu_labels_are_those_of_the_extension():
    assert content("main")["menuLabels"] == {label: label for _, _, label in commands() if label}


def test_settings_are_those_of_the_extension():
    scripts = "".join(place.read_text(encoding="utf-8") for place in WEB.rglob("*.js"))
    found = re.findall(r'id: "(OTCA\.\w+)",\s*category: [^\n]*\s*name: "([^"]+)",\s*tooltip: "([^"]+)"', scripts)
    assert content("settings") == {
        id_.replace(".", "_"): {"name": name, "tooltip": tooltip} for id_, name, tooltip in found
    }
    assert len(found) == 1


@pytest.mark.parametrize("name", ["main", "nodeDefs", "commands"])
def test_no_text_is_taken_for_a_message_format(name):
    # ComfyUI's page reads @, { }, and | in a translation as vue-i18n's syntax, and then shows something else.
    assert not [text for text in strings(content(name)) if re.search(r"[@{}|]", text)]
