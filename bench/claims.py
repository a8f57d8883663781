"""Pairs of `otca train` that start at one moment in one folder: exactly one trains, the other is refused, nothing is elsewhere.

Every process is a real training of the embedded model with one small iteration, forked from one that has loaded torch.

    python -m comfyui_otca.bench.claims --pairs 200 --namespaces 20
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from .damages import graph, log_to, prepare

NEW_MOUNTS, NEW_USERS, NEW_PIDS = 0x00020000, 0x10000000, 0x20000000
PRIVATE_AND_ALL_BELOW = 1 << 18 | 1 << 14


def start(folder: Path, workflow: Path, moment: float, apart: bool) -> int:
    """A forked `otca train` that begins at that moment; `apart`: as process 1 of its own PID namespace, as in a container."""
    child = os.fork()
    if child:
        return child
    code = 98
    with open(workflow.with_name(f"{os.getpid()}.log"), "w", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
        sys.stdout = sys.stderr = log
        log_to(log)
        try:
            if apart:
                _leave_for_a_namespace()
            code = _train(folder, workflow, moment)
        finally:
            log.flush()
            os._exit(code)


def _train(folder: Path, workflow: Path, moment: float) -> int:
    from ..__main__ import main

    while time.time() < moment:
        pass
    return main(["train", str(workflow), "--output", str(folder)])


def _leave_for_a_namespace() -> None:
    """What `unshare --user --map-root-user --pid --fork --mount-proc` does. Raises OSError where that is not permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(NEW_USERS | NEW_PIDS | NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if libc.mount(b"none", b"/", None, PRIVATE_AND_ALL_BELOW, None) or libc.mount(b"proc", b"/proc", b"proc", 0, None):
        raise OSError(ctypes.get_errno(), "mount")


def pair(scratch: Path, apart: bool) -> str:
    """What came of two starts: "ok, refused by the claim", "ok, refused since it was trained", or what went wrong."""
    from ..trainer.run.folder import read_lines

    workflow, folder = scratch / "given.json", scratch / "runs" / "run"
    workflow.write_text(json.dumps(graph(iterations=1, evaluate_every=100)), encoding="utf-8")
    folder.parent.mkdir()
    moment = time.time() + 0.3
    children = [start(folder, workflow, moment, apart) for _ in range(2)]
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    said = "\n".join(log.read_text(encoding="utf-8") for log in scratch.glob("*.log"))
    refusals = [line for line in said.splitlines() if line.startswith("otca: ")]
    right = codes == [0, 2] and len(refusals) == 1 and refusals[0].count("Fix: ") == 1 and "Traceback" not in said
    right = right and said.count("done after ") == 1 and os.listdir(folder.parent) == ["run"]
    if not right or len(read_lines(folder / "metrics.jsonl")) != 1:
        return f"WRONG {codes} {sorted(os.listdir(folder.parent))}\n{said[-3000:]}"
    return "refused by the claim" if " is in use: " in refusals[0] else f"refused otherwise: {refusals[0]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument(
        "--namespaces", type=int, default=20, help="pairs of which each process has a PID namespace of its own"
    )
    options = parser.parse_args()
    prepare()
    wrong, began = 0, time.monotonic()
    for count, apart, name in (
        (options.pairs, False, "in one namespace"),
        (options.namespaces, True, "each in a PID namespace of its own"),
    ):
        outcomes: Counter[str] = Counter()
        for _ in range(count):
            with tempfile.TemporaryDirectory() as scratch:
                outcomes[pair(Path(scratch), apart)] += 1
        wrong += sum(number for outcome, number in outcomes.items() if not outcome.startswith("refused"))
        print(
            f"{count} pairs {name}: exactly one trained in {count - sum(v for k, v in outcomes.items() if k[:5] == 'WRONG')}"
        )
        for outcome, number in outcomes.most_common():
            print(f"  {number} x {outcome}", flush=True)
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
