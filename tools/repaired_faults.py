"""Puts faults back that the history repaired, one at a time, and says which layer of the tests catches each.

`python tools/repaired_faults.py` tries all faults of repaired_faults.toml; names after it try only those. `--check` only says
whether each can still be put back, which `make lint` asks. A fault is put into a copy of the last commit, where the tests that
mirror its file run first, then the rest of the layer, then the next layer; the first test that fails ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
FAULTS = Path(__file__).with_suffix(".toml")
LAYERS = ("test", "train", "comfyui")
CAUGHT = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def read() -> dict[str, dict[str, str]]:
    """{name: {commit, file, what, now, then}}: `now` is the text in the file, `then` the text before the repair."""
    return tomllib.loads(FAULTS.read_text(encoding="utf-8"))


def misplaced(faults: dict[str, dict[str, str]]) -> list[str]:
    """The faults whose present text does not stand exactly once in their file."""
    complaints = []
    for name, fault in faults.items():
        file = ROOT / fault["file"]
        count = file.read_text(encoding="utf-8").count(fault["now"]) if file.is_file() else 0
        if count != 1:
            complaints.append(
                f"{name}: its text stands {count} times in {fault['file']}. Fix: mend its `file` and `now`"
            )
    return complaints


def near(file: str) -> list[str]:
    """The test files that mirror a file, and those of its folder: tests/trainer/test_sde.py for trainer/sde.py."""
    path = Path(file)
    folder = ROOT / "tests" / path.parent
    named = [*folder.glob(f"test_{path.stem}*.py"), *folder.glob(f"test_{path.parent.name}.py")]
    around = sorted(folder.glob("test_*.py")) if path.parent.parts else []
    return [str(test.relative_to(ROOT)) for test in dict.fromkeys([*named, *around])]


def pytest(tree: Path, layer: str, tests: list[str]) -> str | None:
    """The first test of a layer that fails in the tree; None if all pass."""
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--layer", layer]
    # The tree's own package, before the installed one.
    environment = os.environ | {"PYTHONPATH": str(tree.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests], cwd=tree, env=environment, capture_output=True, text=True
    )
    if done.returncode in (0, 5):  # 5: no test of these files is in this layer
        return None
    if done.returncode not in (1, 2) or "during collection" in done.stdout:  # which says nothing of the fault
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    failed = CAUGHT.search(done.stdout)
    return failed[1] if failed else f"a test ended the run: {done.stdout.splitlines()[-1]}"


def caught(fault: dict[str, str], layers: tuple[str, ...]) -> tuple[str, str] | None:
    """The layer and the test that notice a fault; None if all tests of these layers pass with it."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "comfyui_otca"
        tree.mkdir()
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
        file = tree / fault["file"]
        file.write_text(file.read_text(encoding="utf-8").replace(fault["now"], fault["then"]), encoding="utf-8")
        for layer in layers:
            for tests in filter(None, (near(fault["file"]), ["tests"])):
                if test := pytest(tree, layer, tests):
                    return layer, test
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these faults")
    parser.add_argument("--check", action="store_true", help="only say whether each fault can be put back")
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=LAYERS, help="only these layers")
    parser.add_argument("--output", type=Path, help="a JSON file: what was found is kept there, and not tried again")
    options = parser.parse_args()
    faults = read()
    if unknown := set(options.names) - faults.keys():
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}. Fix: use names of {FAULTS.name}")
    if complaints := misplaced(faults):
        print(*complaints, sep="\n")
        return 1
    if options.check:
        return 0
    results = json.loads(options.output.read_text()) if options.output and options.output.exists() else {}
    chosen = options.names or list(faults)
    for name in chosen:
        if name not in results:
            results[name] = caught(faults[name], tuple(options.layers))
            if options.output:
                options.output.write_text(json.dumps(results, indent=1))
        layer, test = results[name] or ("not caught", faults[name]["what"])
        print(f"{name:32} {layer:10} {test}", flush=True)
    layers = [results[name][0] for name in chosen if results[name]]
    print(", ".join(f"{layer}: {layers.count(layer)}" for layer in options.layers), f"of {len(chosen)}")
    return int(len(layers) < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
