"""`python -m comfyui_otca.tools.knobs` renews the tables of docs/knobs.md: each setting, its default, one sentence."""

from __future__ import annotations

import re
from pathlib import Path

from ..nodes import NODE_CLASS_MAPPINGS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "knobs.md"
HELP = PAGE.parents[1] / "web" / "docs"


def page() -> str:
    """The page's text as it is now, with the tables that the node classes declare."""
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.split("\n## [", 1)[0], text.split("\n## Where to go next", 1)[1]
    return head + "".join(map(_section, NODE_CLASS_MAPPINGS)) + "\n## Where to go next" + tail


def _section(name: str) -> str:
    node = NODE_CLASS_MAPPINGS[name]
    declared, rows = node.INPUT_TYPES(), ""
    for key, (kind, options) in {**declared["required"], **declared.get("optional", {})}.items():
        if "default" in options or isinstance(kind, list):  # not a link
            default = options.get("default")
            value = str(default).lower() if isinstance(default, bool) else str("" if default is None else default)
            sentence = re.split(r"(?<=[.?!]) (?=[A-Z])", options["tooltip"])[0].replace("|", "\\|")
            rows += f"| `{key}` | {value and f'`{value}`'} | {sentence} |\n"
    if not (HELP / f"{name}.md").exists():  # all that is written of it
        return f"\n## {node.TITLE}\n\n{node.DESCRIPTION}\n\n| setting | default | what it is |\n|---|---|---|\n{rows}"
    if not rows or node.TITLE.startswith("Reward: "):
        return ""
    return f"\n## [{node.TITLE}](../web/docs/{name}.md)\n\n| setting | default | what it is |\n|---|---|---|\n{rows}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
