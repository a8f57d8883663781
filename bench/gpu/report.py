"""GPU.md and gpu.json from the parts' files: `python -m comfyui_otca.bench.gpu.report [PARTS] [REPORT]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from .parts import ATTENTIONS, BATCHES, PARTS

PAGE, DATA = "GPU.md", "gpu.json"
HERE = Path(__file__).resolve().parent
NOBODY = "**Nobody has run this yet.** No line of this project has been measured on a GPU."
REHEARSAL = "**A rehearsal on {device}, in small.** Its figures mean nothing for a GPU: nobody has run this on one yet."
ITERATIONS = {
    **{f"batch_{batch}": f"batch {batch}" for batch in BATCHES},
    "kept_graph": "batch 1, kept graph",
    "sampled_steps": "batch 4, `sampled_steps` 1",
    "checkpointing": "batch 4, checkpointing",
    "compile": "batch 4, compiled",
    **{f"attention_{name}": f"batch 4, attention `{name}`" for name in ATTENTIONS},
    "z_image": "Z-Image's shape, guided, batch 1",
    "qwen_image": "Qwen-Image's shape, guided, batch 1",
}

Parts = Mapping[str, Mapping]


def read(folder: Path) -> dict[str, dict]:
    """The parts that there are, in the order of their table."""
    files = {name: folder / f"{name}.json" for name in PARTS}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}


def write(folder: Path, target: Path) -> None:
    parts = read(folder)
    target.mkdir(parents=True, exist_ok=True)
    (target / PAGE).write_text("\n".join(page(parts)) + "\n", encoding="utf-8")
    (target / DATA).write_text(json.dumps(parts, indent=2) + "\n", encoding="utf-8")


def page(parts: Parts) -> Iterator[str]:
    yield "# On a GPU"
    yield ""
    yield from _top(parts)
    yield ""
    yield "Made by `bench/gpu.sh`, which says in its first lines how to run it. It takes at most 25 minutes, needs no file, and"
    yield "goes on where it was stopped. Weights are random, in FLUX.1-dev's shape unless a row says another: a LoRA of rank 16,"
    yield "512 × 512, four steps of which three are trained. All figures are in `bench/gpu.json`."
    for section in (_problems, _tests, _iterations, _memory, _profile, _pictures, _processes):
        lines = list(section(parts))
        if lines:
            yield ""
            yield from lines


def _top(parts: Parts) -> Iterator[str]:
    if not parts:
        yield NOBODY
        return
    sizes = {(part["device"], part["tiny"]) for part in parts.values()}
    if any(tiny or not device.startswith("cuda") for device, tiny in sizes):
        yield REHEARSAL.format(device=" and ".join(sorted({device for device, _ in sizes})))
    states = [part["state"] for part in parts.values()]
    missing = len(PARTS) - len(parts)
    yield (
        f"{states.count('done')} parts done, {states.count('failed')} failed, {states.count('skipped')} left out, "
        f"{missing} not reached."
    )
    if machine := _result(parts, "rate"):
        memory = f", {machine['memory'] / 2**30:.0f} GiB" if machine["memory"] else ""
        yield ""
        yield f"{machine['device']}{memory}, torch {machine['torch']}, CUDA {machine['cuda']}. The *matrix rate* below,"
        yield f"measured in the same run with bfloat16 matrices, is {machine['rate'] / 1e12:.4g} TFLOP/s."


def _problems(parts: Parts) -> Iterator[str]:
    """What is not here, and why."""
    rows = [(name, part) for name, part in parts.items() if part["state"] != "done"]
    if rows:
        yield "## What is not here"
        yield ""
        yield "| part | | why |"
        yield "|---|---|---|"
    for name, part in rows:
        yield f"| {name} | {'**failed**' if part['state'] == 'failed' else 'left out'} | {_cell(part['reason'])} |"


def _tests(parts: Parts) -> Iterator[str]:
    rows = {name: _result(parts, name) for name in ("gpu_tests", "anywhere_tests")}
    if not any(rows.values()):
        return
    yield "## Tests"
    yield ""
    yield "| | passed | failed | skipped |"
    yield "|---|---|---|---|"
    words = {"gpu_tests": "marked `gpu`", "anywhere_tests": "marked `anywhere`, on this device"}
    for name, found in rows.items():
        if found:
            yield f"| {words[name]} | {found['passed']} | {found['failed']} | {found['skipped']} |"
    for found in filter(None, rows.values()):
        for failure in found["failures"]:
            yield f"- failed: `{failure}`"
    if collective := _result(parts, "collectives"):
        yield ""
        yield f"Collectives of a process alone: {collective['backend']}, right."


def _iterations(parts: Parts) -> Iterator[str]:
    rows = {words: _result(parts, name) for name, words in ITERATIONS.items()}
    if not any(rows.values()):
        return
    yield "## An iteration against its floor and the matrix rate"
    yield ""
    yield "The floor is the same transformer calls, bare. Shares of the matrix rate count what a LoRA needs: recomputation by"
    yield "checkpointing is no use."
    yield ""
    yield "| | samples | rollout s | update s | iteration ÷ floor | rollout, of the matrix rate | update, of the matrix rate |"
    yield "|---|---|---|---|---|---|---|"
    for words, found in rows.items():
        if found:
            seconds = found["seconds"]
            ratio = (seconds["sampling"] + seconds["update"]) / found["floor_seconds"]
            shares = " | ".join(_percent(found[f"{phase}_share_of_rate"]) for phase in ("rollout", "update"))
            times = f"{seconds['sampling']:.3f} | {seconds['update']:.3f}"
            yield f"| {words} | {found['samples']} | {times} | {ratio:.2f} | {shares} |"
    plain, kept = (_result(parts, name) for name in ("batch_1", "kept_graph"))
    if plain and kept:
        gain = plain["seconds"]["iteration"] / kept["seconds"]["iteration"]
        yield ""
        yield f"Kept graph: {gain:.2f} × as fast as recomputing. The aim is 1.25, and 45 % of the matrix rate for the update."
    shares = {found["share_of_blocks"] for found in rows.values() if found}
    if shares - {1.0}:
        yield ""
        yield f"The device holds {min(shares):.3g} of the model's blocks; the shares of the matrix rate are those of all of them."


def _memory(parts: Parts) -> Iterator[str]:
    rows = {words: _result(parts, name) for name, words in ITERATIONS.items()}
    if not any(rows.values()):
        return
    yield "## Peak memory against the estimate"
    yield ""
    yield "| | weights GB | peak GB | by `otca memory` GB | peak ÷ estimate |"
    yield "|---|---|---|---|---|"
    for words, found in rows.items():
        if found:
            sizes = [found[name] / 1e9 for name in ("weights_bytes", "peak_bytes", "estimated_bytes")]
            yield f"| {words} | {' | '.join(f'{size:.2f}' for size in sizes)} | {sizes[1] / sizes[2]:.2f} |"


def _profile(parts: Parts) -> Iterator[str]:
    if found := _result(parts, "profile"):
        yield "## What takes the time"
        yield ""
        count, seconds = len(found["largest"]), found["total_seconds"]
        yield f"The {count} largest of an iteration, batch {found['batch']}, {seconds:.3f} s in all."
        yield ""
        yield "| | calls | s | share |"
        yield "|---|---|---|---|"
        for row in found["largest"]:
            share = _percent(row["seconds"] / found["total_seconds"])
            yield f"| `{_cell(row['name'])}` | {row['calls']} | {row['seconds']:.4f} | {share} |"


def _pictures(parts: Parts) -> Iterator[str]:
    rows = {words: _result(parts, name) for name, words in {"decode": "decoded", "rewards": "judged"}.items()}
    if not any(rows.values()):
        return
    yield "## Pictures a second"
    yield ""
    yield "| | | pictures a second |"
    yield "|---|---|---|"
    for words, found in rows.items():
        for how, rate in (found or {"pictures_per_second": {}})["pictures_per_second"].items():
            yield f"| {words} | {how} | {rate:.1f} |"


def _processes(parts: Parts) -> Iterator[str]:
    if found := _result(parts, "processes"):
        yield "## Several GPUs"
        yield ""
        norms = ", ".join(f"{norm:.6g} by {count}" for count, norm in found["gradient_norm"].items())
        yield f"The embedded model by one process and by {found['processes']}: the first gradient's norm is {norms}."


def _result(parts: Parts, name: str) -> Mapping | None:
    return parts[name]["result"] if name in parts and parts[name]["state"] == "done" else None


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:]]
    write(*(folders + [HERE / "results", HERE.parent][len(folders) :]))
