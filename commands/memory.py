"""`otca memory`: what a workflow's training needs on the GPU."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from . import options


def add(commands) -> None:
    parser = commands.add_parser("memory", help="estimate what a training needs on the GPU", description=_run.__doc__)
    parser.add_argument(
        "workflow", type=Path, nargs="?", help="exported by ComfyUI, with Make Trainable or Load Flow Model in it"
    )
    options.set_argument(parser)
    parser.add_argument(
        "--comfyui",
        type=options.folder,
        default=os.environ.get("COMFYUI_PATH"),
        metavar="PATH",
        help="ComfyUI's folder, whose model files are looked at (default: $COMFYUI_PATH)",
    )
    parser.add_argument(
        "--gpu-gb", type=options.positive, metavar="N", help="compare with a GPU of N GB (default: the one here)"
    )
    parser.add_argument(
        "--recipes", action="store_true", help="print the table of docs/models.md: what fits on 12 to 48 GB"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Estimates what the training of a workflow needs on the GPU, phase by phase, and says what to change if that is too much.
    It is counted from configurations and the headers of files: nothing is loaded, and nothing was measured on a GPU.
    """
    from ..nodes import NODE_CLASS_MAPPINGS
    from ..trainer.memory import needs
    from ..trainer.memory.case import GB, in_words
    from ..trainer.memory.native import recipes_table
    from ..trainer.workflow.reading import api_graph, read_workflow
    from ..trainer.workflow.running import Workflow

    if arguments.recipes:
        print(recipes_table())
        return 0
    if arguments.workflow is None:
        raise ValueError("no workflow. Fix: otca memory WORKFLOW, or otca memory --recipes")
    comfyui = Path(arguments.comfyui) if arguments.comfyui else None
    if comfyui and not (comfyui / "models").is_dir():
        raise ValueError(f"--comfyui {comfyui} has no folder `models`. Fix: give the folder that ComfyUI is in")
    options.user_names(comfyui and comfyui / "models")
    workflow = Workflow(api_graph(read_workflow(arguments.workflow)), NODE_CLASS_MAPPINGS)
    options.change(workflow, arguments.set)
    case, files = needs.read(workflow.graph, comfyui)
    has = arguments.gpu_gb * GB if arguments.gpu_gb else _memory_here()
    found = case.estimate(has)
    size = f", {in_words(case.iteration.size)}" if case.iteration else ""
    print(f"{case.title}{size}: counted from configurations, not measured on a GPU")
    for line in files:
        print(f"  {line}")
    for phase, parts in found.phases.items():
        of = ", ".join(f"{name} {size / GB:.1f}" for name, size in parts.items() if size > 0.05 * GB)
        print(f"{phase:17}{found.totals[phase] / GB:7.1f} GB: {of}")
    print(f"{'needs':17}{found.total / GB:7.1f} GB, in {found.phase}")
    print(f"{'has':17}{has / GB:7.1f} GB" if has else f"{'has':17} no GPU is here; --gpu-gb N compares with one")
    if has and found.total > has:
        print("It does not fit. What needs less, from cheap to costly:")
        for words, changed in case.changes().items():
            fits = ", which fits" if changed.needs.total <= has else ""
            print(f"  {words}: {changed.needs.total / GB:.1f} GB{fits}")
    if has:
        print(case.sentence(has))
    return 0


def _memory_here() -> int:
    """Bytes of the GPU of this machine; 0 if it has no GPU."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0
