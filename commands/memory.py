"""`otca memory`: what a workflow's training needs on the GPU."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from . import options


def add(commands) -> None:
    parser = commands.add_parser("memory", help="estimate what a training needs on the GPU", description=_run.__doc__)
    parser.add_argument("workflow", type=Path, nargs="?", help="exported by ComfyUI, with Make Trainable in it")
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
    """Estimates what the training of a workflow needs on the GPU, from the headers of its files and from published counts, and
    says what to change where that is too much. An estimate by arithmetic: nothing is loaded, and nothing was measured.
    """
    from ..study import needs
    from ..trainer.flow.native.memory import GB, recipes_table
    from ..trainer.workflow.reading import api_graph, read_workflow

    if arguments.recipes:
        print(recipes_table())
        return 0
    if arguments.workflow is None:
        raise ValueError("no workflow. Fix: otca memory WORKFLOW, or otca memory --recipes")
    comfyui = Path(arguments.comfyui) if arguments.comfyui else None
    if comfyui and not (comfyui / "models").is_dir():
        raise ValueError(f"--comfyui {comfyui} has no folder `models`. Fix: give the folder that ComfyUI is in")
    options.user_names(comfyui and comfyui / "models")
    case, files = needs.read(api_graph(read_workflow(arguments.workflow)), comfyui)
    found = case.needs
    print(f"{case.model.title}, {needs.in_words(case.size)}, LoRA of rank {case.rank}: an estimate, not measured")
    for line in files:
        print(f"  {line}")
    for name, size in found.parts.items():
        print(f"{name:14}{size / GB:7.1f} GB")
    print(f"{'needs':14}{found.total / GB:7.1f} GB, in {found.phase}; the parts are not all there at once")
    has = arguments.gpu_gb * GB if arguments.gpu_gb else _memory_here()
    print(f"{'has':14}{has / GB:7.1f} GB" if has else f"{'has':14} no GPU is here; --gpu-gb N compares with one")
    if has and found.total > has:
        print("It does not fit. What needs less:")
        for words, changed in case.changes().items():
            fits = ", which fits" if changed.needs.total <= has else ""
            print(f"  {words}: {changed.needs.total / GB:.1f} GB{fits}")
    return 0


def _memory_here() -> int:
    """Bytes of the GPU of this machine; 0 where there is none."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0
