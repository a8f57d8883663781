"""Seconds of one training iteration against its floor, for a tiny checkpoint of every family.

    python bench/families.py [--rounds N] [--threads N]

Each family runs `bench/iteration.py` in a process of its own, on OTCA's workflow with that checkpoint in place of
shapes-flux. The checkpoints are so small that what surrounds the model calls weighs far more than it does on real ones:
the ratio is an upper bound.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from comfyui_otca.tests.tiny import models as tiny


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    common = ["--rounds", str(options.rounds)] + (["--threads", str(options.threads)] if options.threads else [])
    with tempfile.TemporaryDirectory() as folder:
        for family in ("shapes-flux", *tiny.SIZES):
            print(f"\n## {family}\n", flush=True)
            command = [sys.executable, Path(__file__).with_name("iteration.py"), *common]
            command += [argument for change in changes(family, Path(folder)) for argument in ("--set", change)]
            allowed = {**os.environ, "OTCA_ALLOW_FOLDERS": folder}  # else a workflow may not name it
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL, env=allowed)


def changes(family: str, folder: Path) -> list[str]:
    """What puts the family's tiny checkpoint, made in that folder, in place of shapes-flux."""
    if family not in tiny.SIZES:
        return []
    inputs = {**tiny.SIZES[family], "height": 32, "guidance": 4.5}
    return [f"3.{name}={value}" for name, value in inputs.items()] + [f"1.path={tiny.make(family, folder / family)}"]


if __name__ == "__main__":
    main()
