"""The command lines that train an exported graph elsewhere: on one GPU, on eight, on several machines."""

from __future__ import annotations

import shlex
from typing import Any

from ..host.text import quoted, shortened
from ..trainer.workflow.foreign import Needs

COMFYUI_REPOSITORY = "https://github.com/comfyanonymous/ComfyUI"
REPOSITORY = "https://github.com/comfyui-otca/ComfyUI-OTCA"
CLONE = "ComfyUI-OTCA"
COMFYUI = "ComfyUI"  # its folder, lying where the commands are typed


def commands(filename: str, name: str, needs: Needs | None = None) -> list[dict[str, Any]]:
    """What to type on the machine that trains: [{title, lines, note?}].

    Args:
        filename: of the downloaded graph, lying where the commands are typed.
        name: of the run, whose folder becomes runs/<name>.
        needs: what ComfyUI has to bring there.
    """
    comfyui = (
        ["--comfyui", COMFYUI, *(part for pack in needs.packs for part in ("--custom-nodes", pack))] if needs else []
    )
    train = shlex.join(["train", filename, "--output", f"runs/{name}", *comfyui])
    check = shlex.join(["validate", filename, *comfyui])
    return [
        *([_with_comfyui(needs)] if needs else []),
        {
            "title": "Once on that machine",
            "lines": [
                f"git clone {REPOSITORY} {CLONE}",
                f"pip install -r {CLONE}/requirements.txt",
                "export OTCA_MODELS=/path/to/models",
            ],
            "note": "OTCA_MODELS: the folders, separated by colons, that hold the models' own folders under the names that "
            "the graph gives them. Nothing is downloaded. A file of prompts must lie where the command is typed.",
        },
        {"title": "Check it", "lines": [f"python {CLONE} {check}"]},
        {
            "title": "One GPU",
            "lines": [f"python {CLONE} {train}"],
            "note": "Stop it by Ctrl-C, and continue by the same command with --resume.",
        },
        {"title": "Eight GPUs of one machine", "lines": [f"python {CLONE} {train} --gpus 8"]},
        {
            "title": "Several machines, here two of eight GPUs",
            "lines": [
                "# on every machine, with its own MACHINE_RANK, 0 or 1; MAIN_ADDRESS is that of machine 0",
                "accelerate launch --multi_gpu --num_machines 2 --num_processes 16 --machine_rank $MACHINE_RANK "
                f"--main_process_ip $MAIN_ADDRESS --main_process_port 29500 {CLONE}/__main__.py {train}",
            ],
            "note": "The run's folder, the models and the prompts must be the same ones on all machines, as on a shared disk.",
        },
    ]


def _with_comfyui(needs: Needs) -> dict[str, Any]:
    """What a graph that holds ComfyUI's nodes takes with it."""
    # quoted, since a stranger's name may hold the end of a line, and what follows would be a command
    files = [f"# {COMFYUI}/models/{folder}/: {quoted(name)}" for folder, name in needs.files]
    packs = [f"# {COMFYUI}/custom_nodes/{pack}" for pack in needs.packs]
    return {
        "title": "ComfyUI there",
        "lines": [
            f"git clone {COMFYUI_REPOSITORY} {COMFYUI}",
            f"pip install -r {COMFYUI}/requirements.txt",
            *files,
            *packs,
        ],
        "note": f"This workflow needs ComfyUI's own nodes ({shortened(', '.join(needs.classes), 300)}). Put the listed files "
        "and packs there. `python` is the one that runs that ComfyUI. No server is started, and nothing is downloaded.",
    }
