"""What ComfyUI's files say in English is what the node classes and the extension say; other languages say all of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tools import locales
from comfyui_otca.tools.locales import (
    ENGLISH,
    FILES,
    LANGUAGE,
    LOCALES,
    PAGE,
    as_text,
    english,
    gaps,
    node_definitions,
    page_table,
    page_texts,
    table,
    texts,
    translated,
)

WEB = Path(__file__).resolve().parent.parent / "web"
COMMAND = re.compile(r'id: "(OTCA\.\w+)",\s*label: "([^"]+)"(?:,\s*menubarLabel: "([^"]+)")?')


LANGUAGES = ["de", "es", "fr", "ja", "ko", "zh"]
IN_FILES = re.compile(r"In files and messages: (\w+)\.$")


def commands():
    """(id, label, label in the menu) of every command that the extension registers."""
    scripts = [place.read_text(encoding="utf-8") for place in WEB.rglob("*.js")]
    return [match for script in scripts for match in COMMAND.findall(script)]


def test_node_definitions_are_those_of_the_classes():
    told = (ENGLISH / "nodeDefs.json").read_text(encoding="utf-8")
    assert told == as_text(node_definitions()), "run python -m comfyui_otca.tools.locales to renew nodeDefs.json"


def test_every_part_of_a_category_has_its_name():
    parts = {part for node in NODE_CLASS_MAPPINGS.values() for part in node.CATEGORY.split("/")}
    # ComfyUI shares these keys among all packs, so that English must leave them as they are.
    assert english("main")["nodeCategories"] == {part: part for part in parts}


def test_commands_are_those_of_the_extension():
    assert english("commands") == {name.replace(".", "_"): {"label": label} for name, label, _ in commands()}


def test_menu_labels_are_those_of_the_extension():
    assert english("main")["menuLabels"] == {label: label for _, _, label in commands() if label}


def test_settings_are_those_of_the_extension():
    scripts = "".join(place.read_text(encoding="utf-8") for place in WEB.rglob("*.js"))
    found = re.findall(r'id: "(OTCA\.\w+)",\s*category: [^\n]*\s*name: "([^"]+)",\s*tooltip: "([^"]+)"', scripts)
    assert english("settings") == {
        id_.replace(".", "_"): {"name": name, "tooltip": tooltip} for id_, name, tooltip in found
    }
    assert len(found) == 7


# ComfyUI's page reads @, { }, and | in a translation as vue-i18n's syntax, and then shows something else.
SYNTAX = re.compile(r"[@{}|]")
VALUE = re.compile(r"\{\w+\}")  # where a text of the pack's own page has a value


@pytest.mark.parametrize("name", FILES)
def test_no_text_is_taken_for_a_message_format(name):
    assert not [text for text in texts(english(name)) if SYNTAX.search(text)]


def test_the_languages_are_those_that_have_a_table():
    assert locales.codes() == LANGUAGES
    assert sorted(path.name for path in LOCALES.iterdir()) == sorted([*LANGUAGES, "en"])


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_language_says_all_that_english_says_and_nothing_else(code):
    assert gaps(code) == ([], [])
    for file in FILES:
        written = (LOCALES / code / f"{file}.json").read_text(encoding="utf-8")
        assert written == as_text(translated(english(file), table(code))), "run python -m comfyui_otca.tools.locales"
    written = (PAGE / f"{code}.json").read_text(encoding="utf-8")
    assert written == as_text(page_table(code)), "run python -m comfyui_otca.tools.locales"


def test_the_page_knows_which_languages_it_has():
    listed = re.search(r"const LANGUAGES = (\[.*\]);", LANGUAGE.read_text(encoding="utf-8"))
    assert listed and json.loads(listed[1]) == LANGUAGES
    assert sorted(path.name for path in PAGE.iterdir()) == [f"{code}.json" for code in LANGUAGES]


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_translation_of_the_page_has_the_same_values(code):
    wrong = {
        text: translation
        for text, translation in page_table(code).items()
        if sorted(VALUE.findall(text)) != sorted(VALUE.findall(translation))
        or SYNTAX.search(VALUE.sub("", translation))
    }
    assert not wrong


def test_a_text_of_the_page_that_no_script_can_find_is_named(monkeypatch, tmp_path):
    script = tmp_path / "new.js"
    monkeypatch.setattr(locales, "WEB", tmp_path)
    script.write_text('const a = t("one");\nconst b = t(\n  "two \\"{name}\\"", { name });\nset(1);\n')
    assert page_texts() == ["one", 'two "{name}"']
    for wrong in ("t(`three ${name}`)", 't("three" + name)', 't("three " +\n  "four")'):
        script.write_text(f"\nconst c = {wrong};\n")
        with pytest.raises(ValueError, match="new.js, line 2"):
            page_texts()


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_translation_keeps_names_and_is_no_message_format(code):
    of_comfyui = {text for file in FILES for text in texts(english(file))}
    for text, translation in table(code).items():
        assert text not in of_comfyui or not SYNTAX.search(translation), translation
        if name := IN_FILES.search(text):
            assert re.search(rf"\b{name[1]}\b", translation, re.ASCII), translation


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_language_is_another_one(code):
    """Whoever copies English into a table is seen: of the tooltips, hardly one may be the same."""
    long = [text for text in table(code) if len(text) > 40]
    assert sum(table(code)[text] == text for text in long) <= len(long) // 100


def test_a_gap_is_named(monkeypatch):
    known = table("de")
    gone = next(iter(known))
    monkeypatch.setattr(
        locales, "table", lambda code: {key: known[key] for key in known if key != gone} | {"unsaid": "x"}
    )
    assert gaps("de") == ([gone], ["unsaid"])
    with pytest.raises(SystemExit, match="lacks: "):
        monkeypatch.setattr(locales, "codes", lambda: ["de"])
        locales.main()
