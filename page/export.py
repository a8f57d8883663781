"""Export: the command lines for one GPU, eight and several machines, and the bundle, which is written into
ComfyUI's output folder (see `bundle/`).
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from ..host import files
from ..host.errors import Expected
from ..host.paths import BUNDLES
from ..host.text import plain_name, quoted, shortened
from ..trainer.checks import preflight
from ..trainer.pictures.media import PICTURES
from ..trainer.workflow.foreign import Needs
from ..trainer.workflow.problem import WorkflowError, errors
from .jobs import Jobs
from .requests import Field, Refused, flag, json_object

COMFYUI_REPOSITORY = "https://github.com/comfyanonymous/ComfyUI"
REPOSITORY = "https://github.com/comfyui-otca/ComfyUI-OTCA"
CLONE = "ComfyUI-OTCA"
COMFYUI = "ComfyUI"  # its folder, lying where the commands are typed


def commands(filename: str, name: str, needs: Needs | None = None, wanted: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The commands for the machine that trains: [{title, lines, note?}].

    Args:
        filename: of the downloaded graph, lying where the commands are typed.
        name: of the run, whose folder becomes runs/<name>.
        needs: what ComfyUI has to bring there.
        wanted: extras that its nodes need (host/extras.py).
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
                f'pip install -e "{CLONE}[{",".join(sorted({"diffusers", "plots", *wanted}))}]"',
                "export OTCA_MODELS=/path/to/models",
            ],
            "note": "Load Flow Model runs by diffusers, which is among these; an embedded model also by ComfyUI, --comfyui PATH. "
            "OTCA_MODELS: the folders, separated by colons, that hold the models' own folders under the names that the graph "
            "gives them. Nothing is downloaded. A file of prompts must lie where the command is typed.",
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
    """The options that a graph with ComfyUI's nodes takes along."""
    # quoted, since a stranger's name may hold the end of a line, and what follows would be a command
    files = [f"# {COMFYUI}/models/{folder}/: {quoted(name)}" for folder, name in needs.files]
    return {
        "title": "ComfyUI there",
        "lines": [
            f"git clone {COMFYUI_REPOSITORY} {COMFYUI}",
            f"pip install -r {COMFYUI}/requirements.txt",
            *files,
            *(f"# {COMFYUI}/custom_nodes/{pack}" for pack in needs.packs),
        ],
        "note": f"This workflow needs ComfyUI's own nodes ({shortened(', '.join(needs.classes), 300)}). Put the listed files "
        "and packs there. `python` is the one that runs that ComfyUI. No server is started, and nothing is downloaded.",
    }


ZIP = ".zip"
MOST_OF_ONE_NAME = 100
ID_LENGTH = 64  # of what opinions know a picture by
BUNDLE = {
    "prompt": Field(json_object, required=True),
    "name": Field(plain_name),
    "hashes": Field(flag, default=True),
    "with_pictures": Field(flag, default=False),
}


@dataclass(frozen=True)
class Bundles:
    """`output`: ComfyUI's output folder, which may move while it runs."""

    jobs: Jobs
    output: Callable[[], Path]
    _making: threading.Lock = field(default_factory=threading.Lock)
    _hashed: dict[str, int] = field(default_factory=lambda: {"read": 0, "total": 0})  # bytes, of the one being written

    def make(self, prompt: dict, name: str | None, hashes: bool, with_pictures: bool) -> dict[str, Any]:
        """Writes a bundle. Raises Refused: 400 with what is wrong, 409 while another one is being written; or, with their names,
        where it would contain pictures, and `with_pictures` does not say that the user has seen that."""
        from ..bundle import contents, making  # here, since it is a quarter of what the pack takes to import

        if not self._making.acquire(blocking=False):
            raise Refused(409, "another bundle is being written. Fix: wait until it is there")
        try:
            workflow = contents.begun_from_runs(self.jobs.read(prompt))
            if problems := errors(preflight.problems(workflow)):
                raise WorkflowError(problems)
            held = contents.collect(workflow, name)
            # Pictures of opinions are named by where they are here, since in the bundle they have no names of their own.
            others = [
                file for file in held.copied if file.lower().endswith(PICTURES) and len(Path(file).stem) != ID_LENGTH
            ]
            if not with_pictures and (named := [*held.pictures, *sorted(others)]):
                raise Refused(
                    409,
                    f"the bundle would contain {len(named)} of your pictures. Fix: look at their names, and confirm them",
                    pictures=named,
                )
            target = self._free(held.run_name)
            self._hashed["total"] = making.bytes_to_hash(held) if hashes else 0
            described = making.make(held, target, with_hashes=hashes, with_pictures=with_pictures, progress=self._count)
        except Expected:
            raise
        except (ValueError, OSError) as error:
            raise Refused(400, str(error)) from error
        finally:
            self._hashed.update(read=0, total=0)
            self._making.release()
        return {
            "name": target.name,
            "path": str(target),
            "bytes": target.stat().st_size,
            **making.report(held, described),
        }

    def progress(self) -> dict[str, int]:
        """Bytes of the models that were read for their hashes; a total of 0 if none are being read."""
        return self._hashed

    def _count(self, read: int) -> None:
        self._hashed["read"] += read

    def download(self, name: str) -> web.StreamResponse:
        try:
            path = self.output() / BUNDLES / plain_name(name)
        except ValueError as error:
            raise Refused(400, f"name = {name!r} {error}") from error
        if path.suffix != ZIP or not files.is_plain_file(path):
            raise Refused(404, f"bundle {name!r} is missing. Fix: make it again")
        # The name was a plain one when the file was made, and a header takes no quotes.
        shown = "".join(sign if sign.isascii() and sign not in '"\\' else "_" for sign in name)
        headers = {"Content-Disposition": f'attachment; filename="{shown}"', "Content-Type": "application/zip"}
        return web.FileResponse(path, headers=headers)

    def _free(self, name: str) -> Path:
        """A name that no bundle has: that of the run, if need be with a number."""
        folder = self.output() / BUNDLES
        for number in range(1, MOST_OF_ONE_NAME + 1):
            path = folder / f"{name}{'' if number == 1 else f'_{number}'}{ZIP}"
            if not files.present(path):
                return path
        raise ValueError(f"{folder} holds {MOST_OF_ONE_NAME} bundles of {name}. Fix: delete some")
