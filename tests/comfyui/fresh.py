"""Trains each of the workflows named on standard input for one iteration in a process that has trained nothing before.

Run by ComfyUI's own interpreter, so that the numbers can be equal to the last bit. Lines of standard input are JSON:
[workflow, output]. What takes long to import is imported once; each training then is a fork of its own.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main():
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]
    spec = importlib.util.spec_from_file_location(
        "comfyui_otca", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    package = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    from comfyui_otca.__main__ import main as otca
    from comfyui_otca.host import distributed  # noqa: F401
    from comfyui_otca.trainer import flow  # noqa: F401
    from comfyui_otca.trainer.run import record  # noqa: F401

    for line in sys.stdin:
        workflow, output = json.loads(line)
        child = os.fork()
        if not child:
            os._exit(otca(["train", workflow, "--output", output, "--iterations", "1"]))
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"{workflow} failed")


if __name__ == "__main__":
    main()
