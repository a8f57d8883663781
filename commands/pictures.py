"""`otca sample` and `otca export`: pictures, or a whole model, of what a run trained."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import options
from .options import COMFYUI, DEVICE, FIRST_SEED, PERMISSIONS, SAMPLING, SOURCE, arg, command, count, many


@command(
    "sample",
    "make pictures with a run or a model",
    SOURCE,
    arg("--prompt", "may be given more than once", action="append", required=True),
    count("--seeds", "pictures to a prompt", 4),
    FIRST_SEED,
    arg("--output", "default: samples-<n>.png in the run or here; .gif, .webp, .apng move", type=Path, metavar="FILE"),
    arg(
        "--pair",
        "of a run: before.png and after.png of one prompt and seed, in a new folder, instead of a grid",
        type=options.folder,
        metavar="FOLDER",
    ),
    many(
        "--guide",
        "RUN=γ",
        "implicit reward guidance: so much of that run's or LoRA's change of the velocity; RUN=0:1.5,8:0.5 from these steps on",
    ),
    *SAMPLING,
    COMFYUI,
    PERMISSIONS,
)
def sample(arguments: argparse.Namespace) -> int:
    """Makes a grid of pictures by the deterministic sampler; for a run, without its adapter above and with it below.

    With --guide: without guides above, with all of them below. A run's own adapter then counts only if it is one of them.
    """
    from ..inference import guidance
    from ..inference.loading import pair_to_folder, sample_to_file
    from ..trainer.prompts import prompt_of

    guides = [guidance.parse(text) for text in arguments.guide]
    arguments.prompt = list(map(prompt_of, arguments.prompt))
    options.begin(arguments, arguments.source, *(guide.source for guide in guides))
    if arguments.pair:
        others = ("output", "guide", "steps", "size", "frames")
        if len(arguments.prompt) > 1 or (set_options := [f"--{name}" for name in others if getattr(arguments, name)]):
            extra = "a second --prompt" if len(arguments.prompt) > 1 else set_options[0]
            raise ValueError(f"--pair and {extra} say two things. Fix: leave one of them out")
        classes = options.classes_of_run(arguments, arguments.source)
        folder = Path(arguments.source).expanduser()
        pair_to_folder(folder, arguments.prompt[0], arguments.seed, arguments.pair, classes, options.say)
        print(arguments.pair)
        return 0
    path = sample_to_file(
        arguments.source,
        arguments.prompt,
        seeds=range(arguments.seed, arguments.seed + arguments.seeds),
        steps=arguments.steps,
        size=arguments.size,
        frames=arguments.frames,
        batch_size=arguments.batch_size,
        output=arguments.output,
        node_classes=options.classes_of_run(arguments, arguments.source),
        guides=guides,
    )
    print(path)
    return 0


@command(
    "export",
    "merge what a run trained into a whole model",
    arg("run", "a run's folder"),
    arg("--output", "folder of the new model, in diffusers' layout", type=Path, required=True),
    DEVICE,
    COMFYUI,
    PERMISSIONS,
)
def export(arguments: argparse.Namespace) -> int:
    """Writes a run's model as a whole, with what was trained merged into its weights."""
    from ..inference.loading import load_run

    options.begin(arguments)
    if arguments.output.exists() and any(arguments.output.iterdir()):
        raise ValueError(f"--output {arguments.output} is not empty. Fix: choose another folder")
    model, _ = load_run(Path(arguments.run), options.classes_of_run(arguments, arguments.run), whole=True)
    model.export(arguments.output)
    print(arguments.output)
    return 0
