"""`python path/to/ComfyUI-OTCA …`: a plain clone runs without being installed, and shadows nothing.

It also trains: that is how the sidebar starts it, see page/test_jobs.py.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

NOT_INSTALLED = """
import runpy, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
sys.path_hooks[:] = [hook for hook in sys.path_hooks if "editable" not in str(hook).lower()]
sys.path_importer_cache.clear()
sys.argv = sys.argv[1:]
"""


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "custom nodes" / "ComfyUI-OTCA"
    folder.parent.mkdir()
    folder.symlink_to(ROOT)
    return folder


def python(*arguments, cwd):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=cwd, timeout=300
    )


@pytest.mark.parametrize("what", ["", "__main__.py"])
def test_the_folder_is_a_command(clone, tmp_path, what):
    answer = python(clone / what, "validate", ROOT / "workflows" / "api" / "otca.json", cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "") and "ready to train" in answer.stdout


def test_it_needs_no_installation_and_shadows_nothing(clone, tmp_path):
    """Run as Python runs a folder, with the installed package out of reach; `server` and `nodes` are other people's."""
    for name in ("server", "nodes"):
        (tmp_path / f"{name}.py").write_text(f"WHOSE = 'theirs, {name}'")
    script = NOT_INSTALLED + (
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        f"sys.path.append({str(tmp_path)!r})\n"
        "import comfyui_otca, nodes, server\n"
        "print(comfyui_otca.__file__, nodes.WHOSE, server.WHOSE, sep='|')\n"
    )
    answer = python("-c", script, clone, "nodes", cwd=tmp_path / "custom nodes")
    assert answer.returncode == 0, answer.stderr
    assert "OTCA_TCDWeights" in answer.stdout
    assert answer.stdout.splitlines()[-1] == f"{ROOT / '__init__.py'}|theirs, nodes|theirs, server"


AS_COMFYUI_DOES = """
import importlib.util, sys
name = sys.argv[1]  # ComfyUI calls a custom node by its path
spec = importlib.util.spec_from_file_location(name, name + "/__init__.py", submodule_search_locations=[name])
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
rewards, families = (importlib.import_module(f".trainer.{part}", name) for part in ("rewards", "families"))
for kind in rewards.REWARDS:
    print(rewards.reward_class(kind).__name__)
for pipeline in families.RULES:
    print(families.family_class(pipeline).__name__)
"""


def test_rewards_and_families_are_found_under_the_name_that_comfyui_gives(clone, tmp_path):
    answer = python("-c", AS_COMFYUI_DOES, clone, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert {"ShapesAccuracy", "HTTPReward", "Flux2Klein"} <= set(answer.stdout.split())


def test_its_tests_run_in_a_folder_whose_name_is_that_of_no_package(tmp_path):
    """As in a clone's ComfyUI-OTCA, where pytest took the root for a package and imported none of them."""
    folder = tmp_path / "ComfyUI-OTCA"
    (folder / "tests").mkdir(parents=True)
    for name in ("__init__.py", "pyproject.toml", "tests/conftest.py"):
        shutil.copyfile(ROOT / name, folder / name)
    (folder / "tests" / "test_any.py").write_text("def test_any(): pass\n")
    answer = python("-m", "pytest", "-q", "-p", "no:xdist", cwd=folder)
    assert answer.returncode == 0, answer.stdout
