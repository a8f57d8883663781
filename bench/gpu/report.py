"""GPU.md and gpu.json from the parts' files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from comfyui_otca.bench.common import cell, table

from .measures import ATTENTIONS, BATCHES, PARTS

PAGE, DATA = "GPU.md", "gpu.json"
NOT_YET = "**This has not been run yet.** No line of this project has been measured on a GPU."
REHEARSAL = (
    "**A rehearsal on {device}, in small.** Its figures mean nothing for a GPU, on which this has not been run yet."
)
ABOUT = """\
Made by `python -m comfyui_otca.bench.gpu`, whose `--help` says how to run it. It takes at most 25 minutes, needs no file, and
goes on where it was stopped. Weights are random, in FLUX.1-dev's shape unless a row says another: a LoRA of rank 16,
512 × 512, four steps of which three are trained. All figures are in `bench/gpu.json`."""
FLOOR = """\
The floor is the same transformer calls, bare. Shares of the matrix rate count what a LoRA needs: recomputation by
checkpointing adds nothing to them."""
GAIN = "Kept graph: {:.2f} × as fast as recomputing. The aim is 1.25, and 45 % of the matrix rate for the update."
OUT = "{} of the blocks stay in main memory, {:.1f} GB a pass: {:.2f} × the time of none."
ITERATIONS = {
    **{f"batch_{batch}": f"batch {batch}" for batch in BATCHES},
    "kept_graph": "batch 1, kept graph",
    "sampled_steps": "batch 4, `sampled_steps` 1",
    "checkpointing": "batch 4, checkpointing",
    "half_out": "batch 4, checkpointing, half of the blocks out",
    "all_out": "batch 4, checkpointing, all blocks out",
    "compile": "batch 4, compiled",
    **{f"attention_{name}": f"batch 4, attention `{name}`" for name in ATTENTIONS},
    "z_image": "Z-Image's shape, guided, batch 1",
    "qwen_image": "Qwen-Image's shape, guided, batch 1",
}

Parts = Mapping[str, Mapping]


def write(folder: Path, target: Path) -> dict[str, dict]:
    """Writes both files; returns the parts that there are, in the order of their table."""
    files = {name: folder / f"{name}.json" for name in PARTS}
    parts = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}
    target.mkdir(parents=True, exist_ok=True)
    (target / PAGE).write_text(page(parts), encoding="utf-8")
    (target / DATA).write_text(json.dumps(parts, indent=2) + "\n", encoding="utf-8")
    return parts


def page(parts: Parts) -> str:
    done = {name: part["result"] for name, part in parts.items() if part["state"] == "done"}
    states = {"failed": "**failed**", "skipped": "left out"}
    missing = [(n, states[p["state"]], cell(p["reason"])) for n, p in parts.items() if p["state"] in states]
    blocks = ["# On a GPU", *_top(parts, done.get("rate")), ABOUT]
    blocks += _section("What is not here", ("part", "", "why"), missing)
    blocks += [*_tests(done), *_iterations(done), *_profile(done)]
    words = {"decode": "decoded", "rewards": "judged"}
    rates = {name: done[name]["pictures_per_second"] for name in words if name in done}
    rows = [(words[name], how, f"{rate:.1f}") for name, figures in rates.items() for how, rate in figures.items()]
    blocks += _section("Pictures a second", ("", "", "pictures a second"), rows)
    if figures := done.get("processes"):
        rows = [(count, f"{norm:.6g}") for count, norm in figures["gradient_norm"].items()]
        blocks += _section("Several GPUs: the embedded model", ("processes", "the first gradient's norm"), rows)
    return "\n\n".join(filter(None, blocks)) + "\n"


def _section(title: str, heads: Iterable[str], rows: list[tuple], before: str = "", *after: str) -> list[str]:
    """Its blocks; none without rows."""
    return [f"## {title}", before, table(heads, rows), *after] if rows else []


def _top(parts: Parts, machine: Mapping | None) -> list[str]:
    if not parts:
        return [NOT_YET]
    rehearsed = sorted({p["device"] for p in parts.values() if p["tiny"] or not p["device"].startswith("cuda")})
    states = [part["state"] for part in parts.values()]
    head = REHEARSAL.format(device=" and ".join(rehearsed)) if rehearsed else ""
    count = f"{states.count('done')} parts done, {states.count('failed')} failed, {states.count('skipped')} left out, "
    blocks = [head, f"{count}{len(PARTS) - len(parts)} not reached."]
    if machine:
        memory = f", {machine['memory'] / 2**30:.0f} GiB" if machine["memory"] else ""
        blocks.append(
            f"{machine['device']}{memory}, torch {machine['torch']}, CUDA {machine['cuda']}. The *matrix rate* below,\n"
            f"measured in the same run with bfloat16 matrices, is {machine['rate'] / 1e12:.4g} TFLOP/s."
        )
    return blocks


def _tests(done: Parts) -> list[str]:
    words = {"gpu_tests": "marked `gpu`", "anywhere_tests": "marked `anywhere`, on this device"}
    results = {text: done[name] for name, text in words.items() if name in done}
    rows = [(text, *(counts[state] for state in ("passed", "failed", "skipped"))) for text, counts in results.items()]
    failures = "\n".join(f"- failed: `{failure}`" for counts in results.values() for failure in counts["failures"])
    backend = (
        f"Collectives of a process alone: {done['collectives']['backend']}, right." if "collectives" in done else ""
    )
    return _section("Tests", ("", "passed", "failed", "skipped"), rows, "", failures, backend)


def _iterations(done: Parts) -> list[str]:
    results = {words: done[name] for name, words in ITERATIONS.items() if name in done}
    times, memory = [], []
    for words, row in results.items():
        seconds = row["seconds"]
        ratio = (seconds["sampling"] + seconds["update"]) / row["floor_seconds"]
        shares = (_percent(row[f"{phase}_share_of_rate"]) for phase in ("rollout", "update"))
        phases = (f"{seconds[phase]:.3f}" for phase in ("sampling", "update"))
        times.append((words, row["samples"], *phases, f"{ratio:.2f}", *shares))
        sizes = [row[name] / 1e9 for name in ("weights_bytes", "peak_bytes", "estimated_bytes")]
        memory.append((words, *(f"{size:.2f}" for size in sizes), f"{sizes[1] / sizes[2]:.2f}"))
    gain = held = ""
    if "batch_1" in done and "kept_graph" in done:
        plain, kept = (done[name]["seconds"]["iteration"] for name in ("batch_1", "kept_graph"))
        gain = GAIN.format(plain / kept)
    for name in ("half_out", "all_out") if "checkpointing" in done else ():
        if row := done.get(name):
            ratio = row["seconds"]["iteration"] / done["checkpointing"]["seconds"]["iteration"]
            gain += "\n" * bool(gain) + OUT.format(row["blocks_out"], row["bytes_a_pass"] / 1e9, ratio)
    if (share := min((row["share_of_blocks"] for row in results.values()), default=1.0)) < 1:
        held = f"The device holds {share:.3g} of the model's blocks; the shares of the matrix rate are those of all of them."
    heads = ("", "samples", "rollout s", "update s", "iteration ÷ floor")
    heads += ("rollout, of the matrix rate", "update, of the matrix rate")
    heads_of_memory = ("", "weights GB", "peak GB", "by `otca memory` GB", "peak ÷ estimate")
    return [
        *_section("An iteration against its floor and the matrix rate", heads, times, FLOOR, gain, held),
        *_section("Peak memory against the estimate", heads_of_memory, memory),
    ]


def _profile(done: Parts) -> list[str]:
    if not (profile := done.get("profile")):
        return []
    total, rows = profile["total_seconds"], []
    for row in profile["largest"]:
        cells = f"{row['seconds']:.4f}", _percent(row["seconds"] / total)
        rows.append((f"`{cell(row['name'])}`", row["calls"], *cells))
    before = f"The {len(rows)} largest of an iteration, batch {profile['batch']}, {total:.3f} s in all."
    return _section("What takes the time", ("", "calls", "s", "share"), rows, before)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
