"""Run by ComfyUI's own interpreter, in its folder: answers questions about training its models, tiny and with random weights.

Each line of the input is JSON [question, family, options]; the answer is a line {figure: number}, or {"error": …, "trace": …}.
The questions are the public functions of proofs.py, faults.py, judges.py and the files beside them.
"""

import gc
import importlib.util
import json
import logging
import os
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def start() -> None:
    """This package under its own name, whatever its folder is called, and ComfyUI's, on the CPU."""
    place = importlib.util.spec_from_file_location(
        "comfyui_otca", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    package = importlib.util.module_from_spec(place)
    sys.modules["comfyui_otca"] = package
    place.loader.exec_module(package)
    sys.path.insert(0, str(Path.cwd()))
    sys.argv = sys.argv[:1]
    from comfy.cli_args import args

    args.cpu = True
    import comfy.samplers  # noqa: F401

    from comfyui_otca.tests.comfyui.native import compiled, edits, faults, in_front, judges, proofs, stops  # noqa: F401

    gc.collect()
    gc.freeze()  # ComfyUI collects garbage whenever it loads a model, each time through all that was ever imported


def answer(question: str, family: str, options: dict) -> dict:
    from comfyui_otca.tests.comfyui.native import compiled, edits, faults, in_front, judges, proofs, stops

    ask = next(
        getattr(module, question)
        for module in (proofs, edits, faults, judges, stops, in_front, compiled)
        if hasattr(module, question)
    )
    began = time.process_time()
    try:
        found = ask(family, **options)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        return {"error": message, "trace": traceback.format_exc()[-3000:]}
    return {**found, "seconds": round(time.process_time() - began, 2)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever ComfyUI prints while it is imported is no answer
    start()
    logging.getLogger().setLevel(logging.WARNING)
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
