"""Commands that judge: `otca score`, `otca eval`, `otca analyze`; and `otca taste fit`, which learns to."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import options
from .options import (
    COMFYUI,
    DEVICE,
    FIRST_SEED,
    OF_ALL_NODES,
    PERMISSIONS,
    REWARDS,
    SAMPLING,
    SOURCE,
    WORKFLOW,
    arg,
    command,
    count,
    flag,
    many,
)


@command(
    "score",
    "score pictures and videos that are there",
    arg("files", "pictures, videos, folders or patterns of them", nargs="+", metavar="FILE"),
    REWARDS,
    arg(
        "--prompts",
        "one prompt per line, or a table (default: <name>.txt or metadata.jsonl beside the files)",
        type=Path,
        metavar="FILE",
    ),
    arg("--prompt", "the same prompt for all files"),
    arg("--csv", "writes every single score", type=Path, metavar="FILE"),
    count("--batch-size", "files at once", 8),
    DEVICE,
    COMFYUI,
    PERMISSIONS,
)
def score(arguments: argparse.Namespace) -> int:
    """Scores files by rewards; prints each reward's mean with its 95 % interval, clustered by prompt, as a Markdown table."""
    from ..study import scoring
    from ..trainer.prompts import prompt_of

    options.begin(arguments, arguments.prompts)
    options.allow_rewards(arguments.reward)
    files = scoring.find_files(arguments.files)
    prompt = arguments.prompt
    prompts = scoring.prompts_of(files, arguments.prompts) if prompt is None else [prompt_of(prompt)] * len(files)
    encoder = options.text_encoder(arguments)
    rewards = [scoring.parse_reward(text, encoder) for text in arguments.reward]
    scores = scoring.score_files(rewards, files, prompts, arguments.batch_size)
    names = [reward.name for reward in rewards]
    if arguments.csv is not None:
        scoring.write_csv(arguments.csv, files, prompts, names, scores)
    print(scoring.table(names, scores, prompts))
    return 0


@command(
    "eval",
    "compare a model with what it was trained to",
    SOURCE,
    many("--lora", "[NAME=]FILE", "an adapter, or a run's folder, to compare with"),
    many("--guide", "[NAME=]RUN=γ", "implicit reward guidance, as of otca sample. Guides of one NAME are composed"),
    arg("--prompts", "one prompt per line, or .jsonl", required=True, metavar="FILE"),
    REWARDS,
    count("--seeds", "pictures to a prompt", 4),
    FIRST_SEED,
    arg("--guidance", "(default: the run's own, or 3.5)", type=float),
    *SAMPLING,
    arg(
        "--output",
        "continues what is there (default: evaluation in the run, or here)",
        type=options.folder,
        metavar="DIR",
    ),
    COMFYUI,
    PERMISSIONS,
)
def evaluate(arguments: argparse.Namespace) -> int:
    """Samples prompts by a model, by what a run made of it and with adapters, on the same seeds; scores and compares them.

    Ctrl-C keeps what is done, and the same command continues from there.
    """
    from ..inference.loading import is_run
    from ..study import evaluate as study
    from ..study import scoring
    from ..trainer.prompts import read_prompts

    others = [*map(study.parse_lora, arguments.lora), *study.parse_guides(arguments.guide)]
    guides = [guide.source for other in others for guide in other.guides]
    options.begin(arguments, arguments.source, arguments.prompts, *guides)
    options.allow_rewards(arguments.reward)
    folder = arguments.output or (Path(arguments.source) if is_run(arguments.source) else Path(".")) / "evaluation"

    def work() -> int:
        table = study.evaluate(
            arguments.source,
            others,
            read_prompts("", arguments.prompts),
            range(arguments.seed, arguments.seed + arguments.seeds),
            {text: scoring.parse_reward(text, options.text_encoder(arguments)) for text in arguments.reward},
            folder,
            options.classes_of_run(arguments, arguments.source),
            size=arguments.size,
            batch_size=arguments.batch_size,
            steps=arguments.steps,
            frames=arguments.frames,
            guidance=arguments.guidance,
        )
        print(table)
        print(folder)
        return 0

    return options.stoppable(work, options.CONTINUES.format(folder))


@command(
    "analyze",
    "measure whether credit follows the rewards",
    *WORKFLOW,
    count("--iterations", "rollouts", 4),
    arg("--adapter", "of the trained model (default: as the workflow loads it)", type=Path, metavar="RUN|FILE"),
    count("--tweedie-steps", "model calls to predict a picture", 1),
    flag("--signal", "instead: which credit's gradient says most about a reward that has a gradient"),
    count("--batches", "with --signal: of policy gradients; the same command with more continues", 64),
    arg(
        "--reward",
        "with --signal: the name of one of the workflow's rewards (default: the first with a gradient)",
        metavar="NAME",
    ),
    *OF_ALL_NODES,
    arg("--output", "(default: analysis, or signal, in the run, or here)", type=options.folder, metavar="DIR"),
)
def analyze(arguments: argparse.Namespace) -> int:
    """Samples by a workflow without training, scores the predicted picture at every step, and compares what each step gained
    with what the credit's proxies say. Prints the agreement as a table; figures and plots go into the folder.

    With --signal it compares every credit's gradient with the exact one. Ctrl-C keeps what is done, and the same command
    continues from there.
    """
    from ..study import analyze as study
    from ..study import signal

    if arguments.reward is not None and not arguments.signal:
        raise ValueError("--reward belongs to --signal. Fix: add --signal, or leave it out")
    options.begin(arguments)
    workflow = options.load(arguments)
    options.set_seeds(workflow, arguments.seed)
    place = arguments.workflow if arguments.workflow.is_dir() else Path(".")
    folder = arguments.output or place / ("signal" if arguments.signal else "analysis")

    def work() -> int:
        if arguments.signal:
            print(signal.analyze_signal(workflow, folder, arguments.batches, arguments.adapter, arguments.reward))
        else:
            print(study.analyze(workflow, folder, arguments.iterations, arguments.adapter, arguments.tweedie_steps))
        print(folder)
        return 0

    return options.stoppable(work, options.CONTINUES.format(folder) if arguments.signal else "nothing was written")


@command(
    "taste fit",
    "learn a reward, that of Reward: My Taste, from your choices",
    arg("votes", "folders of votes, a votes.jsonl, or pair files (.jsonl)", nargs="*", type=Path, metavar="VOTES"),
    arg("--liked", "pictures, each better than …", type=Path, metavar="DIR"),
    arg("--disliked", "… each of these", type=Path, metavar="DIR"),
    arg("--encoder", "CLIP, SigLIP 2, DINOv2 …", default="shapes-clip", metavar="NAME"),
    arg("--output", "the file of the head", type=Path, default=Path("taste.safetensors"), metavar="FILE"),
    count("--batch-size", "pictures at once", 8),
    DEVICE,
    PERMISSIONS,
)
def taste(arguments: argparse.Namespace) -> int:
    """Fits a linear head on a frozen image encoder to choices, and prints how well it predicts choices that were left out."""
    from ..study import taste as study

    options.begin(arguments, arguments.encoder)
    if (arguments.liked is None) != (arguments.disliked is None):
        raise ValueError("--liked and --disliked belong together. Fix: give both folders")
    if not arguments.votes and arguments.liked is None:
        raise ValueError("there is nothing to learn from. Fix: name VOTES, or --liked DIR --disliked DIR")
    if arguments.output.suffix != ".safetensors":
        raise ValueError(f"--output {arguments.output} is not a .safetensors file. Fix: --output taste.safetensors")
    comparisons = [comparison for source in arguments.votes for comparison in study.read_source(source)]
    if arguments.liked is not None:
        comparisons.append(study.of_folders(arguments.liked, arguments.disliked))
    fitted = study.fit_taste(comparisons, arguments.encoder, arguments.device or "auto", arguments.batch_size)
    fitted.save(arguments.output)
    print(study.report(fitted))
    print(arguments.output)
    return 0
