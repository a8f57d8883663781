"""A few-step model, and what trainings do to its sharpness.

    python -m comfyui_otca.bench.distilled model FOLDER --steps 4
    python -m comfyui_otca.bench.distilled methods FOLDER --model FOLDER --steps 4
    python -m comfyui_otca.bench.distilled table FOLDER

`model` distils the scenes world's FLUX. The teacher's path from a noise is cut at the student's noise levels. The student learns
to cross each piece by one call, from where the teacher stands there; then to end where the teacher ends, from its own steps. Both
are squared errors. `methods` writes a workflow of each row of BRAKES, which `otca compare` trains, and `table` reads what that
wrote. All of it: distilled.sh. Findings: FOLLOWING.md.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import trange

from ..study.comparison import read
from ..trainer.errors import standard_error
from ..trainer.families.base import FlowModel
from ..trainer.flow import load_flow_model
from ..trainer.prompts import read_prompts
from ..trainer.types import SamplerSettings
from .common import table
from .comparison import SIZE, base, changed, following, matching

TEACHER = Path(__file__).resolve().parents[1] / "assets" / "scenes-flux"
TEACHER_STEPS = 16
BATCH = 48
ITERATIONS = 50


def walk(model: FlowModel, x: Tensor, levels: list[float], condition) -> list[Tensor]:
    """The points of Euler's deterministic steps, the first one too."""
    points = [x]
    for sigma, after in pairwise(levels):
        points.append(points[-1] + (after - sigma) * model.velocity(points[-1], sigma, condition, 1.0))
    return points


def distil(options: argparse.Namespace) -> None:
    """Writes the student as a folder of diffusers."""
    torch.manual_seed(0)
    steps, pool, updates, rate = options.steps, options.pool, options.updates, options.rate
    settings = SamplerSettings(kind="ode", eta=0.0, steps=steps, width=SIZE, height=SIZE, shift=0.0, guidance=1.0)
    model = load_flow_model(TEACHER, training="full", device="cpu")
    texts = [text for name in ("train", "eval") for text in read_prompts("", f"scenes_{name}.txt")]
    condition, shape = model.condition(texts, settings), model.sample_shape(texts, settings)
    levels, pieces = list(model.sigmas(settings)), TEACHER_STEPS // steps
    fine = [np.linspace(*piece, pieces, endpoint=False).tolist() for piece in pairwise(levels)]
    which, paths = torch.randint(len(texts), (pool,)), []
    with torch.no_grad():
        for rows in which.split(256):
            noise = torch.randn(len(rows), *shape)
            points = walk(model, noise, [*sum(fine, []), 0.0], condition.rows(rows))
            paths.append(torch.stack(points[::pieces], 1))
    path = torch.cat(paths)  # [pool, steps + 1, C, h, w]
    parameters = model.policy.trainable_parameters()
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=updates, pct_start=0.05)
    at = torch.tensor(levels, dtype=torch.float64)
    progress, running = trange(updates, desc=f"{steps} steps", mininterval=10), 0.0
    for update in progress:
        rows = torch.randint(pool, (BATCH,))
        if update < updates // 2:
            step = torch.randint(steps, (BATCH,))
            length = (at[step + 1] - at[step]).float().view(-1, 1, 1, 1)
            x, target = path[rows, step], path[rows, step + 1]
            error = x + length * model.velocity(x, at[step], condition.rows(which[rows]), 1.0) - target
            error = error / length
        else:
            rows = rows[: max(8, BATCH // steps)]
            error = walk(model, path[rows, 0], levels, condition.rows(which[rows]))[-1] - path[rows, -1]
        loss = error.square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        running = 0.98 * running + 0.02 * loss.item()
        progress.set_postfix(loss=f"{running:.4f}")
    model.export(options.folder)


# -- what trainings do to it -------------------------------------------------------------------------------------------

BRAKES = {
    **{
        f"leap_{kl}_{strength:g}": following("leap", 1, kl=kl, kl_coefficient=strength)
        for kl, strength in (("velocity", 0.0), ("velocity", 1.0), ("norm", 1.0), ("norm", 10.0))
    },
    **{
        f"awm_{kl}_{strength:g}": changed(**matching("awm", old_policy="on_policy", kl=kl, kl_coefficient=strength))
        for kl, strength in (("velocity", 0.0), ("velocity", 0.1), ("velocity", 1.0), ("norm", 1.0))
    },
}


def write_methods(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, change in BRAKES.items():
        graph = base("followed")
        change(graph)
        changed(
            model={"path": str(options.model.resolve())},
            sampler={"steps": options.steps},
            run={"evaluation_steps": options.steps, "iterations": ITERATIONS, "evaluate_every": ITERATIONS},
            prompts={"prompts_per_iteration": 8 if name.startswith("leap") else 2},
        )(graph)
        (options.folder / f"{name}.json").write_text(json.dumps(graph, indent=1) + "\n", encoding="utf-8")


def write_table(options: argparse.Namespace) -> None:
    """Prints changes by training ± standard errors, clustered by training and prompt; the norm's is of the last iterations."""
    rows = []
    for method in BRAKES:
        begun = sorted(options.folder.glob(f"*/{method}/lr*/seed*/evaluation.jsonl"))
        folders = [path.parent for path in begun if len(lines(path)) > 1]
        if not (runs := [read(folder) for folder in folders]):
            continue
        shared = np.repeat(range(len(runs)), len(runs[0].prompts)), [*runs[0].prompts] * len(runs)
        first, last = (
            {name: np.stack([run.values[name][end] for run in runs]) for name in runs[0].values} for end in (0, -1)
        )
        moved = {name: (last[name] - first[name]).ravel() for name in first}
        moved["sharpness"] = 1 + moved["sharpness"] / first["sharpness"].mean()
        errors = {name: standard_error(values, *shared)[1] for name, values in moved.items()}
        figures = [f"{moved[name].mean():+.3f} ± {errors[name]:.3f}" for name in ("judge", "clip_t")]
        figures.append(f"{moved['sharpness'].mean():.2f} ± {errors['sharpness']:.2f}")
        pictures = [lines(folder / "evaluation.jsonl") for folder in folders]
        colour = [
            np.mean([np.mean(row["artefacts"]["chroma"]) for row in ends]) for ends in zip(*pictures, strict=True)
        ]
        measured = [line for folder in folders for line in lines(folder / "metrics.jsonl") if "norm/growth" in line]
        grown = np.mean([line["norm/growth"] for line in measured if line["iteration"] > ITERATIONS - 10])
        rows.append((method, len(runs), *figures, f"{colour[-1] / colour[0]:.2f}", f"{grown:+.1%}"))
    print(table(("method", "trainings", "judge", "CLIP-T", "sharpness", "colour", "norm"), rows))


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    makes, writes, shows = (parts.add_parser(name) for name in ("model", "methods", "table"))
    for part, work in ((makes, distil), (writes, write_methods), (shows, write_table)):
        part.add_argument("folder", type=Path)
        part.add_argument("--steps", type=int, default=4)
        part.set_defaults(work=work)
    makes.add_argument("--pool", type=int, default=4000, help="paths of the teacher")
    makes.add_argument("--updates", type=int, default=1800)
    makes.add_argument("--rate", type=float, default=5e-4)
    writes.add_argument("--model", type=Path, required=True)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    main()
