"""`otca compare`: trains workflows side by side and compares them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..host import environment
from . import options
from .options import COMFYUI, DEVICE, PERMISSIONS, SET, arg, command, count, flag, many, one_of

if TYPE_CHECKING:
    from ..study.trainings import Settings
    from ..trainer.run.budget import Budget
    from ..trainer.workflow.running import Workflow


_AS_GIVEN = ("only", "score", "judge", "tuning_seeds", "jobs", "device", "features")  # to Settings


def _own_rates(text: str) -> tuple[str, list[float]]:
    name, _, rates = text.rpartition("=")
    try:
        return name, sorted({float(rate) for rate in rates.split(",")})
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=RATE or NAME=RATE,RATE") from error


@command(
    "compare",
    "train workflows side by side and compare them",
    arg("workflows", "exported by ComfyUI (API format)", nargs="+", metavar="[NAME=]WORKFLOW"),
    arg("--output", "continues what is there", type=options.folder, required=True, metavar="DIR"),
    arg("--baseline", "that others are compared with (default: the first)", metavar="NAME"),
    one_of(
        count("--iterations", "of each training (default: the baseline's own)"),
        count(
            "--forwards",
            "each training ends when it has used so many, a backward pass counted as two. Samples and steps may differ then",
        ),
        count("--seconds", "the same by seconds of training; on the CPU, of computing"),
    ),
    count("--seeds", "trainings of each (default 5)"),
    arg("--seed", "the first seed", type=int, default=0),
    flag("--screen", "one training of each, with the first tuning seed: no verdict follows"),
    arg("--only", "train these; the report is of all", nargs="+", default=[], metavar="NAME"),
    arg(
        "--learning-rates",
        "one is for all; of several the best is chosen for each workflow, on other seeds (default: each workflow's own)",
        type=float,
        nargs="+",
        default=[],
        metavar="RATE",
    ),
    many("--rates", "NAME=RATE,…", "of one workflow, instead of --learning-rates", type=_own_rates),
    count("--tuning-seeds", "trainings to choose by, of each rate", 3),
    count("--tuning-iterations", "their length (default: that of --iterations)"),
    count("--jobs", "trainings at a time", 1),
    count("--evaluate-every", "iterations between evaluations (default: a tenth of all, rounded up)"),
    count("--evaluations", "with --forwards or --seconds: how many (default 10)"),
    arg(
        "--score",
        "rewards that the score is the mean of, trained or held out (default: the trained ones)",
        nargs="+",
        default=[],
        metavar="NAME",
    ),
    arg("--judge", "held-out reward to hold scores against (default: the first)", default="", metavar="NAME"),
    arg("--prompts", "to judge by (default: the baseline's evaluation prompts)", metavar="FILE"),
    count("--evaluation-seeds", "pictures to a prompt (default: the baseline's own)"),
    arg("--features", "image encoder that measures diversity", default="shapes-clip", metavar="ENCODER"),
    flag("--report", "train nothing, only report on what is finished"),
    *(DEVICE, SET, COMFYUI, PERMISSIONS),
)
def compare(arguments: argparse.Namespace) -> int:
    """Trains workflows from the same start on the same prompts, with the same seeds and samples, and compares what became of
    them: curves with confidence bands, differences to a baseline, time to its score, held-out rewards, diversity and cost.

    Ctrl-C keeps what is done, and the same command continues from there.
    """
    from ..host.text import named_path
    from ..study import compare as study

    if environment.has("RANK"):
        raise ValueError(
            "otca compare starts processes of its own. Fix: start it once, without torchrun or accelerate launch"
        )
    options.begin(arguments, arguments.prompts, arguments.features)
    workflows: dict[str, Workflow] = {}
    for text in arguments.workflows:
        name, arguments.workflow = named_path(text, "workflow")
        if name in workflows:
            raise ValueError(f"two workflows are called {name}. Fix: NAME=WORKFLOW gives another name")
        workflows[name] = options.load(arguments)
    baseline = arguments.baseline or next(iter(workflows))
    if baseline not in workflows:
        raise ValueError(f"--baseline {baseline!r} is not a workflow. Fix: one of {', '.join(workflows)}")
    settings = _settings(arguments, baseline, workflows[baseline])

    def work() -> int:
        table, complete = study.compare(
            workflows, baseline, settings, arguments.output, options.say, train=not arguments.report
        )
        print(table)
        print(arguments.output)
        return 0 if complete else 1

    return options.stoppable(work, options.CONTINUES.format(arguments.output))


def _settings(arguments: argparse.Namespace, baseline: str, workflow: Workflow) -> Settings:
    """Settings of the command line; an open one is as on the baseline's Training Run."""
    from ..study import fairness
    from ..study.compare import TUNING_SEED
    from ..study.comparison import VERDICT_SEEDS
    from ..study.trainings import Settings
    from ..trainer.prompts import as_line, read_prompts

    inputs = fairness.run_inputs(workflow)
    if not (arguments.prompts or inputs["evaluation_prompts"].strip()):
        raise ValueError(f"{baseline} has no evaluation_prompts on its Training Run. Fix: --prompts FILE")
    iterations = arguments.iterations or inputs["iterations"]
    seeds = arguments.seeds or VERDICT_SEEDS
    return Settings(
        iterations=iterations,
        seeds=(TUNING_SEED,) if arguments.screen else range(arguments.seed, arguments.seed + seeds),
        evaluate_every=arguments.evaluate_every or -(-iterations // 10),
        prompts="\n".join(map(as_line, read_prompts(inputs["evaluation_prompts"], arguments.prompts or ""))),
        evaluation_seeds=arguments.evaluation_seeds or inputs["evaluation_seeds"],
        budget=_budget(arguments),
        evaluation_steps=fairness.evaluation_steps(workflow),
        learning_rates=sorted(set(arguments.learning_rates)),
        own_rates=dict(arguments.rates),
        screening=arguments.screen,
        tuning_iterations=arguments.tuning_iterations or iterations,
        **{name: getattr(arguments, name) for name in _AS_GIVEN},
    )


def _budget(arguments: argparse.Namespace) -> Budget | None:
    from ..trainer.run.budget import FORWARDS, SECONDS, Budget

    has_budget = bool(arguments.forwards or arguments.seconds)
    for name in ("evaluate_every", "tuning_iterations") if has_budget else ("evaluations",):
        if getattr(arguments, name):
            kind, fix = ("a budget", "--evaluations") if has_budget else ("iterations", "--forwards or --seconds too")
            raise ValueError(f"--{name.replace('_', '-')} does not go with {kind}. Fix: leave it out, or give {fix}")
    if arguments.screen and arguments.seeds:
        raise ValueError("--screen takes one seed. Fix: leave out --seeds")
    if not has_budget:
        return None
    unit = FORWARDS if arguments.forwards else SECONDS
    return Budget(unit, arguments.forwards or arguments.seconds, arguments.evaluations or 10)
