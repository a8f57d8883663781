"""What ComfyUI's files say in English is what the node classes and the extension say; other languages say all of it."""

from __future__ import annotations

import json
import re

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.documents import OF_ONE_FILE
from comfyui_otca.tools import knobs, locales
from comfyui_otca.tools.locales import FILES, LANGUAGE, LOCALES, WEB, as_text, content, english, page_table, page_texts

LANGUAGES = ["de", "es", "fr", "ja", "ko", "zh"]
IN_FILES = re.compile(r"In files and messages: (\w+)\.$")
# ComfyUI's page reads @, { }, and | in a translation as vue-i18n's syntax, and then shows something else.
SYNTAX = re.compile(r"[@{}|]")
VALUE = re.compile(r"\{\w+\}")  # where a text of the pack's own page has a value
RENEW = "run python -m comfyui_otca.tools.locales"


def texts(code):
    """{place: text} of all files that ComfyUI reads."""
    return dict(locales.texts({file: content(code, file) for file in FILES}))


def test_english_is_what_the_classes_and_the_scripts_say():
    now = english()
    assert knobs.PAGE.read_text(encoding="utf-8") == knobs.page(), "run python -m comfyui_otca.tools.knobs"
    for file in FILES:
        assert (LOCALES / "en" / f"{file}.json").read_text(encoding="utf-8") == as_text(now[file]), RENEW
    assert len(now["settings"]) == 7 and len(now["commands"]) >= len(now["main"]["menuLabels"]) == 6
    assert now["main"]["nodeCategories"].keys() == {
        part for node in NODE_CLASS_MAPPINGS.values() for part in node.CATEGORY.split("/")
    }
    outputs = now["nodeDefs"]["OTCA_ScoreImages"]["outputs"]
    assert [outputs[number]["name"] for number in ("2", "4")] == ["scores", "ranks"], "places is called by another word"
    assert not [text for text in texts("en").values() if SYNTAX.search(text)]


def test_the_page_knows_which_languages_it_has():
    listed = re.search(r"const LANGUAGES = (\[.*\]);", LANGUAGE.read_text(encoding="utf-8"))
    assert locales.codes() == LANGUAGES and listed and json.loads(listed[1]) == LANGUAGES
    assert sorted(path.name for path in (WEB / "languages").iterdir()) == [f"{code}.json" for code in LANGUAGES]


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_language_says_all_that_english_says_and_nothing_else(code):
    said, told, page = texts("en"), texts(code), page_table(code)
    lacking = {place for place in said.keys() - told.keys() if place[1] in OF_ONE_FILE}
    assert list(told) == [place for place in said if place not in lacking] and list(page) == page_texts(), RENEW
    assert all(told.values()) and all(page.values()), "a text has no translation"
    for file in FILES:
        assert (LOCALES / code / f"{file}.json").read_text(encoding="utf-8") == as_text(content(code, file)), RENEW
    for place, text in [(place, said[place]) for place in told]:
        assert not SYNTAX.search(told[place]), told[place]
        if name := IN_FILES.search(text):
            assert re.search(rf"\b{name[1]}\b", told[place], re.ASCII), told[place]
    for text, translation in page.items():
        assert sorted(VALUE.findall(text)) == sorted(VALUE.findall(translation)), text
        assert not SYNTAX.search(VALUE.sub("", translation)), text
    # Whoever copies English is seen: of the tooltips, hardly one may be the same.
    long = [(said[place], translation) for place, translation in told.items() if len(said[place]) > 40]
    long += [(text, translation) for text, translation in page.items() if len(text) > 40]
    assert sum(text == translation for text, translation in long) <= len(long) // 100


def test_a_text_of_the_page_that_no_script_can_find_is_named(monkeypatch, tmp_path):
    script = tmp_path / "new.js"
    monkeypatch.setattr(locales, "WEB", tmp_path)
    script.write_text('const a = t("one");\nconst b = t(\n  "two \\"{name}\\"", { name });\nset(1);\n')
    assert page_texts() == ["one", 'two "{name}"']
    for wrong in ("t(`three ${name}`)", 't("three" + name)', 't("three " +\n  "four")'):
        script.write_text(f"\nconst c = {wrong};\n")
        with pytest.raises(ValueError, match="new.js, line 2"):
            page_texts()


def test_a_new_english_keeps_what_it_can_of_a_language(monkeypatch):
    """Per place, and else by the text; what says something else is open, and what is gone is gone."""
    old = {"a": {"tip": "one"}, "b": {"tip": "two"}, "c": {"tip": "three"}, "d": {"tip": "one"}}
    told = {"a": {"tip": "eins"}, "b": {"tip": "zwei"}, "c": {"tip": "drei"}, "d": {"tip": "ein"}}
    monkeypatch.setattr(locales, "FILES", ("f",))
    monkeypatch.setattr(locales, "content", lambda code, file: old if code == "en" else told)
    monkeypatch.setattr(locales, "page_table", lambda code: {"stop": "halt", "gone": "weg", "new": ""})
    now = {"f": {"d": {"tip": "one"}, "b": {"tip": "2"}, "e": {"tip": "three"}, "g": {"tip": "stop"}}}
    files, page = locales.renewed("de", now, ["stop", "new", "two"])
    assert files == {"f": {"d": {"tip": "ein"}, "b": {"tip": ""}, "e": {"tip": "drei"}, "g": {"tip": "halt"}}}
    assert page == {"stop": "halt", "new": "", "two": "zwei"}


def test_a_reward_without_a_help_page_may_stay_untranslated_and_stands_among_the_settings(monkeypatch, tmp_path):
    monkeypatch.setattr(locales, "FILES", ("nodeDefs",))
    monkeypatch.setattr(locales, "content", lambda code, file: {})
    now = {"nodeDefs": {"OTCA_New": {"description": "new"}, "OTCA_SDESampler": {"description": "sampler"}}}
    assert locales.renewed("de", now, [])[0] == {"nodeDefs": {"OTCA_SDESampler": {"description": ""}}}
    assert "Reward: Brightness" not in knobs.page()
    monkeypatch.setattr(knobs, "HELP", tmp_path)
    assert "\n## Reward: Brightness\n\nHow bright the picture is" in knobs.page()


def test_a_text_without_a_translation_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(locales, "codes", list)
    monkeypatch.setattr(locales, "LOCALES", tmp_path)
    (tmp_path / "en").mkdir()
    locales.main()
    assert (tmp_path / "en" / "nodeDefs.json").read_text(encoding="utf-8") == as_text(english()["nodeDefs"])
    monkeypatch.undo()
    monkeypatch.setattr(locales, "codes", lambda: ["de"])
    monkeypatch.setattr(locales, "page_texts", lambda: ["What nothing says yet"])
    monkeypatch.setattr(locales.Path, "write_text", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="^de lacks: What nothing says yet$"):
        locales.main()
