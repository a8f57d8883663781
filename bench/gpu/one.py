"""One part, in this process: its answer goes to a file that the parent reads."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path

from .parts import PARTS, Place, Skipped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--parts", type=Path, required=True)
    options = parser.parse_args()
    from comfyui_otca.commands.options import quiet_libraries
    from comfyui_otca.host import devices

    quiet_libraries()
    devices.choose(options.device)
    with _device(options.device):
        try:
            result = PARTS[options.part].measure(Place(options.device, options.tiny, options.parts))
            answer = {"state": "done", "result": result}
        except Skipped as reason:
            answer = {"state": "skipped", "reason": str(reason)}
    (options.parts / f"{options.part}.answer").write_text(json.dumps(answer), encoding="utf-8")


def _device(name: str) -> contextlib.AbstractContextManager[object]:
    """The pretend accelerator of the tests has to be there before anything is built."""
    from comfyui_otca.tests.device import pretend

    if not name.startswith(pretend.NAME):
        return contextlib.nullcontext()
    pretend.register()
    return pretend.active()


if __name__ == "__main__":
    main()
