"""What bench/gpu.sh runs: the parts that are not done yet, each in a process of its own, and then the report."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import report
from .parts import PARTS

HERE = Path(__file__).resolve().parent
LEAST = 20  # seconds that must be left to begin another part


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/gpu.sh", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true", help="small shapes: a rehearsal, on a CPU too")
    parser.add_argument("--minutes", type=float, default=25, help="of all parts together")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--again", action="store_true", help="forget the parts that are done")
    parser.add_argument("--parts", type=Path, default=HERE / "results", help="folder of the parts' files")
    parser.add_argument("--report", type=Path, default=HERE.parent, help="folder of GPU.md and gpu.json")
    options = parser.parse_args()
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
    report.write(options.parts, options.report)
    print(options.report / report.PAGE)
    return 0 if all(part["state"] != "failed" for part in report.read(options.parts).values()) else 1


def is_done(file: Path, device: str, tiny: bool) -> bool:
    """Whether a part has its result, or its reason to be left out, of this device and size."""
    if not file.is_file():
        return False
    content = json.loads(file.read_text(encoding="utf-8"))
    return content["state"] != "failed" and (content["device"], content["tiny"]) == (device, tiny)


def run(name: str, device: str, tiny: bool, seconds: float, folder: Path) -> dict:
    """What a part's process came to: its result, or how it failed; its output is beside its file."""
    command = [sys.executable, "-m", "comfyui_otca.bench.gpu.one", name, "--device", device, "--parts", str(folder)]
    content: dict = {"part": name, "device": device, "tiny": tiny, "state": "failed"}
    began = time.monotonic()
    with (folder / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*command, *(["--tiny"] if tiny else [])], stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # whatever it has started ends with it
            _end(process)
    content["seconds"] = round(time.monotonic() - began, 1)
    answer = folder / f"{name}.answer"
    if code == 0 and answer.is_file():
        content |= json.loads(answer.read_text(encoding="utf-8"))
    else:
        lines = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it said nothing"
        content["reason"] = f"stopped after {seconds:.0f} s" if code is None else last[:300]
    answer.unlink(missing_ok=True)
    return content


def _end(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
