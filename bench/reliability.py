"""Damage that a training survives: damaged files of its folder, and kills at random moments.

    python -m comfyui_otca.bench.reliability damages [--jobs 2] [--files NAME …]
    python -m comfyui_otca.bench.reliability kills [--kills 200] [--processes 2] [--iterations 12]

`damages` damages every file of a run, one at a time and in 15 ways, and resumes the run by the real command line. It prints the
table of bench/RESULTS.md: for every file and damage whether the run was resumed, or refused in one line that names the file and
the fix. Anything else, such as a traceback, is listed by itself and makes the exit code 1.

`kills` trains a small workflow in several processes, sends SIGKILL to one of them after a random time (while it loads, samples,
scores, updates, evaluates or writes a checkpoint), waits for the others to end and resumes; a process that has not ended by
itself after a few seconds gets SIGTERM, as torchrun's agent sends it at once. When a training is finished, its metrics and its
adapter are compared, bit for bit, with those of an undisturbed one, and the next begins. It prints what the killed process was
doing, how long the others took to end, and what was lost.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing.connection
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .common import EVALUATION, graph, table

VICTIM, THEIRS = "victim", b"a file of another program\n"

# Small enough for a training in a second, and with all that a run can have.
SETTINGS = {
    "OTCA_LoadFlowModel": {"lora_rank": 1, "lora_alpha": 1.0, "device": "cpu"},
    "OTCA_PromptDataset": {"prompts_per_iteration": 1},
    "OTCA_SDESampler": {"group_size": 2, "steps": 2},
    "OTCA_GRPOStep": {"ema_decay": 0.5},
    "OTCA_TrainingRun": {
        "iterations": 2,
        "checkpoint_every": 1,
        "evaluate_every": 1,
        "evaluation_prompts": "a red circle",
        "evaluation_seeds": 2,
        "best_metric": "evaluation/sum",
    },
}


# --- damages ----------------------------------------------------------------------------------------------------------


def _text(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


def _cut(path: Path) -> None:
    content = path.read_bytes()
    kept = content[: len(content) // 2]
    # Not where a line ends: a log without its last line is a whole one.
    while kept and content[len(kept) - 1 : len(kept) + 1].count(b"\n"):
        kept = kept[:-1]
    path.write_bytes(kept)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(255 - byte for byte in content[middle : middle + 8])
    path.write_bytes(bytes(content))


def _wrong_types(path: Path) -> None:
    """Every value of the first object is a list."""
    first, _, rest = path.read_bytes().partition(b"\n") if path.suffix == ".jsonl" else (path.read_bytes(), b"", b"")
    try:
        value = json.loads(first)
        content = json.dumps({key: [[]] for key in value}).encode()
    except ValueError:
        content = b'{"iteration": [[]]}'
    path.write_bytes(content + b"\n" + rest)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link_out(path: Path) -> None:
    """To a file of another program, beside the run, which `outcome` looks at afterwards."""
    run = next(parent for parent in path.parents if (parent / "checkpoints").is_dir())
    path.unlink()
    run.with_name(VICTIM).write_bytes(THEIRS)
    path.symlink_to(run.with_name(VICTIM))


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)  # pyright: ignore[reportAttributeAccessIssue] not on Windows


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": _text(b""),
    "cut in half": _cut,
    "eight bytes flipped": _flip,
    "zeros at its end": lambda path: path.write_bytes(path.read_bytes()[:-20] + bytes(20)),
    "a list": _text(b"[1, 2]\n"),
    "an empty object": _text(b"{}\n"),
    "values of wrong types": _wrong_types,
    "NaN": _text(b'{"iteration": NaN, "status": "running"}\n'),
    "2,000 levels deep": _text(b'{"a":' * 2000 + b"1" + b"}" * 2000 + b"\n"),
    "bytes that are not text": _text(b"\xff\xfe\x00\x80" * 8),
    "missing": Path.unlink,
    "a folder": _folder,
    "a link to another file": _link_out,
    "a link to itself": _loop,
    "a pipe": _pipe,
}


def files_of(run: Path) -> list[str]:
    """All that the trainer wrote and may read again; of what comes once a checkpoint only the last one's."""
    last = max(path.name for path in (run / "checkpoints").glob("[0-9]*"))
    files = [path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file()]
    kept = [path for path in files if path.parts[0] not in ("tensorboard", "checkpoints")]
    kept += [path for path in files if path.parts[:2] == ("checkpoints", last)]
    pictures = [path for path in kept if path.parts[0] == "samples" and path.suffix == ".png"]
    return [str(path) for path in kept if path not in pictures[1:]]


# --- trying -----------------------------------------------------------------------------------------------------------


def otca(*arguments: object, seconds: int = 300) -> tuple[int | str, str]:
    """Runs the command line; returns its exit code and what it printed. "traceback" or "hangs" stand for any other end."""
    command = [sys.executable, "-m", "comfyui_otca", *map(str, arguments)]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=seconds,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired as error:
        return "hangs", str(error.stdout)
    return "traceback" if "Traceback" in done.stdout else done.returncode, done.stdout


def make_run(folder: Path) -> Path:
    """A finished training of two iterations, with a checkpoint after each."""
    (folder / "given.json").write_text(json.dumps(graph(SETTINGS)), encoding="utf-8")
    code, printed = otca("train", folder / "given.json", "--output", folder / "run", "--seed", 1)
    if code:
        raise RuntimeError(printed)
    return folder / "run"


def outcome(run: Path, name: str, damage: str, scratch: Path) -> tuple[str, str]:
    """The outcome of resuming a copy of the run in which one file is damaged; and what was printed."""
    folder = scratch / "run"
    shutil.copytree(run, folder)
    DAMAGES[damage](folder / name)
    code, printed = otca("train", folder, "--resume", "--iterations", 3)
    named = _named(printed, folder, name)
    victim = folder.with_name(VICTIM)
    if victim.exists() and victim.read_bytes() != THEIRS:
        return "WRONG: wrote through a link", printed
    if code == 0:
        return ("resumed, said" if named else "resumed"), printed
    lines = [line for line in printed.splitlines() if line.startswith(("otca: ", "error: "))]
    refused = len(lines) == 1 and str(folder) in lines[0] and "Fix: " in lines[0] and named
    return ("refused" if code in (1, 2) and refused else f"WRONG: {code}"), printed


def _named(printed: str, folder: Path, name: str) -> bool:
    """Whether a warning or an error names the file, or the folder that it makes useless."""
    lines = [line for line in printed.splitlines() if line.startswith(("WARNING: ", "ERROR: ", "otca: ", "error: "))]
    paths = {folder / name, (folder / name).parent} - {folder}
    return any(re.search(rf"{re.escape(str(path))}(?![\w./])", line) for line in lines for path in paths)


def _one(task: tuple[Path, str, str]) -> tuple[str, str, str, str]:
    run, name, damage = task
    with tempfile.TemporaryDirectory() as scratch:
        return (name, damage, *outcome(run, name, damage, Path(scratch)))


LETTERS = {"resumed, said": "S", "resumed": "·", "refused": "R"}  # of the table; anything else is WRONG


def damage_table(results: list[tuple[str, str, str, str]]) -> str:
    """Markdown: a row a file, a column a damage."""
    damages = list(dict.fromkeys(damage for _, damage, _, _ in results))
    cells = {(name, damage): LETTERS.get(kind, "WRONG") for name, damage, kind, _ in results}
    names = dict.fromkeys(name for name, _, _, _ in results)
    rows = [[f"`{name}`", *(cells[name, damage] for damage in damages)] for name in names]
    count = Counter(cells.values())
    meaning = (("S", "resumed and said so"), ("·", "resumed, had no need of it"), ("R", "refused in one line"))
    return (
        table(["file", *damages], rows) + "\n\n" + "; ".join(f"{sign} {text}: {count[sign]}" for sign, text in meaning)
    )


def damages(options: argparse.Namespace) -> int:
    results = []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        run = make_run(Path(scratch))
        tasks = [(run, name, damage) for name in options.files or files_of(run) for damage in DAMAGES]
        for result in pool.map(_one, tasks):
            results.append(result)
            if result[2].startswith("WRONG"):
                print(f"{result[0]}, {result[1]}: {result[2]}\n{result[3][-1500:]}\n", file=sys.stderr, flush=True)
    wrong = sum(kind.startswith("WRONG") for _, _, kind, _ in results)
    print(
        f"{len(results)} damages of {len(results) // len(DAMAGES)} files, {wrong} neither resumed nor refused in a line"
    )
    print(damage_table(results))
    return 1 if wrong else 0


# --- kills ------------------------------------------------------------------------------------------------------------

KILLED = {
    "OTCA_LoadFlowModel": {"lora_rank": 4},
    "OTCA_PromptDataset": {"prompts_per_iteration": 2},
    "OTCA_SDESampler": {"group_size": 4, "steps": 4},
    "OTCA_GRPOStep": {"learning_rate": 1e-3, "ema_decay": 0.5},
    "OTCA_TrainingRun": {
        **{"checkpoint_every": 1, "evaluate_every": 3, "evaluation_prompts": EVALUATION, "evaluation_seeds": 1}
    },
}
GRACE, PATIENCE = 5, 60  # seconds: until the others get SIGTERM, and until they count as hanging


def work(folder: Path, iterations: int) -> int:
    from ..host import devices
    from ..nodes import NODE_CLASS_MAPPINGS
    from ..tests import training
    from ..trainer.run import record
    from ..trainer.workflow.running import Workflow

    devices.choose("cpu")
    record.open_runs.clear()
    workflow = Workflow(graph(KILLED), NODE_CLASS_MAPPINGS)
    workflow.set("TrainingRun.iterations", iterations)
    return training.train(workflow, folder, resume=(folder / "workflow.json").is_file())


def attempt(folder: Path, options: argparse.Namespace, after: float | None, victim: int) -> tuple[bool, str, float]:
    """Trains until the end or the kill. Returns whether it was finished, what the victim was at, and how long the others took."""
    from ..tests.processes import start

    processes, _ = start(options.processes, work, folder, options.iterations)
    sentinels = [process.sentinel for process in processes]
    if multiprocessing.connection.wait([sentinels[victim]], after):
        multiprocessing.connection.wait(sentinels, PATIENCE)
        for process in processes:
            process.join()
        assert all(process.exitcode == 0 for process in processes), "a process failed that was not killed"
        return True, "", 0.0
    doing = stage(folder)
    processes[victim].kill()
    killed = time.monotonic()
    for process in processes:
        process.join(max(0.0, killed + GRACE - time.monotonic()))
    for process in processes:
        process.terminate()
        process.join(PATIENCE)
        if process.is_alive():
            sys.exit(f"process {process.pid} was still there {PATIENCE} s after another was killed")
    return False, doing, time.monotonic() - killed


def stage(folder: Path) -> str:
    """The stage of a run, by its folder."""
    if not (folder / "metrics.jsonl").is_file():
        return "loading"
    if list((folder / "checkpoints").glob(".[0-9]*")):
        return "writing a checkpoint"
    saved = sorted((folder / "checkpoints").glob("[0-9]*"))
    lines = len((folder / "metrics.jsonl").read_bytes().splitlines())
    return "evaluating or saving" if lines > (int(saved[-1].name) if saved else 0) else "loading, sampling or updating"


def figures(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("seconds", "samples_per"))} for row in rows]


def kills_of(options: argparse.Namespace) -> int:
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    base = Path(tempfile.mkdtemp(prefix="otca-kills-"))
    began = time.monotonic()
    assert attempt(base / "undisturbed", options, None, 0)[0]
    whole = time.monotonic() - began
    expected, adapter = figures(base / "undisturbed"), load_file(base / "undisturbed" / "lora.safetensors")
    stages: dict[str, list[float]] = defaultdict(list)
    kills = trainings = 0
    while kills < options.kills:
        folder = base / f"training-{trainings}"
        done = False
        while not done:
            after = chance.uniform(0, whole / 2) if kills < options.kills else None
            done, doing, seconds = attempt(folder, options, after, chance.randrange(options.processes))
            if not done:
                kills += 1
                stages[doing].append(seconds)
                print(f"kill {kills}: {doing}, the others ended after {seconds:.1f} s", file=sys.stderr, flush=True)
        trainings += 1
        assert figures(folder) == expected, f"{folder}: other figures than those of the undisturbed training"
        saved = load_file(folder / "lora.safetensors")
        assert all(torch.equal(saved[name], value) for name, value in adapter.items()), f"{folder}: another adapter"
        shutil.rmtree(folder)
    rows = [
        (doing, len(s), f"{statistics.median(s):.1f} s, {max(s):.1f} s", "nothing")
        for doing, s in sorted(stages.items())
    ]
    print(table(("killed while", "kills", "the others ended after: median, most", "lost"), rows))
    print(
        f"\n{kills} kills in {trainings} trainings of {options.iterations} iterations by {options.processes} processes, each "
        "equal to the undisturbed one bit for bit"
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    damaged = parts.add_parser("damages")
    damaged.add_argument("--jobs", type=int, default=os.cpu_count())
    damaged.add_argument("--files", nargs="*", help="only these")
    damaged.set_defaults(work=damages)
    killed = parts.add_parser("kills")
    killed.add_argument("--kills", type=int, default=200)
    killed.add_argument("--processes", type=int, default=2)
    killed.add_argument("--iterations", type=int, default=12)
    killed.add_argument("--seed", type=int, default=0)
    killed.set_defaults(work=kills_of)
    options = parser.parse_args()
    return options.work(options)


if __name__ == "__main__":
    sys.exit(main())
