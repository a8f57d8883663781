"""All that is to be measured on a GPU, in at most 25 minutes on one of any size: bench/GPU.md and bench/gpu.json.

    python -m comfyui_otca.bench.gpu [--device cuda:0] [--minutes 25] [--only PART …] [--again] [--parts DIR] [--report DIR]
    python -m comfyui_otca.bench.gpu --device cpu --tiny        a rehearsal in small, whose figures mean nothing

Each part is a process with a time limit of its own, and leaves a JSON file in bench/gpu/results/. Parts that are done are passed
over the next time: what was stopped goes on, what failed is tried again. `--again` begins from nothing. Nothing is downloaded:
weights are random, in the shapes of the published models.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from comfyui_otca.commands.options import quiet_libraries
from comfyui_otca.host import devices
from comfyui_otca.tests.device import pretend

from . import report
from .measures import PARTS, Skipped
from .shapes import Place

HERE = Path(__file__).resolve().parent
LEAST = 20  # seconds that must be left to begin another part


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true", help="small shapes: a rehearsal, on a CPU too")
    parser.add_argument("--minutes", type=float, default=25, help="of all parts together")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--again", action="store_true", help="forget the parts that are done")
    parser.add_argument("--parts", type=Path, default=HERE / "results", help="folder of the parts' files")
    parser.add_argument("--report", type=Path, default=HERE.parent, help="folder of GPU.md and gpu.json")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # the process of one part
    options = parser.parse_args()
    if options.here:
        answer(options.only[0], Place(options.device, options.tiny, options.parts))
        return 0
    options.parts.mkdir(parents=True, exist_ok=True)
    if options.again:
        for file in options.parts.glob("*.json"):
            file.unlink()
    ends = time.monotonic() + 60 * options.minutes
    for name in options.only or PARTS:
        file = options.parts / f"{name}.json"
        if is_done(file, options.device, options.tiny):
            print(f"{name}: done before", flush=True)
            continue
        left = ends - time.monotonic()
        if left < LEAST:
            print(f"{name}: no time is left for it; the same command goes on here", flush=True)
            continue
        print(f"{name}: … ", end="", flush=True)
        content = run(name, options.device, options.tiny, min(left, PARTS[name].seconds), options.parts)
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        print(f"{content['state']}, {content['seconds']:.0f} s {content.get('reason', '')}".rstrip(), flush=True)
    parts = report.write(options.parts, options.report)
    print(options.report / report.PAGE)
    return int(any(part["state"] == "failed" for part in parts.values()))


def is_done(file: Path, device: str, tiny: bool) -> bool:
    """Whether a part has its result, or its reason to be left out, of this device and size."""
    if not file.is_file():
        return False
    content = json.loads(file.read_text(encoding="utf-8"))
    return content["state"] != "failed" and (content["device"], content["tiny"]) == (device, tiny)


def run(name: str, device: str, tiny: bool, seconds: float, folder: Path) -> dict:
    """The outcome of a part's process: its result, or how it failed; its output is beside its file."""
    command = [sys.executable, "-m", "comfyui_otca.bench.gpu", "--here", "--only", name, "--device", device]
    command += ["--parts", str(folder), *(["--tiny"] if tiny else [])]
    content: dict = {"part": name, "device": device, "tiny": tiny, "state": "failed"}
    began = time.monotonic()
    with (folder / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # whatever it has started ends with it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # pyright: ignore[reportAttributeAccessIssue] not on Windows
            process.wait()
    content["seconds"] = round(time.monotonic() - began, 1)
    file = folder / f"{name}.answer"
    if code == 0 and file.is_file():
        content |= json.loads(file.read_text(encoding="utf-8"))
    else:
        lines = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it said nothing"
        content["reason"] = f"stopped after {seconds:.0f} s" if code is None else last[:300]
    file.unlink(missing_ok=True)
    return content


def answer(name: str, place: Place) -> None:
    """Measures one part in this process, and leaves what came out for the parent."""
    quiet_libraries()
    devices.choose(place.device)
    with contextlib.ExitStack() as active:
        if place.device.startswith(pretend.NAME):
            pretend.register()
            active.enter_context(pretend.active())
        try:
            result = {"state": "done", "result": PARTS[name].measure(place)}
        except Skipped as reason:
            result = {"state": "skipped", "reason": str(reason)}
    (place.folder / f"{name}.answer").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
