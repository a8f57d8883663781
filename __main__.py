"""`otca`: what a shell runs. Hands the node table to the trainer; every heavy import waits until a command needs it."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import os
import sys
from pathlib import Path

EXIT_BAD_INPUT = 2


def main(arguments: list[str] | None = None) -> int:
    gc.set_threshold(100_000)  # importing torch and diffusers makes a great many objects, and they stay
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(arguments, argparse.Namespace(arguments=arguments))
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        return options.command(options)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except _bad_input() as error:
        _complain(error)
        return EXIT_BAD_INPUT
    except _failures() as error:
        _complain(error)
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line; also asked by others for what this version can do."""
    otca = argparse.ArgumentParser(prog="otca", description="Train flow-matching models by reinforcement learning.")
    commands = otca.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train an exported workflow", description=_train.__doc__)
    _workflow_arguments(train)
    train.add_argument(
        "--iterations", type=int, metavar="N", help="length of the training, instead of the workflow's own"
    )
    train.add_argument("--output", type=_folder, metavar="DIR", help="the run's folder (default: runs/<run_name>)")
    train.add_argument("--resume", action="store_true", help="go on from the folder's last checkpoint")
    train.add_argument("--seed", type=int, help="sets every node's seed")
    train.add_argument("--device", help="cpu, cuda, cuda:1 … instead of what the nodes name")
    train.add_argument("--gpus", type=_positive, default=1, metavar="N", help="processes, each on a GPU of its own")
    train.add_argument(
        "--reward-gpus",
        type=_positive,
        metavar="R",
        help="the next R GPUs are for rewards whose device is auto; all else trains on the others",
    )
    train.add_argument(
        "--max-restarts", type=int, default=0, metavar="N", help="with --gpus: go on by itself after so many failures"
    )
    train.add_argument("--download", action="store_true", help="hub ids that Load Flow Model names may be fetched")
    train.set_defaults(command=_train)

    validate = commands.add_parser("validate", help="check a workflow", description=_validate.__doc__)
    _workflow_arguments(validate)
    validate.set_defaults(command=_validate)

    sample = commands.add_parser("sample", help="make pictures with a run or a model", description=_sample.__doc__)
    sample.add_argument("source", metavar="RUN|MODEL", help="a run's folder, or a model's folder or name")
    sample.add_argument("--prompt", action="append", required=True, help="may be given more than once")
    sample.add_argument("--seeds", type=_positive, default=4, metavar="N", help="pictures to a prompt (default 4)")
    sample.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    sample.add_argument("--output", type=Path, metavar="PNG", help="default: samples-<n>.png in the run, or here")
    sample.add_argument(
        "--guide",
        action="append",
        default=[],
        metavar="RUN=γ",
        help="implicit reward guidance: so much of that run's or LoRA's change of the velocity; RUN=0:1.5,8:0.5 from these "
        "steps on. May be given more than once",
    )
    _sampling_arguments(sample)
    sample.set_defaults(command=_sample)

    export = commands.add_parser(
        "export", help="merge what a run trained into a whole model", description=_export.__doc__
    )
    export.add_argument("run", help="a run's folder")
    export.add_argument("--output", type=Path, required=True, help="folder of the new model, in diffusers' layout")
    export.add_argument("--device", help="auto, cpu, cuda …")
    export.set_defaults(command=_export)

    report = commands.add_parser(
        "report", help="make a page of a run, to look at or pass on", description=_report.__doc__
    )
    report.add_argument("run", type=Path, help="a run's folder")
    report.add_argument("--output", type=Path, metavar="FILE.html", help="default: report.html in the run")
    report.set_defaults(command=_report)

    score = commands.add_parser("score", help="score pictures and videos that are there", description=_score.__doc__)
    score.add_argument("files", nargs="+", metavar="FILE", help="pictures, videos, folders or patterns of them")
    _reward_argument(score)
    score.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="one prompt a line, or .jsonl (default: <name>.txt or metadata.jsonl beside the files)",
    )
    score.add_argument("--prompt", help="the same prompt for all files")
    score.add_argument("--csv", type=Path, metavar="FILE", help="writes every single score")
    score.add_argument("--batch-size", type=_positive, default=8, metavar="N", help="files at once (default 8)")
    score.add_argument("--device", help="cpu, cuda, cuda:1 …")
    _python_argument(score)
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
    _reward_argument(evaluate)
    evaluate.add_argument("--seeds", type=_positive, default=4, metavar="N", help="pictures to a prompt (default 4)")
    evaluate.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    evaluate.add_argument("--guidance", type=float, help="(default: the run's own, or 3.5)")
    _sampling_arguments(evaluate)
    evaluate.add_argument(
        "--output",
        type=_folder,
        metavar="DIR",
        help="goes on with what is there (default: evaluation in the run, or here)",
    )
    _python_argument(evaluate)
    evaluate.set_defaults(command=_eval)

    analyze = commands.add_parser(
        "analyze", help="measure whether credit follows the rewards", description=_analyze.__doc__
    )
    _workflow_arguments(analyze)
    analyze.add_argument("--iterations", type=_positive, default=4, metavar="N", help="rollouts (default 4)")
    analyze.add_argument(
        "--adapter", type=Path, metavar="RUN|FILE", help="of the trained model (default: as the workflow loads it)"
    )
    analyze.add_argument(
        "--tweedie-steps", type=_positive, default=1, metavar="N", help="model calls to predict a picture (default 1)"
    )
    analyze.add_argument("--seed", type=int, help="sets every node's seed")
    analyze.add_argument("--device", help="cpu, cuda, cuda:1 … instead of what the nodes name")
    analyze.add_argument("--output", type=_folder, metavar="DIR", help="(default: analysis in the run, or here)")
    analyze.set_defaults(command=_analyze)
    compare = commands.add_parser(
        "compare", help="train workflows side by side and compare them", description=_compare.__doc__
    )
    compare.add_argument("workflows", nargs="+", metavar="[NAME=]WORKFLOW", help="exported by ComfyUI (API format)")
    compare.add_argument("--output", type=_folder, required=True, metavar="DIR", help="goes on with what is there")
    compare.add_argument("--baseline", metavar="NAME", help="that others are compared with (default: the first)")
    compare.add_argument("--iterations", type=_positive, metavar="N", help="(default: the baseline's own)")
    compare.add_argument("--seeds", type=_positive, default=3, metavar="N", help="trainings of each (default 3)")
    compare.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    compare.add_argument(
        "--learning-rates",
        type=float,
        nargs="+",
        default=[],
        metavar="RATE",
        help="the best is chosen for each workflow, on seeds of its own (default: each workflow's own)",
    )
    compare.add_argument(
        "--tuning-seeds",
        type=_positive,
        default=2,
        metavar="N",
        help="trainings to choose by, of each rate (default 2)",
    )
    compare.add_argument(
        "--tuning-iterations", type=_positive, metavar="N", help="their length (default: that of --iterations)"
    )
    compare.add_argument(
        "--evaluate-every", type=_positive, metavar="N", help="iterations (default: a tenth of all, rounded up)"
    )
    compare.add_argument("--prompts", metavar="FILE", help="to judge by (default: the baseline's evaluation prompts)")
    compare.add_argument(
        "--evaluation-seeds", type=_positive, metavar="N", help="pictures to a prompt (default: the baseline's own)"
    )
    compare.add_argument(
        "--features", default="shapes-clip", metavar="CLIP", help="to measure diversity by (default shapes-clip)"
    )
    compare.add_argument("--jobs", type=_positive, default=1, metavar="N", help="trainings at a time (default 1)")
    compare.add_argument("--report", action="store_true", help="train nothing, only report on what is finished")
    compare.add_argument("--device", help="cpu, cuda, cuda:1 …")
    _set_argument(compare)
    _python_argument(compare)
    compare.set_defaults(command=_compare)

    vbench = commands.add_parser("vbench", help="a table of VBench's results", description=_vbench.__doc__)
    vbench.add_argument(
        "results", nargs="+", metavar="[NAME=]RESULTS", help="a folder that VBench wrote, or one *_eval_results.json"
    )
    vbench.add_argument("--csv", type=Path, metavar="FILE", help="writes the same in full precision")
    vbench.set_defaults(command=_vbench)

    nodes = commands.add_parser("nodes", help="list the nodes, with inputs and outputs", description=_nodes.__doc__)
    nodes.set_defaults(command=_nodes)
    return otca


def _workflow_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workflow", type=Path, help="exported by ComfyUI (API format .json, or a .png it saved), or a run"
    )
    _set_argument(parser)
    _python_argument(parser)


def _set_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NODE.INPUT=VALUE",
        help="change an input; NODE is an id, a title or a class. May be given more than once",
    )


def _sampling_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=_positive, help="denoising steps (default: the run's own, or 28)")
    parser.add_argument("--size", metavar="WxH", help="pixels (default: the run's own, or the model's)")
    parser.add_argument("--frames", type=_positive, metavar="N", help="of a video (default: the run's own, or 1)")
    parser.add_argument("--batch-size", type=_positive, default=8, metavar="N", help="pictures at once (default 8)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 …")


def _reward_argument(parser: argparse.ArgumentParser) -> None:
    rewards = parser.add_mutually_exclusive_group(required=True)
    kind = "KIND[:OPTION=VALUE,…]"
    rewards.add_argument(
        "--reward",
        action="append",
        metavar=kind,
        help="such as clip_t:model=/models/clip-vit-large-patch14. May be given more than once",
    )
    rewards.add_argument("--rewards", nargs="+", dest="reward", metavar=kind, help="the same, all at once")


def _python_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-python",
        action="append",
        default=[],
        type=_existing_folder,
        metavar="FOLDER",
        help="let Python rewards run the files in that folder, with all your rights. May be given more than once",
    )


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("the folder has no name")
    return Path(text)


def _existing_folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder")
    return Path(text).resolve()


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _train(options: argparse.Namespace) -> int:
    """Trains an exported workflow. Ctrl-C or SIGTERM saves a checkpoint; --resume goes on from it bit-exactly."""
    from .trainer import distributed, host
    from .trainer.run import RUN_NODE, check_folder, train

    workflow = _load(options)
    if options.iterations is not None:
        workflow.set(f"{RUN_NODE}.iterations", options.iterations)
    _seed(workflow, options.seed)
    if options.output is None and options.workflow.is_dir():
        options.output = options.workflow
    host.terminal.output = options.output
    host.terminal.device, host.terminal.download = options.device, options.download
    problems = workflow.validate()
    for problem in problems if distributed.is_main() else ():
        _show(problem)
    if any(problem.severity == "error" for problem in problems):
        return EXIT_BAD_INPUT
    if options.reward_gpus and options.device:
        raise ValueError(f"--reward-gpus and --device {options.device} say two things. Fix: leave one of them out")
    if options.gpus > 1 and "RANK" not in os.environ:
        from .trainer.launch import launch

        if options.reward_gpus:
            distributed.check_gpus(options.gpus, options.reward_gpus)
        check_folder(workflow, options.resume)  # here, where it is told once and no restart follows
        return launch(options.gpus, options.max_restarts, options.arguments)
    if options.reward_gpus:
        host.terminal.reward_device = distributed.reward_gpu(options.reward_gpus)
    host.quiet_libraries()
    distributed.begin(cpu=options.device == "cpu")
    code = train(workflow, resume=options.resume, say=lambda line: print(line, flush=True))
    distributed.end()
    return code


def _validate(options: argparse.Namespace) -> int:
    """Checks a workflow without running it and prints every problem; exit code 2 if there is an error."""
    severities = [_show(problem) for problem in _load(options).validate()]
    if "error" in severities:
        return EXIT_BAD_INPUT
    print(f"{options.workflow}: ready to train")
    return 0


def _sample(options: argparse.Namespace) -> int:
    """Makes a grid of pictures by the deterministic sampler; for a run, without its adapter above and with it below.

    With --guide: without guides above, with all of them below. A run's own adapter then counts only if it is one of them.
    """
    from .nodes import NODE_CLASS_MAPPINGS
    from .trainer import guidance, host
    from .trainer.sample import sample_to_file

    host.terminal.device = options.device
    host.quiet_libraries()
    path = sample_to_file(
        options.source,
        options.prompt,
        seeds=range(options.seed, options.seed + options.seeds),
        steps=options.steps,
        size=options.size,
        frames=options.frames,
        batch_size=options.batch_size,
        output=options.output,
        node_classes=NODE_CLASS_MAPPINGS,
        guides=[guidance.parse(text) for text in options.guide],
    )
    print(path)
    return 0


def _export(options: argparse.Namespace) -> int:
    """Writes a run's model as a whole, with what was trained merged into its weights."""
    from .nodes import NODE_CLASS_MAPPINGS
    from .trainer import host
    from .trainer.sample import load_run
    from .trainer.weights import export

    host.terminal.device = options.device
    host.quiet_libraries()
    if options.output.exists() and any(options.output.iterdir()):
        raise ValueError(f"--output {options.output} is not empty. Fix: choose another folder")
    model, _ = load_run(Path(options.run), NODE_CLASS_MAPPINGS, whole=True)
    export(model, options.output)
    print(options.output)
    return 0


def _report(options: argparse.Namespace) -> int:
    """Writes one HTML page with a run's curves, evaluations, pictures, credit, times, settings and workflow in it."""
    from .nodes import NODE_CLASS_MAPPINGS
    from .trainer.report import write

    print(write(options.run, options.output, NODE_CLASS_MAPPINGS))
    return 0


def _score(options: argparse.Namespace) -> int:
    """Scores files by rewards; prints each reward's mean with its 95 % bootstrap interval as a Markdown table."""
    from .trainer import host, scoring

    _allow_python(options)
    host.terminal.device = options.device
    host.quiet_libraries()
    files = scoring.find_files(options.files)
    if options.prompt is not None:
        prompts = [options.prompt] * len(files)
    else:
        prompts = scoring.prompts_of(files, options.prompts)
    rewards = [scoring.parse_reward(text) for text in options.reward]
    scores = scoring.score_files(rewards, files, prompts, options.batch_size)
    names = [reward.name for reward in rewards]
    print(scoring.table(names, scores))
    if options.csv is not None:
        scoring.write_csv(options.csv, files, prompts, names, scores)
    return 0


def _eval(options: argparse.Namespace) -> int:
    """Samples prompts by a model, by what a run made of it and with adapters, on the same seeds; scores and compares them.

    Ctrl-C leaves what is done, and the same command goes on from there.
    """
    from .nodes import NODE_CLASS_MAPPINGS
    from .trainer import evaluate, host, scoring
    from .trainer.prompts import read_prompts
    from .trainer.sample import is_run

    _allow_python(options)
    host.terminal.device = options.device
    host.quiet_libraries()
    folder = options.output or (Path(options.source) if is_run(options.source) else Path(".")) / "evaluation"
    with host.stop_signals():
        try:
            table = evaluate.evaluate(
                options.source,
                [*map(evaluate.parse_lora, options.lora), *evaluate.parse_guides(options.guide)],
                read_prompts("", options.prompts),
                range(options.seed, options.seed + options.seeds),
                {text: scoring.parse_reward(text) for text in options.reward},
                folder,
                NODE_CLASS_MAPPINGS,
                size=options.size,
                batch_size=options.batch_size,
                steps=options.steps,
                frames=options.frames,
                guidance=options.guidance,
            )
        except host.Stopped as stopped:
            print(f"otca: stopped by {stopped}; the same command goes on from there: {folder}", file=sys.stderr)
            return 128 + host.terminal.stop_signal
    print(table)
    print(folder)
    return 0


def _analyze(options: argparse.Namespace) -> int:
    """Samples by a workflow without training, scores the predicted picture at every step, and compares what each step gained
    with what the credit's proxies say. Prints the agreement as a table; figures and plots go into the folder.
    """
    from .trainer import host
    from .trainer.analyze import analyze

    host.terminal.device = options.device
    host.quiet_libraries()
    workflow = _load(options)
    _seed(workflow, options.seed)
    folder = options.output or (options.workflow if options.workflow.is_dir() else Path(".")) / "analysis"
    with host.stop_signals():
        try:
            table = analyze(workflow, folder, options.iterations, options.adapter, options.tweedie_steps)
        except host.Stopped as stopped:
            print(f"otca: stopped by {stopped}; nothing was written", file=sys.stderr)
            return 128 + host.terminal.stop_signal
    print(table)
    print(folder)
    return 0


def _compare(options: argparse.Namespace) -> int:
    """Trains workflows from the same start on the same prompts, with the same seeds and samples, and compares what became of
    them: curves with confidence bands, differences to a baseline, held-out rewards, diversity and cost.

    Ctrl-C leaves what is done, and the same command goes on from there.
    """
    from .trainer import compare, host
    from .trainer.prompts import read_prompts

    if "RANK" in os.environ:
        raise ValueError(
            "otca compare starts processes of its own. Fix: start it once, without torchrun or accelerate launch"
        )
    host.terminal.device = options.device
    host.quiet_libraries()
    workflows = {}
    for text in options.workflows:
        name, options.workflow = compare.named(text)
        if name in workflows:
            raise ValueError(f"two workflows are called {name}. Fix: NAME=WORKFLOW gives another name")
        workflows[name] = _load(options)
    baseline = options.baseline or next(iter(workflows))
    if baseline not in workflows:
        raise ValueError(f"--baseline {baseline!r} is no workflow. Fix: one of {', '.join(workflows)}")
    own = compare.run_inputs(workflows[baseline])
    if not (options.prompts or own["evaluation_prompts"].strip()):
        raise ValueError(f"{baseline} has no evaluation_prompts on its Training Run. Fix: --prompts FILE")
    iterations = options.iterations or own["iterations"]
    settings = compare.Settings(
        iterations=iterations,
        seeds=range(options.seed, options.seed + options.seeds),
        evaluate_every=options.evaluate_every or -(-iterations // 10),
        prompts="\n".join(read_prompts(own["evaluation_prompts"], options.prompts or "")),
        evaluation_seeds=options.evaluation_seeds or own["evaluation_seeds"],
        learning_rates=sorted(set(options.learning_rates)),
        tuning_seeds=options.tuning_seeds,
        tuning_iterations=options.tuning_iterations or iterations,
        jobs=options.jobs,
        device=options.device,
        features=options.features,
    )
    with host.stop_signals():
        try:
            table, complete = compare.compare(
                workflows,
                baseline,
                settings,
                options.output,
                lambda line: print(line, flush=True),
                train=not options.report,
            )
        except host.Stopped as stopped:
            print(f"otca: stopped by {stopped}; the same command goes on from there: {options.output}", file=sys.stderr)
            return 128 + host.terminal.stop_signal
    print(table)
    print(options.output)
    return 0 if complete else 1


def _vbench(options: argparse.Namespace) -> int:
    """Prints what VBench found of each model as a Markdown table, in percent: Total, Quality, Semantic and every dimension."""
    from .trainer import vbench

    evaluations = []
    for text in options.results:
        name, equals, place = text.partition("=")
        evaluations.append(vbench.read(Path(place), name) if equals else vbench.read(Path(text)))
    print(vbench.markdown(evaluations), end="")
    if options.csv is not None:
        options.csv.write_text(vbench.as_csv(evaluations), encoding="utf-8")
    return 0


def _nodes(options: argparse.Namespace) -> int:
    """Lists what the graph can be built of."""
    from .nodes import NODE_CLASS_MAPPINGS

    for name, node in NODE_CLASS_MAPPINGS.items():
        print(f"{name}  ({node.TITLE}, {node.CATEGORY})\n    {node.DESCRIPTION}")
        for kind in ("required", "optional"):
            for socket, (type_, *details) in node.INPUT_TYPES().get(kind, {}).items():
                shown = type_ if isinstance(type_, str) else " | ".join(map(str, type_))
                default = details[0].get("default", "") if details else ""
                given = f" = {default}" if default != "" else ""
                print(f"    <- {socket}: {shown}{given}{' (optional)' if kind == 'optional' else ''}")
        for type_, socket in zip(node.RETURN_TYPES, getattr(node, "RETURN_NAMES", node.RETURN_TYPES), strict=True):
            print(f"    -> {socket}: {type_}")
        print()
    return 0


def _load(options: argparse.Namespace):
    from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
    from .trainer.workflow import Workflow

    _allow_python(options)
    path = options.workflow / "workflow.json" if options.workflow.is_dir() else options.workflow
    workflow = Workflow.load(path, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS)
    for change in options.set:
        name, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change!r} has no '='. Fix: --set NODE.INPUT=VALUE")
        workflow.set(name, value)
    return workflow


def _seed(workflow, seed: int | None) -> None:
    if seed is not None:
        for node, content in workflow.graph.items():
            if "seed" in content["inputs"] and content["class_type"] in workflow.node_classes:
                workflow.set(f"{node}.seed", seed)


def _complain(error: BaseException) -> None:
    process = os.environ.get("RANK")
    print(f"otca{f' process {process}' if process else ''}: {error}", file=sys.stderr)


def _allow_python(options: argparse.Namespace) -> None:
    """By the environment, so that child processes are allowed the same."""
    from .trainer.host import ALLOW_PYTHON

    if options.allow_python:
        allowed = [os.environ.get(ALLOW_PYTHON), *map(str, options.allow_python)]
        os.environ[ALLOW_PYTHON] = os.pathsep.join(filter(None, allowed))


def _show(problem) -> str:
    print(f"{problem.severity}: {problem}", file=sys.stderr)
    return problem.severity


def _bad_input() -> tuple[type[Exception], ...]:
    """Errors of what the user gave: ValueError covers workflows, models and prompts."""
    from .trainer.record import RunError

    return (ValueError, FileNotFoundError, RunError)


def _failures() -> tuple[type[Exception], ...]:
    from .trainer.distributed import PeerFailed
    from .trainer.rewards import RewardError
    from .trainer.workflow import NodeError

    return (NodeError, PeerFailed, RewardError, OSError)


def _main_of_clone():
    """`main` of this folder loaded as the package it is, whatever the folder is called: `python path/to/ComfyUI-OTCA`."""
    folder = Path(__file__).resolve().parent
    # Python puts a folder that it runs first in its path, where our `nodes` and `server` would shadow other modules
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != folder]
    spec = importlib.util.spec_from_file_location(
        "comfyui_otca", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    package = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return importlib.import_module("comfyui_otca.__main__").main


if __name__ == "__main__":
    sys.exit((main if __package__ else _main_of_clone())())
