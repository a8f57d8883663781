"""score, eval, analyze, compare, vbench: what `trainer/study` answers."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from . import options

_GOES_ON = "the same command goes on from there: {}"


def add(commands) -> None:
    score = commands.add_parser("score", help="score pictures and videos that are there", description=_score.__doc__)
    score.add_argument("files", nargs="+", metavar="FILE", help="pictures, videos, folders or patterns of them")
    options.reward_argument(score)
    score.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="one prompt a line, or .jsonl (default: <name>.txt or metadata.jsonl beside the files)",
    )
    score.add_argument("--prompt", help="the same prompt for all files")
    score.add_argument("--csv", type=Path, metavar="FILE", help="writes every single score")
    score.add_argument("--batch-size", type=options.positive, default=8, metavar="N", help="files at once (default 8)")
    score.add_argument("--device", help="cpu, cuda, cuda:1 …")
    options.permission_arguments(score)
    score.set_defaults(command=_score)

    evaluate = commands.add_parser(
        "eval", help="compare a model with what it was trained to", description=_eval.__doc__
    )
    evaluate.add_argument("source", metavar="RUN|MODEL", help="a run's folder, or a model's folder or name")
    evaluate.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="an adapter, or a run's folder, to compare with. May be given more than once",
    )
    evaluate.add_argument(
        "--guide",
        action="append",
        default=[],
        metavar="[NAME=]RUN=γ",
        help="implicit reward guidance, as of otca sample. Guides of one NAME are composed. May be given more than once",
    )
    evaluate.add_argument("--prompts", required=True, metavar="FILE", help="one prompt a line, or .jsonl")
    options.reward_argument(evaluate)
    evaluate.add_argument(
        "--seeds", type=options.positive, default=4, metavar="N", help="pictures to a prompt (default 4)"
    )
    evaluate.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    evaluate.add_argument("--guidance", type=float, help="(default: the run's own, or 3.5)")
    options.sampling_arguments(evaluate)
    evaluate.add_argument(
        "--output",
        type=options.folder,
        metavar="DIR",
        help="goes on with what is there (default: evaluation in the run, or here)",
    )
    options.permission_arguments(evaluate)
    evaluate.set_defaults(command=_eval)

    analyze = commands.add_parser(
        "analyze", help="measure whether credit follows the rewards", description=_analyze.__doc__
    )
    options.workflow_arguments(analyze)
    analyze.add_argument("--iterations", type=options.positive, default=4, metavar="N", help="rollouts (default 4)")
    analyze.add_argument(
        "--adapter", type=Path, metavar="RUN|FILE", help="of the trained model (default: as the workflow loads it)"
    )
    analyze.add_argument(
        "--tweedie-steps",
        type=options.positive,
        default=1,
        metavar="N",
        help="model calls to predict a picture (default 1)",
    )
    analyze.add_argument("--seed", type=int, help="sets every node's seed")
    analyze.add_argument("--device", help="cpu, cuda, cuda:1 … instead of what the nodes name")
    analyze.add_argument("--output", type=options.folder, metavar="DIR", help="(default: analysis in the run, or here)")
    analyze.set_defaults(command=_analyze)

    compare = commands.add_parser(
        "compare", help="train workflows side by side and compare them", description=_compare.__doc__
    )
    compare.add_argument("workflows", nargs="+", metavar="[NAME=]WORKFLOW", help="exported by ComfyUI (API format)")
    compare.add_argument(
        "--output", type=options.folder, required=True, metavar="DIR", help="goes on with what is there"
    )
    compare.add_argument("--baseline", metavar="NAME", help="that others are compared with (default: the first)")
    compare.add_argument("--iterations", type=options.positive, metavar="N", help="(default: the baseline's own)")
    compare.add_argument("--seeds", type=options.positive, default=3, metavar="N", help="trainings of each (default 3)")
    compare.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    compare.add_argument(
        "--learning-rates",
        type=float,
        nargs="+",
        default=[],
        metavar="RATE",
        help="one is for all; of several the best is chosen for each workflow, on other seeds (default: each workflow's own)",
    )
    compare.add_argument(
        "--tuning-seeds",
        type=options.positive,
        default=2,
        metavar="N",
        help="trainings to choose by, of each rate (default 2)",
    )
    compare.add_argument(
        "--tuning-iterations", type=options.positive, metavar="N", help="their length (default: that of --iterations)"
    )
    compare.add_argument(
        "--evaluate-every", type=options.positive, metavar="N", help="iterations (default: a tenth of all, rounded up)"
    )
    compare.add_argument("--prompts", metavar="FILE", help="to judge by (default: the baseline's evaluation prompts)")
    compare.add_argument(
        "--evaluation-seeds",
        type=options.positive,
        metavar="N",
        help="pictures to a prompt (default: the baseline's own)",
    )
    compare.add_argument(
        "--features",
        default="shapes-clip",
        metavar="ENCODER",
        help="of pictures, to measure diversity by (default shapes-clip)",
    )
    compare.add_argument(
        "--jobs", type=options.positive, default=1, metavar="N", help="trainings at a time (default 1)"
    )
    compare.add_argument("--report", action="store_true", help="train nothing, only report on what is finished")
    compare.add_argument("--device", help="cpu, cuda, cuda:1 …")
    options.set_argument(compare)
    options.permission_arguments(compare)
    compare.set_defaults(command=_compare)

    vbench = commands.add_parser("vbench", help="a table of VBench's results", description=_vbench.__doc__)
    vbench.add_argument(
        "results", nargs="+", metavar="[NAME=]RESULTS", help="a folder that VBench wrote, or one *_eval_results.json"
    )
    vbench.add_argument("--csv", type=Path, metavar="FILE", help="writes the same in full precision")
    vbench.set_defaults(command=_vbench)


def _stoppable(work: Callable[[], int], left: str) -> int:
    """Does the work; where a signal ends it, says what is left and returns the code of that signal."""
    from ..host import stopping

    with stopping.stop_signals():
        try:
            return work()
        except stopping.Stopped as stopped:
            print(f"otca: stopped by {stopped}; {left}", file=sys.stderr)
            return 128 + stopping.request.signal


def _score(given: argparse.Namespace) -> int:
    """Scores files by rewards; prints each reward's mean with its 95 % bootstrap interval as a Markdown table."""
    from ..host.terminal import quiet_libraries, terminal
    from ..study import scoring

    options.allow(given)
    options.allow_rewards(given.reward)
    terminal.device = given.device
    quiet_libraries()
    options.user_names(given.prompts)
    files = scoring.find_files(given.files)
    if given.prompt is not None:
        prompts = [given.prompt] * len(files)
    else:
        prompts = scoring.prompts_of(files, given.prompts)
    rewards = [scoring.parse_reward(text) for text in given.reward]
    scores = scoring.score_files(rewards, files, prompts, given.batch_size)
    names = [reward.name for reward in rewards]
    print(scoring.table(names, scores))
    if given.csv is not None:
        scoring.write_csv(given.csv, files, prompts, names, scores)
    return 0


def _eval(given: argparse.Namespace) -> int:
    """Samples prompts by a model, by what a run made of it and with adapters, on the same seeds; scores and compares them.

    Ctrl-C leaves what is done, and the same command goes on from there.
    """
    from ..host.terminal import quiet_libraries, terminal
    from ..nodes import NODE_CLASS_MAPPINGS
    from ..study import evaluate, scoring
    from ..trainer.inference.loading import is_run
    from ..trainer.prompts import read_prompts

    options.allow(given)
    options.allow_rewards(given.reward)
    others = [*map(evaluate.parse_lora, given.lora), *evaluate.parse_guides(given.guide)]
    options.user_names(given.source, given.prompts, *(guide.source for other in others for guide in other.guides))
    terminal.device = given.device
    quiet_libraries()
    folder = given.output or (Path(given.source) if is_run(given.source) else Path(".")) / "evaluation"

    def work() -> int:
        table = evaluate.evaluate(
            given.source,
            others,
            read_prompts("", given.prompts),
            range(given.seed, given.seed + given.seeds),
            {text: scoring.parse_reward(text) for text in given.reward},
            folder,
            NODE_CLASS_MAPPINGS,
            size=given.size,
            batch_size=given.batch_size,
            steps=given.steps,
            frames=given.frames,
            guidance=given.guidance,
        )
        print(table)
        print(folder)
        return 0

    return _stoppable(work, _GOES_ON.format(folder))


def _analyze(given: argparse.Namespace) -> int:
    """Samples by a workflow without training, scores the predicted picture at every step, and compares what each step gained
    with what the credit's proxies say. Prints the agreement as a table; figures and plots go into the folder.
    """
    from ..host.terminal import quiet_libraries, terminal
    from ..study.analyze import analyze

    terminal.device = given.device
    quiet_libraries()
    workflow = options.load(given)
    options.set_seeds(workflow, given.seed)
    folder = given.output or (given.workflow if given.workflow.is_dir() else Path(".")) / "analysis"

    def work() -> int:
        table = analyze(workflow, folder, given.iterations, given.adapter, given.tweedie_steps)
        print(table)
        print(folder)
        return 0

    return _stoppable(work, "nothing was written")


def _compare(given: argparse.Namespace) -> int:
    """Trains workflows from the same start on the same prompts, with the same seeds and samples, and compares what became of
    them: curves with confidence bands, differences to a baseline, held-out rewards, diversity and cost.

    Ctrl-C leaves what is done, and the same command goes on from there.
    """
    from ..host.names import named_path
    from ..host.terminal import quiet_libraries, terminal
    from ..study import compare, fairness
    from ..trainer.prompts import read_prompts

    if "RANK" in os.environ:
        raise ValueError(
            "otca compare starts processes of its own. Fix: start it once, without torchrun or accelerate launch"
        )
    terminal.device = given.device
    quiet_libraries()
    options.user_names(given.prompts, given.features)
    workflows = {}
    for text in given.workflows:
        name, given.workflow = named_path(text, "workflow")
        if name in workflows:
            raise ValueError(f"two workflows are called {name}. Fix: NAME=WORKFLOW gives another name")
        workflows[name] = options.load(given)
    baseline = given.baseline or next(iter(workflows))
    if baseline not in workflows:
        raise ValueError(f"--baseline {baseline!r} is no workflow. Fix: one of {', '.join(workflows)}")
    own = fairness.run_inputs(workflows[baseline])
    if not (given.prompts or own["evaluation_prompts"].strip()):
        raise ValueError(f"{baseline} has no evaluation_prompts on its Training Run. Fix: --prompts FILE")
    iterations = given.iterations or own["iterations"]
    settings = compare.Settings(
        iterations=iterations,
        seeds=range(given.seed, given.seed + given.seeds),
        evaluate_every=given.evaluate_every or -(-iterations // 10),
        prompts="\n".join(read_prompts(own["evaluation_prompts"], given.prompts or "")),
        evaluation_seeds=given.evaluation_seeds or own["evaluation_seeds"],
        learning_rates=sorted(set(given.learning_rates)),
        tuning_seeds=given.tuning_seeds,
        tuning_iterations=given.tuning_iterations or iterations,
        jobs=given.jobs,
        device=given.device,
        features=given.features,
    )

    def work() -> int:
        table, complete = compare.compare(
            workflows,
            baseline,
            settings,
            given.output,
            lambda line: print(line, flush=True),
            train=not given.report,
        )
        print(table)
        print(given.output)
        return 0 if complete else 1

    return _stoppable(work, _GOES_ON.format(given.output))


def _vbench(given: argparse.Namespace) -> int:
    """Prints what VBench found of each model as a Markdown table, in percent: Total, Quality, Semantic and every dimension."""
    from ..study import vbench

    evaluations = []
    for text in given.results:
        name, equals, place = text.partition("=")
        own = (Path(place).expanduser(), name) if equals else (Path(text).expanduser(),)
        evaluations.append(vbench.read(*own))
    print(vbench.markdown(evaluations), end="")
    if given.csv is not None:
        given.csv.write_text(vbench.as_csv(evaluations), encoding="utf-8")
    return 0
