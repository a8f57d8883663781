"""The methods that bench/COMPARISON.md compares, and whether a workflow learns.

    python -m comfyui_otca.bench.comparison methods FOLDER [--world shapes]
    python -m comfyui_otca.bench.comparison rewards FOLDER
    python -m comfyui_otca.bench.comparison strip FOLDER METHOD … --output PICTURE
    python -m comfyui_otca.bench.comparison learning WORKFLOW … [--seeds 0 1 2] [--output DIR] [--jobs N]
        [--evaluation-seeds S] [--categories NAME]

`methods` writes the workflow of each for the scenes world or the shapes world: one base graph (uniform credit, weighted
advantages, GRPO) and a table of what each method changes in it. To see how two methods differ, read two entries. `otca compare
FOLDER/*.json` trains them.

`rewards` is of a comparison in FOLDER: it prints what each reward gave half way and at the end, with its paired difference to
the baseline, and writes trainings.jsonl there, the means of every training, those that chose a rate among them.

`strip` puts some pictures of an `otca eval` below each other, a row a method.

`learning` trains workflows over several seeds, each run a process of its own (`otca train`), --jobs of them side by side;
finished runs are not repeated. It prints each reward on fixed pairs of prompt and seed before and after, its rise in units of
its standard deviation over the pairs before training, and the sum of these over the trained rewards. Standard errors are
clustered by training seed and prompt; each pair has a noise of its own. --categories NAME adds a table of a judge of scenes by
category of prompts.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image

from ..study.comparison import Outcome, read
from ..study.statistics import bracketed, clustered, plus_minus
from ..trainer.errors import standard_error
from ..trainer.rewards.scenes import parse_caption
from .common import table

PROMPTS = Path(__file__).resolve().parents[1] / "assets" / "prompts"
SIZE = 40  # pixels a side, in both worlds

Graph = dict[str, dict[str, Any]]


def node(class_type: str, /, **inputs: Any) -> dict[str, Any]:
    return {"class_type": f"OTCA_{class_type}", "inputs": inputs}


# What is trained on in each world, and what is held out.
REWARDS: dict[str, Graph] = {
    "scenes": {
        "judge": node("RewardScenes", coefficient=1.0, name="judge", strict=True),
        "clip_t": node("RewardClipT", model="scenes-clip", coefficient=0.5),
        "sharpness": node("RewardSharpness", coefficient=0.1),
        "grade": node("RewardScenes", coefficient=1.0, name="grade", held_out=True),
    },
    # Where the gradient of the one trained reward can be followed, and the exact judge is never trained on.
    "followed": {
        "clip_t": node("RewardClipT", model="scenes-clip", coefficient=1.0),
        "judge": node("RewardScenes", coefficient=1.0, name="judge", strict=True, held_out=True),
        "grade": node("RewardScenes", coefficient=1.0, name="grade", held_out=True),
        "sharpness": node("RewardSharpness", coefficient=1.0, held_out=True),
    },
    "shapes": {
        "judge": node("RewardShapesAccuracy", coefficient=1.0, held_out=False, name="judge"),
        "colorfulness": node("RewardColorfulness", coefficient=1.0),
        "sharpness": node("RewardSharpness", coefficient=1.0),
        "clip_t": node("RewardClipT", model="shapes-clip", coefficient=1.0, held_out=True),
    },
}

MODE = "weighted_advantages_per_group"  # what stands in COMPARISON.md was measured so


def sampler(world: str) -> dict[str, Any]:
    return node(
        "SDESampler",
        model=["model", 0],
        prompts=["prompts", 0],
        group_size=12,
        steps=8,
        width=SIZE,
        height=SIZE,
        kind="dance_sde",
        eta=0.5,
        shift=0.0,
        guidance=3.5,
        seed=0,
        # Where objects stand follows from the first noise: members of a group that share it hardly differ there.
        shared_noise=world == "shapes",
        keep_graph="on",  # "auto" looks at the free memory, and trainings of one comparison should cost the same
    )


def base(world: str) -> Graph:
    """Uniform GRPO: seven of eight steps, four prompts of twelve samples."""
    rewards, world = REWARDS[world], "scenes" if world == "followed" else world
    stack = {f"reward_{number}": [name, 0] for number, name in enumerate(rewards, 1)}
    evaluation = (PROMPTS / f"{world}_eval.txt").read_text(encoding="utf-8").strip()
    return {
        "model": node("LoadFlowModel", model=f"{world}-flux", lora_rank=16, lora_alpha=16.0, seed=0, dtype="auto"),
        "prompts": node(
            "PromptDataset",
            prompts="",
            file=f"{world}_train.txt",
            prompts_per_iteration=4,
            index=0,
            shuffle=True,
            seed=0,
        ),
        "sampler": sampler(world),
        **deepcopy(rewards),
        "stack": node("RewardStack", trajectories=["sampler", 0], **stack),
        "credit": node("StepCredit", method="uniform", trajectories=["sampler", 0], timestep_fraction=1.0, seed=0),
        "fusion": node("WeightedFuse", scores=["stack", 0], credit=["credit", 0], mode=MODE, std_scope="group"),
        "update": node(
            "GRPOStep",
            model=["model", 0],
            trajectories=["sampler", 0],
            advantages=["fusion", 0],
            learning_rate=6e-4,
            clip_range=1e-4,
            kl_coefficient=0.0,
        ),
        "run": node(
            "TrainingRun",
            model=["update", 0],
            report=["update", 1],
            run_name="compared",
            iterations=48,
            checkpoint_every=25,
            evaluate_every=12,
            evaluation_prompts=evaluation,
            evaluation_seeds=2,
            evaluation_steps=8,
        ),
    }


def changed(**nodes: dict[str, Any] | None) -> Callable[[Graph], None]:
    """Other inputs of these nodes; a node with another `class_type` takes its place, and None takes it out."""

    def change(graph: Graph) -> None:
        for name, new in nodes.items():
            if new is None:
                del graph[name]
            else:
                graph[name] = new if "class_type" in new else graph[name] | {"inputs": graph[name]["inputs"] | new}

    return change


def credit(kind: str, **inputs: Any) -> dict[str, Any]:
    return node(kind, trajectories=["sampler", 0], **inputs)


def moca(**inputs: Any) -> dict[str, Any]:
    literal = {"exploration": "literal", "recenter": "none", "std_scope": "group"}
    return node("MOCAFuse", scores=["stack", 0], credit=["credit", 0], **literal | inputs)


TCD = credit("TCDWeights", w_min=0.5, floor="affine", normalize="mean")
CENTERED = moca(exploration="centered", recenter="group")
FLOW_SDE = {"kind": "flow_sde", "eta": 0.7}
LEARNED = credit(
    "StepCredit",
    method="learned",
    scores=["stack", 0],
    model=["model", 0],
    measure_every=10,
    groups=2,
    decay=0.8,
    w_min=0.5,
)


def matching(loss: str, steps: int = 8, **inputs: Any) -> dict[str, Any]:
    """Forward-process updates on deterministic samples, at four noise levels of each."""
    update = node(
        "MatchingStep",
        model=["model", 0],
        trajectories=["sampler", 0],
        advantages=["fusion", 0],
        learning_rate=6e-4,
        loss=loss,
        sampled_steps=4,
        **{"beta": 0.0, "kl_coefficient": 1e-4} | inputs,
    )
    how = {"kind": "ode", "steps": steps, "shared_noise": False, "keep_graph": "off"}
    return {"sampler": how, "update": update}


def vipo(graph: Graph) -> None:
    """The world's CLIP says where in the picture the credit belongs."""
    spatial = credit(
        "SpatialCredit",
        credit=["credit", 0],
        model=graph["clip_t"]["inputs"]["model"],
        components=3,
        smoothing=1.0,
        floor=0.0,
    )
    changed(spatial=spatial, fusion={"credit": ["spatial", 0]})(graph)


def following(mode: str, steps: int, variety: float = 0.0, fuse: str = "", **inputs: Any) -> Callable[[Graph], None]:
    """Reward gradients: two deterministic samples of each of eight prompts, in five steps; neither credit nor fusion.

    `variety`: coefficient of Variety among the rewards; 0: it is not there.
    `fuse`: the node by which their gradients are fused; "": they are added.
    """

    def change(graph: Graph) -> None:
        how = {"kind": "ode", "steps": 5, "group_size": 2, "shared_noise": False, "keep_graph": "off"}
        source = {"model": ["model", 0], "trajectories": ["sampler", 0], "scores": ["stack", 0]}
        update = node(
            "RewardGradientStep",
            **source,
            mode=mode,
            steps=steps,
            learning_rate=1e-3,
            **{"kl_coefficient": 1.0} | inputs,
        )
        changed(sampler=how, prompts={"prompts_per_iteration": 8}, update=update, credit=None, fusion=None)(graph)
        if variety:
            graph["variety"] = node("RewardVariety", model="scenes-clip", coefficient=variety)
            graph["stack"]["inputs"]["reward_5"] = ["variety", 0]
        if fuse:
            graph["fuse"] = node(fuse, scores=["stack", 0], std_scope="group")
            graph["update"]["inputs"] |= {"advantages": ["fuse", 0], "also": "credit"}

    return change


FOLLOWED: dict[str, Callable[[Graph], None]] = {
    "one_call": following("one_call", 2),
    "last_2_steps": following("last_steps", 2),
    "leap": following("leap", 1),
    **{f"leap_variety_{variety}": following("leap", 1, variety) for variety in (0.1, 0.2, 0.5)},
    **{f"leap_min_norm_{variety}": following("leap", 1, variety, "MinNormFuse") for variety in (0.25, 0.5, 1.0)},
}
METHODS: dict[str, Callable[[Graph], None]] = {
    "uniform": changed(),
    "uniform_5_steps": changed(sampler={"steps": 5}),
    "sampled_3": changed(sampler={"keep_graph": "off"}, update={"sampled_steps": 3}),  # a kept graph would hold all
    "otca": changed(credit=TCD, fusion=moca()),
    "otca_centered": changed(credit=TCD, fusion=CENTERED),
    "tcd_only": changed(credit=TCD),
    "moca_only": changed(fusion=moca()),
    # w_min 0, as `otca analyze --signal` measures it: the credit alone, not mixed with equal weights.
    "tcd_prediction": changed(
        credit=credit("TCDWeights", w_min=0.0, floor="affine", normalize="mean", proxy="prediction", model=["model", 0])
    ),
    "inverse_variance": changed(credit=credit("StepCredit", method="inverse_variance", model=["model", 0], decay=0.95)),
    "first_5_steps": changed(sampler={"window_length": 5}),  # the other two of the seven are deterministic
    "learned_credit": changed(credit=LEARNED),
    "nft": changed(**matching("nft", old_policy="gradual")),
    "awm": changed(**matching("awm", old_policy="on_policy")),
    "awm_5_steps_2_prompts": changed(
        **matching("awm", steps=5, old_policy="on_policy"), prompts={"prompts_per_iteration": 2}
    ),
    "dgpo": changed(**matching("dgpo", old_policy="gradual")),
    "dpo": changed(**matching("dpo", old_policy="on_policy")),
    "dppo": changed(update={"objective": "dppo", "clip_range": 1e-5, "epochs": 2}, sampler={"keep_graph": "off"}),
    "precise": changed(sampler={"kind": "precise"}),
    "mix_grpo": changed(
        window=node("MixGRPOWindow", iteration=0, steps=8, length=4, mode="progressive", every=25, stride=1),
        sampler={**FLOW_SDE, "window_start": ["window", 0], "window_length": ["window", 1]},
    ),
    "pcpo": changed(sampler=FLOW_SDE, credit=credit("StepCredit", method="pcpo"), update={"objective": "log_hinge"}),
    "stepwise_flow_grpo": changed(
        sampler={"kind": "ddim_sde", "eta": 0.7},
        fusion=node(
            "StepwiseGain",
            model=["model", 0],
            trajectories=["sampler", 0],
            scores=["stack", 0],
            tweedie_steps=5,
            per_step=False,
            fusion=MODE,
        ),
        credit=None,
    ),
    "vipo": vipo,
    # The structure of two public trainers, with as many prompts to an iteration as make the budget more than a few iterations.
    "flow_grpo_public": changed(
        sampler={**FLOW_SDE, "group_size": 24, "steps": 10, "shared_noise": False},
        fusion={"mode": "weighted_sum", "std_scope": "batch"},
        update={"kl_coefficient": 0.04},
    ),
    "dance_grpo_public": changed(
        sampler={"eta": 0.3, "steps": 16, "shared_noise": True}, credit={"timestep_fraction": 0.6}
    ),
}


def graph(method: str, world: str) -> Graph:
    made = base(world)
    (METHODS | FOLLOWED)[method](made)
    return made


def write_methods(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    for method in METHODS | (FOLLOWED if options.world == "followed" else {}):
        text = json.dumps(graph(method, options.world), indent=1)
        (options.folder / f"{method}.json").write_text(text + "\n", encoding="utf-8")


# -- every reward of a comparison --------------------------------------------------------------------------------------


def rewards(options: argparse.Namespace) -> None:
    written = json.loads((options.folder / "comparison.json").read_text(encoding="utf-8"))
    runs = {}
    for row in written["workflows"]:
        folder = options.folder / row["name"] / f"lr{row['learning_rate']:g}"
        runs[row["name"]] = {seed: read(folder / f"seed{seed}") for seed in row["seeds"]}
    print("\n\n".join(_rewards(runs, written["facts"]["baseline"], number) for number in (1, -1)))
    lines = []
    for folder in sorted(options.folder.glob("*/lr*/seed*")):
        run, (*_, method, rate, seed) = read(folder), folder.parts
        means = {name: np.round(values, 4).tolist() for name, values in run.means.items()}
        method_row = {"method": method, "rate": float(rate[2:]), "seed": int(seed[4:]), "iterations": run.iterations}
        lines.append(json.dumps(method_row | {"forwards": run.used["forwards"].tolist(), **means}) + "\n")
    (options.folder / "trainings.jsonl").write_text("".join(lines), encoding="utf-8")


def strip(options: argparse.Namespace) -> None:
    tile, gap = 88, 4
    names = [f"{number:04}-0.png" for number in (1, 4, 7, 10, 13, 17, 20, 23, 26, 29)]
    size = len(names) * (tile + gap) - gap, len(options.methods) * (tile + gap) - gap
    sheet = Image.new("RGB", size, "white")
    for row, method in enumerate(options.methods):
        for column, name in enumerate(names):
            picture = Image.open(options.folder / "pictures" / method / name).resize(
                (tile, tile), Image.Resampling.NEAREST
            )
            sheet.paste(picture, (column * (tile + gap), row * (tile + gap)))
    sheet.save(options.output, optimize=True)


def _rewards(runs: dict[str, dict[int, Outcome]], baseline: str, number: int) -> str:
    """The first or last evaluation: for each method and reward the mean, and the difference to the baseline of the same seeds."""
    base = runs[baseline]
    first = next(iter(base.values()))
    rows = [["before", "", *(cell for values in first.means.values() for cell in (f"{values[0]:.3f}", ""))]]
    for method, by_seed in runs.items():
        shared = np.repeat(list(by_seed), len(first.prompts)), [*first.prompts] * len(by_seed)
        cells = []
        for name in first.values:
            after = np.array([run.values[name][number] for run in by_seed.values()])  # [seeds, pictures]
            apart = after - [base[seed].values[name][number] for seed in by_seed]
            cells.append(plus_minus(clustered(after.ravel(), *shared), ".3f"))
            cells.append("" if method == baseline else bracketed(clustered(apart.ravel(), *shared), "+.3f"))
        rows.append([method, str(len(by_seed)), *cells])
    head = [cell for name in first.values for cell in (name, f"minus {baseline}")]
    return table((f"after {first.used['forwards'][number]:,.0f} forwards", "seeds", *head), rows)


# -- does it learn? ----------------------------------------------------------------------------------------------------


def learning(options: argparse.Namespace) -> None:
    runs = [(workflow, seed) for seed in options.seeds for workflow in options.workflows]
    more = {"TrainingRun.evaluation_seeds": options.evaluation_seeds} if options.evaluation_seeds else {}
    with ThreadPoolExecutor(options.jobs) as pool:
        folders = list(pool.map(lambda run: train_one(run[0], run[1], options.output, options.jobs, more), runs))
    for workflow in options.workflows:
        trained = [folder for (w, _), folder in zip(runs, folders, strict=True) if w == workflow]
        print(f"\n{learned(workflow.stem, trained)}")
        if options.categories:
            print(f"\n{by_category(options.categories, trained)}")


NOTHING: Mapping[str, Any] = MappingProxyType({})


def train_one(
    workflow: Path, seed: int, output: Path, jobs: int, more: Mapping = NOTHING, variables: Mapping = NOTHING
) -> Path:
    """The folder of one training by `otca train`, with its share of the threads. What is finished is not repeated.

    `more`: inputs of nodes that are set, as in `--set`.
    `variables`: of its environment.
    """
    folder = output / f"{workflow.stem}-{seed}"
    if (folder / "done").exists():
        return folder
    command = [sys.executable, "-m", "comfyui_otca", "train", str(workflow)]
    command += ["--seed", str(seed), "--output", str(folder)]
    for name, value in more.items():
        command += ["--set", f"{name}={value}"]
    command += ["--resume"] if (folder / "metrics.jsonl").exists() else []
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    output.mkdir(parents=True, exist_ok=True)
    with open(output / f"{folder.name}.log", "a", encoding="utf-8") as log:
        environment = {"OMP_NUM_THREADS": threads, **os.environ, **variables}
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT, env=environment)
    (folder / "done").touch()
    return folder


def learned(name: str, folders: list[Path]) -> str:
    """The Markdown table of one workflow's runs."""
    evaluations = _evaluations(folders)
    rewards, by_prompt = evaluations[0][0]["rewards"], (len(folders), -1, len(evaluations[0][0]["prompts"]))
    rows, rises = [], []
    for reward, figures in rewards.items():
        before = np.array([run[0]["rewards"][reward]["values"] for run in evaluations], dtype=float)  # [seeds, pairs]
        after = np.array([run[-1]["rewards"][reward]["values"] for run in evaluations], dtype=float)
        rise = (after - before) / before.std(1, ddof=1, keepdims=True)
        if not figures["held_out"]:
            rises.append(rise)
        label = f"{reward} (held out)" if figures["held_out"] else reward
        mean, error = mean_and_error(rise.reshape(by_prompt))
        shown = [
            f"{values.mean():.3f} ± {mean_and_error(values.reshape(by_prompt))[1]:.3f}" for values in (before, after)
        ]
        rows.append([label, *shown, f"{mean:+.2f} ± {error:.2f}"])
    total = functools.reduce(np.add, rises)
    mean, error = mean_and_error(total.reshape(by_prompt))
    lines = [(folder / "metrics.jsonl").read_text().splitlines() for folder in folders]
    seconds = [sum(json.loads(line)["seconds/iteration"] for line in of_one) for of_one in lines]
    by_seed = ", ".join(f"{value:+.2f}" for value in total.mean(1))
    rise = f"**{mean:+.2f} ± {error:.2f}** ({mean / error:.1f} s.e.; seeds {by_seed})"
    rows.append(["**sum of the trained rewards**", "", "", rise])
    title = f"**{name}**, {len(folders)} seeds x {total.shape[1]} pairs, {np.mean(seconds) / 60:.1f} minutes each\n"
    return f"{title}\n{table(('reward', 'before', 'after', 'rise in std before'), rows)}"


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
        mean, error = mean_and_error((after - before)[:, :, members])
        shares = [f"{values[:, :, members].mean():.2f}" for values in (before, after)]
        rows.append([kind, sum(members), *shares, f"{mean:+.2f} ± {error:.2f}"])
    return table((judge, "prompts", "before", "after", "rise"), rows)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean of [seeds, samples, prompts] and its standard error, clustered by training seed and by prompt."""
    seeds, _, prompts = np.indices(values.shape).reshape(3, -1)
    return standard_error(values.ravel(), seeds, prompts)[:2]


def _evaluations(folders: list[Path]) -> list[list[dict]]:
    return [[json.loads(line) for line in (f / "evaluation.jsonl").read_text().splitlines()] for f in folders]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    methods = parts.add_parser("methods")
    methods.add_argument("folder", type=Path)
    methods.add_argument("--world", choices=list(REWARDS), default="scenes")
    methods.set_defaults(work=write_methods)
    command = parts.add_parser("rewards")
    command.add_argument("folder", type=Path)
    command.set_defaults(work=rewards)
    shows = parts.add_parser("strip")
    shows.add_argument("folder", type=Path)
    shows.add_argument("methods", nargs="+")
    shows.add_argument("--output", type=Path, required=True)
    shows.set_defaults(work=strip)
    learns = parts.add_parser("learning")
    learns.add_argument("workflows", nargs="+", type=Path)
    learns.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    learns.add_argument("--output", type=Path, default=Path("runs/learning"))
    learns.add_argument("--jobs", type=int, default=1)
    learns.add_argument(
        "--evaluation-seeds", type=int, metavar="S", help="pictures to a prompt; else as the workflow says"
    )
    learns.add_argument("--categories", metavar="NAME", help="a judge of scenes, such as judge")
    learns.set_defaults(work=learning)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    main()
