"""The command lines that train an exported graph elsewhere: on one GPU, on eight, on several machines."""

from __future__ import annotations

import shlex
from typing import Any

REPOSITORY = "https://github.com/comfyui-otca/ComfyUI-OTCA"
CLONE = "ComfyUI-OTCA"


def commands(filename: str, name: str) -> list[dict[str, Any]]:
    """What to type on the machine that trains: [{title, lines, note?}].

    Args:
        filename: of the downloaded graph, lying where the commands are typed.
        name: of the run, whose folder becomes runs/<name>.
    """
    train = shlex.join(["train", filename, "--output", f"runs/{name}"])
    return [
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
        {"title": "Check it", "lines": [f"python {CLONE} validate {shlex.quote(filename)}"]},
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
