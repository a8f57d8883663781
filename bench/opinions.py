"""What 60 pairs are worth: the same opinions by preference losses, by AWM and by a taste whose gradient is followed.

    python -m comfyui_otca.bench.opinions make FOLDER
    python -m comfyui_otca.bench.opinions train FOLDER [--methods NAME …] [--seeds 0 1 2] [--jobs N]
    python -m comfyui_otca.bench.opinions table FOLDER

`make` lets scenes-flux draw training prompts and an exact judge choose: of two pictures of a prompt one is what was asked, and
the other is not. From the same pairs it fits a taste on scenes-clip. It writes the pairs, the taste, and a workflow for each
method.

`train` trains them, each run a process of its own; finished runs are not repeated. `table` prints the judge's share of right
pictures on 384 pairs of prompt and noise that no training sees, before and after, with standard errors clustered by training
seed and prompt, and the forwards that the training took, a backward pass counted as two.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ..study import taste
from ..trainer import rollout
from ..trainer.flow import load_flow_model
from ..trainer.pairs.reading import CHOSEN, FILE, REJECTED
from ..trainer.pictures import grids, media
from ..trainer.prompts import choose, read_prompts
from ..trainer.rewards.scenes import Scenes
from ..trainer.run import budget
from ..trainer.types import SamplerSettings
from .common import table
from .comparison import PROMPTS, SIZE, Graph, mean_and_error, node, train_one

PAIRS, DRAWN, SEED = 60, 8, 0
SETTINGS = SamplerSettings(
    kind="ode", eta=0.0, steps=8, width=SIZE, height=SIZE, shift=0.0, guidance=3.5, shared_noise=False
)
JUDGES: Graph = {
    "judge": node("RewardScenes", coefficient=1.0, name="judge", strict=True, held_out=True),
    "grade": node("RewardScenes", coefficient=1.0, name="grade", held_out=True),
}


def make(options: argparse.Namespace) -> None:
    folder = options.folder.resolve()
    pairs = folder / "pairs"
    shutil.rmtree(pairs, ignore_errors=True)
    pairs.mkdir(parents=True)
    model, judge = load_flow_model(PROMPTS.parent / "scenes-flux", device="cpu"), Scenes(strict=True)
    lines, index = [], 0
    while len(lines) < PAIRS:
        prompts = choose(read_prompts("", "scenes_train.txt"), 4, index, SEED)
        own = rollout.sample(model, prompts, SETTINGS, group_size=DRAWN, seed=index)
        right = np.array(judge.score(own.images, own.texts), dtype=float)
        for group, prompt in enumerate(prompts.texts):
            of = own.groups.numpy() == group
            good, bad = np.flatnonzero(of & (right == 1)), np.flatnonzero(of & (right == 0))
            if len(good) and len(bad) and len(lines) < PAIRS:
                names = {kind: f"{len(lines):02d}_{kind}.png" for kind in (CHOSEN, REJECTED)}
                for kind, row in ((CHOSEN, good[0]), (REJECTED, bad[0])):
                    grids.save(media.eight_bits(own.images[row]).numpy(), pairs / names[kind])
                lines.append(json.dumps({"prompt": str(prompt), **names}))
        index += 1
    (pairs / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    head = taste.fit_taste(taste.read_source(pairs / FILE), "scenes-clip", "cpu")
    head.save(folder / "taste.safetensors")
    print(taste.report(head))
    for method, graph in methods().items():
        (folder / f"{method}.json").write_text(json.dumps(graph, indent=1) + "\n", encoding="utf-8")


def methods() -> dict[str, Graph]:
    return {
        "dpo": offline("dpo", 0.0),
        "dpo_keeps_half": offline("dpo", 0.5),
        "dpo_keeps_0.9": offline("dpo", 0.9),
        "awm": offline("awm", 0.0),
        "nft": offline("nft", 0.0),
        "taste_gradient": followed(),
    }


def _run(iterations: int) -> dict:
    return node(
        "TrainingRun",
        model=["update", 0],
        report=["update", 1],
        run_name="opinions",
        iterations=iterations,
        checkpoint_every=iterations,
        evaluate_every=iterations // 2,
        evaluation_prompts=(PROMPTS / "scenes_eval.txt").read_text(encoding="utf-8").strip(),
        evaluation_seeds=12,
        evaluation_steps=8,
    )


MODEL = node("LoadFlowModel", model="scenes-flux", lora_rank=16, lora_alpha=16.0, seed=0, dtype="auto")


def offline(loss: str, keep_winner: float) -> Graph:
    """Eight pairs to an iteration, at four noise levels of each: 16·4·(1 reference + 3) forwards, and 16 that measure the KL."""
    source = node(
        "PreferencePairs",
        model=["model", 0],
        folder="pairs",
        pairs_per_iteration=8,
        index=0,
        shuffle=True,
        seed=0,
        width=SIZE,
        height=SIZE,
        levels=8,
        shift=0.0,
        guidance=3.5,
        reward_1=["judge", 0],
        reward_2=["grade", 0],
    )
    update = node(
        "MatchingStep",
        model=["model", 0],
        trajectories=["source", 0],
        advantages=["source", 1],
        loss=loss,
        learning_rate=3e-4,
        beta=0.0,
        old_policy="on_policy",
        sampled_steps=4,
        kl_coefficient=1e-4,
        keep_winner=keep_winner,
    )
    return {"model": MODEL, **JUDGES, "source": source, "update": update, "run": _run(60)}


def followed() -> Graph:
    """As `leap` of bench/FOLLOWING.md, with the taste as the one reward: two new samples of each of eight prompts."""
    return {
        "model": MODEL,
        **JUDGES,
        "taste": node("RewardMyTaste", path="taste.safetensors", coefficient=1.0),
        "prompts": node(
            "PromptDataset", prompts="", file="scenes_train.txt", prompts_per_iteration=8, index=0, shuffle=True, seed=0
        ),
        "sampler": node(
            "SDESampler",
            model=["model", 0],
            prompts=["prompts", 0],
            group_size=2,
            steps=5,
            width=SIZE,
            height=SIZE,
            kind="ode",
            eta=0.3,  # which `ode` does not use
            shift=0.0,
            guidance=3.5,
            seed=0,
            shared_noise=False,
            keep_graph="off",
        ),
        "stack": node(
            "RewardStack",
            trajectories=["sampler", 0],
            reward_1=["taste", 0],
            reward_2=["judge", 0],
            reward_3=["grade", 0],
        ),
        "update": node(
            "RewardGradientStep",
            model=["model", 0],
            trajectories=["sampler", 0],
            scores=["stack", 0],
            mode="leap",
            steps=1,
            learning_rate=1e-3,
            kl_coefficient=1.0,
        ),
        "run": _run(60),
    }


def train(options: argparse.Namespace) -> None:
    runs = [(options.folder / f"{method}.json", seed) for seed in options.seeds for method in options.methods]
    folder = options.folder.resolve()
    own = {"OTCA_INPUT": str(folder), "OTCA_MODELS": str(folder)}  # where workflows may read
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda run: train_one(run[0], run[1], folder / "runs", options.jobs, variables=own), runs))


def show(options: argparse.Namespace) -> None:
    rows = []
    for method in methods():
        folders = sorted(path.parent for path in (options.folder / "runs").glob(f"{method}-*/done"))
        if not folders:
            continue
        runs = [[json.loads(line) for line in (f / "evaluation.jsonl").read_text().splitlines()] for f in folders]
        cells = [f"{statistics.fmean(_forwards(one) for one in folders):,.0f}"]
        for name in ("judge", "grade"):
            values = np.array([[one["rewards"][name]["values"] for one in run] for run in runs], dtype=float)
            rise = (values[:, 1:] - values[:, :1]).reshape(len(runs), values.shape[1] - 1, -1, 32)
            cells.append(f"{values[:, 0].mean():.3f}")
            for number in range(rise.shape[1]):
                mean, error = mean_and_error(rise[:, number])
                cells.append(f"{mean:+.3f} ± {error:.3f}")
        rows.append([method, str(len(runs)), *cells])
    head = [f"{name} {when}" for name in ("judge", "grade") for when in ("before", "half way", "at the end")]
    print(table(("method", "seeds", "forwards", *head), rows))


def _forwards(run: Path) -> float:
    """What one training took, a backward pass counted as two."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return budget.used(rows, budget.FORWARDS, [rows[-1]["iteration"]])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, function in (("make", make), ("train", train), ("table", show)):
        one = commands.add_parser(name)
        one.add_argument("folder", type=Path)
        one.set_defaults(function=function)
        if name == "train":
            one.add_argument("--methods", nargs="+", default=list(methods()))
            one.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
            one.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
