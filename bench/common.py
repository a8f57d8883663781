"""What the benchmarks share: the workflow that they time, its tiny variants, waiting for the device, and tables."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
API = ROOT / "workflows" / "api"
WORKFLOW = API / "otca.json"
EVALUATION = "a red circle on a blue background\na green square on a white background"


def graph(changes: Mapping[str, Mapping[str, Any]], source: Path = WORKFLOW) -> dict[str, dict]:
    """An exported graph with other inputs: {class: {input: value}}."""
    content = json.loads(source.read_text(encoding="utf-8"))
    for entry in content.values():
        entry["inputs"].update(changes.get(entry["class_type"], {}))
    return content


def wait(device: torch.device) -> None:
    """Waits until the device has done all that it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the least and the most."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} … {max(values):.{digits}f})"


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
