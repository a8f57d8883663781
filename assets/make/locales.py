"""`python -m comfyui_otca.assets.make.locales`: writes locales/en/nodeDefs.json from the node classes, its one source.

ComfyUI reads that file at every start; a translation is a copy of it in a folder of its language.
"""

from __future__ import annotations

import json
from pathlib import Path

from ...nodes import NODE_CLASS_MAPPINGS

ENGLISH = Path(__file__).resolve().parents[2] / "locales" / "en"


def node_definitions() -> dict[str, dict]:
    """{node id: title, description, and each input's and output's name and tooltip}, in ComfyUI's layout."""
    return {name: _definition(node) for name, node in NODE_CLASS_MAPPINGS.items()}


def as_text(content: dict) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _definition(node: type) -> dict:
    declared = node.INPUT_TYPES()
    inputs = {**declared["required"], **declared.get("optional", {})}
    definition = {"display_name": node.TITLE, "description": node.DESCRIPTION}
    definition["inputs"] = {
        name: _named(options["display_name"], options["tooltip"]) for name, (_, options) in inputs.items()
    }
    names = getattr(node, "RETURN_NAMES", ())
    tooltips = getattr(node, "OUTPUT_TOOLTIPS", (None,) * len(names))
    definition["outputs"] = {
        str(number): _named(*output) for number, output in enumerate(zip(names, tooltips, strict=True))
    }
    return definition


def _named(name: str, tooltip: str | None) -> dict[str, str]:
    return {"name": name, "tooltip": tooltip} if tooltip else {"name": name}


if __name__ == "__main__":
    ENGLISH.mkdir(parents=True, exist_ok=True)
    (ENGLISH / "nodeDefs.json").write_text(as_text(node_definitions()), encoding="utf-8")
