"""The single pictures in a run's grids of samples: which prompt and seed each is of, and where it lies."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from ..host.files import open_plain
from ..trainer.pictures import sheet
from ..trainer.run.folder import EVALUATIONS, SAMPLES, check_evaluation
from .reading import all_rows
from .runs import Run

MOST_PICTURES = 32  # in a grid, as `save_pictures` of trainer/run/evaluation.py makes it
PNG, HEADER = b"\x89PNG\r\n\x1a\n", struct.Struct(">8s8xII")


def pictures_of(run: Run) -> dict[str, Any]:
    """{grids: [{iteration, file, size, pictures: [{prompt, seed, box}]}]} of all evaluations whose grid is understood.

    `seed` counts the fixed seeds of evaluations from 0, the same in every run; `box` is left, top, width, height.
    """
    rows = {row["iteration"]: row for row in all_rows(run.file(EVALUATIONS), check_evaluation)}
    grids = []
    for file in run.samples():
        iteration = int(file.removesuffix(".png"))
        path = run.file(f"{SAMPLES}/{file}")
        size, row = _size(path) if path else None, rows.get(iteration)
        if size is None or row is None:
            continue
        pairs = _pairs(row)
        found = sheet.found_in(size, [prompt for prompt, _ in pairs])
        if found is not None:
            pictures = [{"prompt": p, "seed": s, "box": found.box(k)} for k, (p, s) in enumerate(pairs)]
            grids.append({"iteration": iteration, "file": file, "size": size, "pictures": pictures})
    return {"grids": grids}


def _pairs(row: dict[str, Any]) -> list[tuple[str, int]]:
    """Prompt and seed of each picture, in the order in which an evaluation samples them."""
    prompts = row.get("prompts") or []
    counts = [len(figures["values"]) for figures in row["rewards"].values() if figures.get("values")]
    seeds = max(counts, default=0) // len(prompts) if prompts else 0
    return [(prompt, seed) for seed in range(max(1, seeds)) for prompt in prompts][:MOST_PICTURES]


def _size(path: Path) -> tuple[int, int] | None:
    """Width and height of a PNG, by its header."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            magic, width, height = HEADER.unpack(file.read(HEADER.size))
    except (OSError, struct.error):
        return None
    return (width, height) if magic == PNG else None
