"""Does it learn? Trains workflows over several seeds and compares fixed prompt-seed pairs before and after.

    python bench/learning.py WORKFLOW … [--seeds 0 1 2] [--output DIR] [--jobs N] [--iterations N] [--set NODE.INPUT=VALUE …]

Every run is a process of its own (`otca train`); with --jobs N so many run side by side, each with its share of the cores.
Finished runs are not repeated. Prints a Markdown table: each reward before and after, its rise in units of its standard
deviation over the pairs before training, and the sum of these over the trained rewards. The standard error of a mean over
seeds and pairs adds both sources of chance: between seeds, and between the pairs' averages over seeds. --categories NAME adds
a table of one reward on scenes-flux by category of the prompts.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from comfyui_otca.trainer.rewards.scenes import parse_caption


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workflows", nargs="+", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs/learning"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="NODE.INPUT=VALUE")
    parser.add_argument("--categories", metavar="NAME", help="a judge of scenes, such as judge")
    options = parser.parse_args()
    runs = [(workflow, seed) for seed in options.seeds for workflow in options.workflows]
    with ThreadPoolExecutor(options.jobs) as pool:
        folders = list(pool.map(lambda run: _train(run[0], run[1], options), runs))
    for workflow in options.workflows:
        trained = [folder for (w, _), folder in zip(runs, folders, strict=True) if w == workflow]
        print(f"\n{table(workflow.stem, trained)}")
        if options.categories:
            print(f"\n{by_category(options.categories, trained)}")


def _train(workflow: Path, seed: int, options: argparse.Namespace) -> Path:
    folder = options.output / f"{workflow.stem}-{seed}"
    if (folder / "done").exists():
        return folder
    command = [
        sys.executable,
        "-m",
        "comfyui_otca",
        "train",
        str(workflow),
        "--seed",
        str(seed),
        "--output",
        str(folder),
    ]
    command += ["--resume"] if (folder / "metrics.jsonl").exists() else []
    command += ["--iterations", str(options.iterations)] if options.iterations else []
    command += [part for change in options.set for part in ("--set", change)]
    threads = str(max(1, (os.cpu_count() or 1) // options.jobs))
    options.output.mkdir(parents=True, exist_ok=True)
    with open(options.output / f"{folder.name}.log", "a", encoding="utf-8") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT, env=environment)
    (folder / "done").touch()
    return folder


def table(name: str, folders: list[Path]) -> str:
    """The Markdown table of one workflow's runs."""
    evaluations = _evaluations(folders)
    rewards = evaluations[0][0]["rewards"]
    rows, rises = [], []
    for reward, figures in rewards.items():
        before = np.array([run[0]["rewards"][reward]["values"] for run in evaluations], dtype=float)  # [seeds, pairs]
        after = np.array([run[-1]["rewards"][reward]["values"] for run in evaluations], dtype=float)
        rise = (after - before) / before.std(1, ddof=1, keepdims=True)
        if not figures["held_out"]:
            rises.append(rise)
        label = f"{reward} (held out)" if figures["held_out"] else reward
        mean, error = mean_and_error(rise)
        rows.append(f"| {label} | {before.mean():.3f} | {after.mean():.3f} | {mean:+.2f} ± {error:.2f} |")
    total = functools.reduce(np.add, rises)
    mean, error = mean_and_error(total)
    seconds = [sum(json.loads(line)["seconds/iteration"] for line in _lines(folder)) for folder in folders]
    each = ", ".join(f"{value:+.2f}" for value in total.mean(1))
    return "\n".join(
        [
            f"**{name}**, {len(folders)} seeds x {total.shape[1]} pairs, {np.mean(seconds) / 60:.1f} minutes each\n",
            "| reward | before | after | rise in std before |",
            "|---|---|---|---|",
            *rows,
            f"| **sum of the trained rewards** | | | **{mean:+.2f} ± {error:.2f}** ({mean / error:.1f} s.e.; seeds {each}) |",
        ]
    )


def by_category(judge: str, folders: list[Path]) -> str:
    """The Markdown table of a judge of scenes by category of the prompts, before and after."""
    evaluations = _evaluations(folders)
    prompts = evaluations[0][0]["prompts"]
    before, after = (
        np.array([run[end]["rewards"][judge]["values"] for run in evaluations], dtype=float).reshape(
            len(folders), -1, len(prompts)
        )
        for end in (0, -1)
    )
    kinds = [scene.category if (scene := parse_caption(text)) else "other" for text in prompts]
    rows = []
    for kind in [*dict.fromkeys(kinds), "all"]:
        members = [kind in (other, "all") for other in kinds]
        mean, error = mean_and_error((after - before)[:, :, members].reshape(len(folders), -1))
        shares = f"{before[:, :, members].mean():.2f} | {after[:, :, members].mean():.2f}"
        rows.append(f"| {kind} | {sum(members)} | {shares} | {mean:+.2f} ± {error:.2f} |")
    return "\n".join([f"| {judge} | prompts | before | after | rise |", "|---|---|---|---|---|", *rows])


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Mean of [seeds, pairs] and its standard error, from seeds and from pairs."""
    seeds, pairs = values.shape
    by_seed = values.mean(1).var(ddof=1) / seeds if seeds > 1 else 0.0
    by_pair = values.mean(0).var(ddof=1) / pairs
    return float(values.mean()), float((by_seed + by_pair) ** 0.5)


def _evaluations(folders: list[Path]) -> list[list[dict]]:
    return [[json.loads(line) for line in (f / "evaluation.jsonl").read_text().splitlines()] for f in folders]


def _lines(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines()


if __name__ == "__main__":
    main()
