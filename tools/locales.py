"""`python -m comfyui_otca.tools.locales`: renews what ComfyUI's page shows of the pack in each language.

locales/<code>/ has what ComfyUI itself shows and translates, web/languages/<code>.json what the pack's own scripts show: their
t("…"). English is written by this program, from the node classes and the scripts. Translations are written by hand, in these
same files, and kept nowhere else.

After a change of English, run it. A text that is new or that says something else is left "" in each language, and named: write
its translation at one place and run it again, which puts it wherever the same English stands. What nothing says any more is taken
away. A node without a help page, a reward of one file, is left out where it has no translation: ComfyUI shows its English. It
compares with the English that is there: reword that too (locales/en/, the keys of web/languages/) if the meaning stays, and the
translations stay. In a conflict take the whole locales/ and web/languages/ of one side, and run it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..nodes import NODE_CLASS_MAPPINGS

LOCALES = Path(__file__).resolve().parents[1] / "locales"
WEB = LOCALES.parent / "web"
LANGUAGE = WEB / "lib" / "language.js"  # which defines t
CALL = re.compile(r"(?<![\w.$])t\(\s*(?P<literal>\"(?:[^\"\\\n]|\\.)*\"\s*[,)])?")
COMMAND = re.compile(r'id: "(OTCA\.\w+)",\s*label: "([^"]+)"(?:,\s*menubarLabel: "([^"]+)")?')
SETTING = re.compile(r'id: "(OTCA\.\w+)",\s*category: [^\n]*\s*name: "([^"]+)",\s*tooltip: "([^"]+)"')
FILES = ("nodeDefs", "settings", "commands", "main")


def codes() -> list[str]:
    """The languages besides English."""
    return sorted(folder.name for folder in LOCALES.iterdir() if folder.name != "en")


def content(code: str, file: str) -> dict:
    return json.loads((LOCALES / code / f"{file}.json").read_text(encoding="utf-8"))


def page_table(code: str) -> dict[str, str]:
    """The table in which the scripts look texts up: {English: translation}."""
    return json.loads((WEB / "languages" / f"{code}.json").read_text(encoding="utf-8"))


def as_text(value: dict, indent: str = "") -> str:
    """JSON with an input, an output or a setting on one line."""
    if value.keys() <= {"name", "tooltip", "label"}:
        return json.dumps(value, ensure_ascii=False)
    rows = []
    for key, item in value.items():
        text = as_text(item, f"{indent} ") if isinstance(item, dict) else json.dumps(item, ensure_ascii=False)
        rows.append(f"{indent} {json.dumps(key, ensure_ascii=False)}: {text}")
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}" + ("" if indent else "\n")


def texts(value: Mapping[str, Any], *place: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(place, text) of every text of a file's content, in its order."""
    for key, item in value.items():
        if isinstance(item, str):
            yield (*place, key), item
        else:
            yield from texts(item, *place, key)


def english() -> dict[str, dict]:
    """{file: content} as the node classes and the scripts say it now."""
    scripts = "".join(script.read_text(encoding="utf-8") for script in sorted(WEB.rglob("*.js")))
    commands = COMMAND.findall(scripts)
    parts = {part: part for node in NODE_CLASS_MAPPINGS.values() for part in node.CATEGORY.split("/")}
    return {
        "nodeDefs": {name: _definition(node) for name, node in NODE_CLASS_MAPPINGS.items()},
        "settings": {
            id_.replace(".", "_"): {"name": name, "tooltip": tooltip} for id_, name, tooltip in SETTING.findall(scripts)
        },
        "commands": {id_.replace(".", "_"): {"label": label} for id_, label, _ in commands},
        # ComfyUI shares these keys among all packs, so that English must leave them as they are.
        "main": {"nodeCategories": parts, "menuLabels": {label: label for _, _, label in commands if label}},
    }


def page_texts() -> list[str]:
    """The texts of the pack's own scripts, each once. Raises ValueError for a text that only their run would tell."""
    texts: dict[str, None] = {}
    for script in sorted(WEB.rglob("*.js")):
        code = script.read_text(encoding="utf-8")
        for call in CALL.finditer(code) if script != LANGUAGE else ():
            if not (literal := call["literal"]):
                line = code.count("\n", 0, call.start()) + 1
                raise ValueError(
                    f'{script.name}, line {line}: t takes one literal text. Fix: t("… {{name}} …", {{ name }})'
                )
            texts[json.loads(literal.rstrip(",) \n"))] = None
    return list(texts)


def _definition(node: type) -> dict:
    """A node's title, description, and each input's and output's name and tooltip, in ComfyUI's layout."""
    declared = node.INPUT_TYPES()
    inputs = {**declared["required"], **declared.get("optional", {})}
    names, labels = getattr(node, "RETURN_NAMES", ()), getattr(node, "OUTPUT_LABELS", {})
    tooltips = getattr(node, "OUTPUT_TOOLTIPS", ())
    return {
        "display_name": node.TITLE,
        "description": node.DESCRIPTION,
        "inputs": {
            name: {"name": options["display_name"], "tooltip": options["tooltip"]}
            for name, (_, options) in inputs.items()
        },
        "outputs": {
            str(number): {"name": labels.get(name, name), "tooltip": tooltip}
            for number, (name, tooltip) in enumerate(zip(names, tooltips, strict=True))
        },
    }


def _said(value: Mapping[str, Any], told: Mapping[tuple[str, ...], str], *place: str) -> dict:
    """`value` with the text that is `told` at each place."""
    return {
        key: told[(*place, key)] if isinstance(item, str) else _said(item, told, *place, key)
        for key, item in value.items()
    }


def renewed(code: str, now: dict[str, dict], page: list[str]) -> tuple[dict[str, dict], dict[str, str]]:
    """A language's files and its table of the page for a new English; "" for a text that has not been translated."""
    old, words = (dict(texts({file: content(which, file) for file in FILES})) for which in ("en", code))
    by_english = {english: words[place] for place, english in old.items() if words.get(place)}
    by_english |= {english: translation for english, translation in page_table(code).items() if translation}
    kept = {
        place: words[place] if old.get(place) == english and words.get(place) else by_english.get(english, "")
        for place, english in texts(now)
    }
    files = _said(now, kept)
    for name in [name for name in files.get("nodeDefs", {}) if not (WEB / "docs" / f"{name}.md").exists()]:
        if not all(text for _, text in texts(files["nodeDefs"][name])):
            del files["nodeDefs"][name]
    return files, {english: by_english.get(english, "") for english in page}


def main() -> None:
    now, page, lacking = english(), page_texts(), []
    for code in codes():
        files, table = renewed(code, now, page)
        for file, value in files.items():
            (LOCALES / code / f"{file}.json").write_text(as_text(value), encoding="utf-8")
        (WEB / "languages" / f"{code}.json").write_text(as_text(table), encoding="utf-8")
        said = dict(texts(now))
        pairs = [*((said[place], text) for place, text in texts(files)), *table.items()]
        wanted = dict.fromkeys(english for english, translation in pairs if not translation)
        lacking += [f"{code} lacks: {text}" for text in wanted]
    for file, value in now.items():
        (LOCALES / "en" / f"{file}.json").write_text(as_text(value), encoding="utf-8")
    if lacking:
        raise SystemExit("\n".join(lacking))


if __name__ == "__main__":
    main()
