"""Parts of the benchmarks: the workflow that they time, its tiny variants, waiting for the device, and tables."""

from __future__ import annotations

import ctypes
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
API = ROOT / "workflows" / "api"
WORKFLOW = API / "otca.json"
PHASES = ("rollout", "reward", "credit", "update")  # of an iteration, as its report names them
EVALUATION = "a red circle on a blue background\na green square on a white background"


def graph(changes: Mapping[str, Mapping[str, Any]], source: Path = WORKFLOW) -> dict[str, dict]:
    """An exported graph with other inputs: {class: {input: value}}."""
    content = json.loads(source.read_text(encoding="utf-8"))
    for entry in content.values():
        entry["inputs"].update(changes.get(entry["class_type"], {}))
    return content


def wait(device: torch.device | None) -> None:
    """Waits until the device has done all that it was asked; None: nothing."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def give_back() -> None:
    """Collects garbage, and gives freed memory back to the system, so that the resident set is what is in use."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc keeps what was freed before
        libc.malloc_trim(0)


def take_turns(
    ways: Mapping[Any, Callable[[], Any]], rounds: int, device: torch.device | None = None
) -> tuple[dict[Any, float], dict[Any, Any]]:
    """Median seconds of each way, until the device has done it, and what it returned last. The first round warms up."""
    seconds: dict[Any, list[float]] = {way: [] for way in ways}
    results = {}
    for number in range(rounds + 1):
        for way, run in ways.items():
            wait(device)
            started = time.perf_counter()
            results[way] = run()
            wait(device)
            if number:
                seconds[way].append(time.perf_counter() - started)
    return {way: statistics.median(times) for way, times in seconds.items()}, results


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the least and the most."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} … {max(values):.{digits}f})"


def cell(text: str) -> str:
    """Any text, fit for a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
