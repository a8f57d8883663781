"""`python -m comfyui_otca.tools.locales`: writes what ComfyUI's page shows of the pack in each language.

locales/ has what ComfyUI itself shows and translates, web/languages/ what the pack's own scripts show: their t("…").

English nodeDefs.json comes from the node classes; English commands, settings and menus are written by hand, beside the scripts
that register them; the scripts' texts stand where they are used. Every other language is English with each text looked up in its
table, languages/<code>.json, {English: translation}. A text that has no translation there is an error, and so is a translation of
a text that nothing says any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..nodes import NODE_CLASS_MAPPINGS

LOCALES = Path(__file__).resolve().parents[1] / "locales"
ENGLISH = LOCALES / "en"
TABLES = Path(__file__).with_name("languages")
WEB = LOCALES.parent / "web"
PAGE = WEB / "languages"
LANGUAGE = WEB / "lib" / "language.js"  # which defines t
CALL = re.compile(r"(?<![\w.$])t\(\s*(?P<literal>\"(?:[^\"\\\n]|\\.)*\"\s*[,)])?")
FILES = ("nodeDefs", "settings", "commands", "main")


def node_definitions() -> dict[str, dict]:
    """{node id: title, description, and each input's and output's name and tooltip}, in ComfyUI's layout."""
    return {name: _definition(node) for name, node in NODE_CLASS_MAPPINGS.items()}


def as_text(content: dict) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def english(file: str) -> dict:
    return json.loads((ENGLISH / f"{file}.json").read_text(encoding="utf-8"))


def table(code: str) -> dict[str, str]:
    """A language's {English: translation}."""
    return json.loads((TABLES / f"{code}.json").read_text(encoding="utf-8"))


def codes() -> list[str]:
    """The languages that have a table."""
    return sorted(path.stem for path in TABLES.glob("*.json"))


def texts(value: Any) -> Iterator[str]:
    """Every text of a file's content, in its order."""
    if isinstance(value, str):
        yield value
    else:
        for each in value.values():
            yield from texts(each)


def page_texts() -> list[str]:
    """What the pack's own scripts say, each text once. Raises ValueError for a text that only their run would tell."""
    found: dict[str, None] = {}
    for script in sorted(WEB.rglob("*.js")):
        content = script.read_text(encoding="utf-8")
        for call in CALL.finditer(content) if script != LANGUAGE else ():
            if not (literal := call["literal"]):
                line = content.count("\n", 0, call.start()) + 1
                raise ValueError(
                    f'{script.name}, line {line}: t takes one literal text. Fix: t("… {{name}} …", {{ name }})'
                )
            found[json.loads(literal.rstrip(",) \n"))] = None
    return list(found)


def page_table(code: str) -> dict[str, str]:
    """What the scripts look texts up in. Raises KeyError for one that is not there."""
    known = table(code)
    return {text: known[text] for text in page_texts()}


def gaps(code: str) -> tuple[list[str], list[str]]:
    """English texts that a language's table lacks, and texts in it that nothing says any more."""
    said = dict.fromkeys([*(text for file in FILES for text in texts(english(file))), *page_texts()])
    known = table(code)
    return [text for text in said if not known.get(text)], [text for text in known if text not in said]


def translated(content: Any, known: dict[str, str]) -> Any:
    """The same content with every text looked up. Raises KeyError for one that is not there."""
    return (
        known[content] if isinstance(content, str) else {key: translated(each, known) for key, each in content.items()}
    )


def _definition(node: type) -> dict:
    declared = node.INPUT_TYPES()
    inputs = {**declared["required"], **declared.get("optional", {})}
    definition = {"display_name": node.TITLE, "description": node.DESCRIPTION}
    definition["inputs"] = {
        name: _named(options["display_name"], options["tooltip"]) for name, (_, options) in inputs.items()
    }
    names, labels = getattr(node, "RETURN_NAMES", ()), getattr(node, "OUTPUT_LABELS", {})
    tooltips = getattr(node, "OUTPUT_TOOLTIPS", (None,) * len(names))
    definition["outputs"] = {
        str(number): _named(labels.get(name, name), tooltip)
        for number, (name, tooltip) in enumerate(zip(names, tooltips, strict=True))
    }
    return definition


def _named(name: str, tooltip: str | None) -> dict[str, str]:
    return {"name": name, "tooltip": tooltip} if tooltip else {"name": name}


def main() -> None:
    ENGLISH.mkdir(parents=True, exist_ok=True)
    (ENGLISH / "nodeDefs.json").write_text(as_text(node_definitions()), encoding="utf-8")
    wrong = []
    for code in codes():
        missing, stale = gaps(code)
        wrong += [f"languages/{code}.json lacks: {text}" for text in missing]
        wrong += [f"languages/{code}.json has what nothing says: {text}" for text in stale]
        if missing:
            continue
        (LOCALES / code).mkdir(exist_ok=True)
        for file in FILES:
            content = as_text(translated(english(file), table(code)))
            (LOCALES / code / f"{file}.json").write_text(content, encoding="utf-8")
        PAGE.mkdir(exist_ok=True)
        (PAGE / f"{code}.json").write_text(as_text(page_table(code)), encoding="utf-8")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
