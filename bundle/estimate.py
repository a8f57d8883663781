"""What a training needs and how long it takes, as far as that is known. Estimates say that they are; nothing is made up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from ..host import paths
from ..host.files import Damaged
from ..host.text import plain_name
from ..trainer.memory import needs
from ..trainer.memory.case import GB
from ..trainer.run.folder import METRICS, WORKFLOW, read_lines, read_own
from ..trainer.types import RUN_NODE
from ..trainer.workflow.graph import planned_iterations
from ..trainer.workflow.lineage import changes


def memory(graph: Mapping[str, Mapping], comfyui: Path | None) -> dict[str, Any]:
    """{"bytes", "phase", "note"} of one GPU, or {"unknown": why}. The one place here that asks what `otca memory` asks."""
    try:
        case, _ = needs.read(graph, comfyui)
    except (OSError, ValueError) as error:
        return {"unknown": str(error)}
    found = case.needs
    return {"bytes": int(found.total), "phase": found.phase, "note": "an estimate by arithmetic, not measured"}


def pace(graph: Mapping[str, Mapping], folder: Path | None = None) -> dict[str, Any]:
    """{"samples_per_hour", "hours", "note"} by what the same workflow took here, or {"unknown": why}.

    Args:
        folder: of a run; None: the one that has the name in the graph.
    """
    unknown = "this workflow has not been trained where the bundle was made, so nobody knows how long it takes"
    folder = folder or _run_of(graph)
    try:
        trained = read_own(folder, WORKFLOW) if folder else None
        rows = read_lines(folder / METRICS) if folder and trained and not changes(trained, graph) else []
    except Damaged as error:
        return {"unknown": str(error)}
    # The first iteration of a process also waits for what is loaded then.
    seconds = [row["seconds/iteration"] for row in rows[1:] if row.get("seconds/iteration")]
    speeds = [row["samples_per_second"] for row in rows[1:] if row.get("samples_per_second")]
    iterations = planned_iterations(graph)
    if not seconds or not speeds or not iterations:
        return {"unknown": unknown}
    return {
        "samples_per_hour": median(speeds) * 3600,
        "hours": median(seconds) * iterations / 3600,
        "note": f"as {len(seconds)} iterations took where the bundle was made; another machine is faster or slower",
    }


def _run_of(graph: Mapping[str, Mapping]) -> Path | None:
    names = [entry["inputs"].get("run_name") for entry in graph.values() if entry["class_type"] == RUN_NODE]
    try:
        return paths.runs_folder() / plain_name(names[0])
    except (IndexError, ValueError):
        return None


def in_words(memory: Mapping[str, Any], pace: Mapping[str, Any]) -> list[str]:
    """A line about memory and one about time, for people. What a manifest from elsewhere holds may be anything."""
    lines = []
    size, phase = memory.get("bytes"), memory.get("phase")
    if isinstance(size, int):
        lines.append(f"memory: about {size / GB:.1f} GB on each GPU, in {str(phase)[:40]} (an estimate by arithmetic)")
    else:
        lines.append(f"memory: unknown ({_short(memory)})")
    speed, hours = pace.get("samples_per_hour"), pace.get("hours")
    if isinstance(speed, float) and isinstance(hours, float):
        lines.append(
            f"time: about {hours:.2g} hours, {speed:.3g} samples an hour (an estimate: {_short(pace, 'note')})"
        )
    else:
        lines.append(f"time: unknown ({_short(pace)})")
    return lines


def _short(said: Mapping[str, Any], name: str = "unknown") -> str:
    return " ".join(str(said.get(name, "the manifest does not say it"))[:300].split())
