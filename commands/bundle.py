"""`otca bundle`: writes all that a training elsewhere needs, or checks it there."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from . import options
from .options import COMFYUI, PERMISSIONS, SET, arg, command, count, flag, many


@command(
    "bundle",
    "write, or check, all that a training elsewhere needs",
    arg("workflow", "exported by ComfyUI, a .png it saved, or a run", type=Path, nargs="?"),
    SET,
    arg("--output", "what is written", type=options.folder, metavar="FOLDER|FILE.zip"),
    arg("--run-name", "of the run there, instead of the workflow's own", metavar="NAME"),
    count("--gpus", "check the workflow, or with --check the machine, for N processes", 1),
    arg("--check", "check that bundle, the models and this machine", type=options.folder, metavar="FOLDER"),
    many("--models", "PATH", "with --check: a folder of models, beside $OTCA_MODELS", type=options.folder),
    flag("--with-pictures", "also the pictures of My Pictures and what was said of them, which are listed otherwise"),
    flag("--no-hash", "only the sizes of models, which takes no time"),
    *(COMFYUI, PERMISSIONS),
)
def bundle(arguments: argparse.Namespace) -> int:
    """Writes a folder or a zip with the workflow, its files, the pack, the exact packages, and scripts that train it elsewhere:
    by a shell, Docker, SLURM or SkyPilot. Models are not copied: their sizes and SHA-256 are written down, and --check compares
    them there, with exit code 1 if something is missing or is another one. Nothing is uploaded.
    """
    if arguments.check is not None:
        return _check(arguments)
    if arguments.workflow is None or arguments.output is None:
        raise ValueError(
            "no workflow or no --output. Fix: otca bundle WORKFLOW --output FOLDER, or otca bundle --check FOLDER"
        )
    from ..bundle import contents, making
    from ..trainer.checks import preflight

    options.quiet_libraries()
    making.check_target(arguments.output)
    workflow = contents.begun_from_runs(options.load(arguments))
    if options.print_problems(preflight.problems(workflow, arguments.gpus)):
        return options.EXIT_BAD_INPUT
    held = contents.collect(workflow, arguments.run_name)
    total = 0 if arguments.no_hash else making.bytes_to_hash(held)
    with _bar(total) as progress:
        described = making.make(
            held,
            arguments.output,
            with_hashes=not arguments.no_hash,
            with_pictures=arguments.with_pictures,
            progress=progress,
            run=arguments.workflow if arguments.workflow.is_dir() else None,
        )
    shown = making.report(held, described)
    print(
        f"{arguments.output}: {len(described.files)} files, and {len(described.models)} model files that it expects there"
    )
    for line in (*shown["estimate"], *shown["notes"]):
        print(f"  {line}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    try:
        from ..bundle import checking
    except ModuleNotFoundError as error:
        raise ValueError(
            f"package {error.name} is missing, and the check itself needs it. Fix: bash run.sh --venv, or pip install -r "
            "requirements.txt"
        ) from error

    findings = []
    try:
        options.know_folders(arguments)
    except ValueError as error:  # all else is worth knowing, too
        findings.append(checking.Finding("error", str(error)))
    with_hashes = not arguments.no_hash
    with _bar(checking.bytes_to_hash(arguments.check) if with_hashes else 0) as progress:
        findings += checking.check(
            arguments.check, arguments.models, with_hashes=with_hashes, processes=arguments.gpus, progress=progress
        )
    for finding in findings:
        print(finding)
    return int(any(finding.severity == "error" for finding in findings))


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Callable[[int], object]]:
    """Shows on the terminal how many bytes have been read, if there are some to read."""
    if not total:
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="B", unit_scale=True, desc="SHA-256 of models", file=sys.stderr) as bar:
        yield bar.update
