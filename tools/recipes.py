"""`python -m comfyui_otca.tools.recipes` prints the table of docs/models.md: what the templates do on GPUs of 8 to 48 GB."""

from __future__ import annotations

import json

from ..host.paths import ASSETS
from ..trainer.memory import needs
from ..trainer.memory.case import GB, Machine, in_words
from ..trainer.memory.native import NativeCase

API = ASSETS.parent / "workflows" / "api"
GPUS = (8, 12, 16, 24, 48)  # GB
TEMPLATES = ("z_image", "krea2", "qwen_image", "flux2_klein", "flux1", "wan22_5b", "wan22_14b")


def case_of(template: str, gpu: int) -> NativeCase:
    """The training of a template, by published figures, on a GPU of so many GB."""
    graph = json.loads((API / f"{template}.json").read_text(encoding="utf-8"))
    case, _ = needs.read(graph, Machine("a GPU", gpu * GB))
    assert isinstance(case, NativeCase), "these have Make Trainable"
    return case


def recipes_table() -> str:
    """The table of docs/models.md, in Markdown."""
    lines = ["| template | " + " | ".join(f"{gpu} GB" for gpu in GPUS) + " |", "|---" * (1 + len(GPUS)) + "|"]
    for template in TEMPLATES:
        cases = [case_of(template, gpu) for gpu in GPUS]
        cells = [_cell(case, gpu * GB) for case, gpu in zip(cases, GPUS, strict=True)]
        lines.append(f"| {cases[0].title}, {in_words(cases[0].iteration.size)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(case: NativeCase, has: int) -> str:
    ways, changed = case.together(has)
    if changed.needs.total > has:
        return f"no: {changed.needs.total / GB:.1f} GB"
    decided, words = changed.decided, [way.words for way in ways]
    words += [f"{changed.streamed / GB:.1f} GB of weights in main memory"] if changed.streamed else []
    words += [f"kept calls: {calls}"] if (calls := decided.iteration.kept_calls) else []
    words += ["no checkpointing"] if not decided.checkpointing else []
    words += [f"blocks not checkpointed: {blocks}"] if (blocks := decided.kept_blocks) else []
    return "; ".join(words or ["as it is"]) + f": {changed.needs.total / GB:.1f} GB"


if __name__ == "__main__":
    print(recipes_table())
