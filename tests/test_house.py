"""The house stays small: each room keeps its budget of statements, and no code is there that nothing uses.

Who may import whom is held by import-linter, see pyproject.toml.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from vulture import Vulture

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.families.sizes import RULES
from comfyui_otca.trainer.rewards import OF_GRAPHS, REWARDS, reward_class

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("trainer", "bundle", "canvas", "inference", "nodes", "page", "study", "commands", "host")
OTHERS = ("assets", "bench", "docs", "tools")


def python_files(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def statements(file: Path) -> int:
    """How many there are without docstrings: a long line, a comment and a header cost nothing."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.stmt)]
    return sum(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in nodes)


def overspent(budgets: dict[str, int], root: Path = ROOT) -> dict[str, tuple[int, int]]:
    """{room: (statements, budget)} of the rooms that have more than their budget, or no budget.

    A room is a folder at the top, a folder of trainer/, or "trainer", which is the files at its top.
    """
    spent: dict[str, int] = {}
    for file in root.rglob("*.py"):
        place = file.relative_to(root).parts
        if len(place) > 1 and not place[0].startswith((".", "build", "runs")):
            deep = place[0] == "trainer" and len(place) > 2
            room = "/".join(place[: 2 if deep else 1])
            spent[room] = spent.get(room, 0) + statements(file)
    return {room: (count, budgets.get(room, 0)) for room, count in spent.items() if count > budgets.get(room, 0)}


def test_each_room_keeps_its_budget_of_statements():
    """A commit that raises a budget in pyproject.toml does nothing else, and says why."""
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["otca"]["budgets"]
    assert not overspent(budgets), (
        "(statements, budget). Fix: take as many away, there or in another room, and move its budget; else say in the "
        "pull request what they are for, and set the budget in a commit of its own"
    )


def test_a_room_over_its_budget_is_named(tmp_path):
    for name in ("trainer/a.py", "trainer/run/b.py", "page/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('"""Not counted."""\nif a:\n    b = 1\n# a comment\nc(\n    1,\n)\n')
    assert overspent({"trainer": 3, "trainer/run": 2}, tmp_path) == {"trainer/run": (3, 2), "page": (3, 0)}


# What we set on ComfyUI's objects, or define for them.
COMFYUI_READS = (
    *("latent_format", "sampling_settings", "scale_factor", "latent_channels", "spacial_downscale_ratio"),
    *("latent_rgb_factors", "latent_rgb_factors_bias", "taesd_decoder_name"),
    *("params", "t5xxl", "tokenize_with_weights", "patcher", "downscale_ratio", "upscale_ratio"),
)

# Names that are used where Python code does not show it, and why.
USED = {
    "__init_subclass__": "Python calls it",
    "model_config": "pydantic reads it",
    "__signature__": "inspect reads it",
    "pix_fmt": "PyAV reads it",
    **dict.fromkeys(("SEARCH_ALIASES", "ESSENTIALS_CATEGORY"), "ComfyUI's page reads it"),
    "normalizer": "a part of a tokenizer, set for its library",
    "pre_tokenizer": "a part of a tokenizer, set for its library",
    "inner_model": "ComfyUI's guider has it",
    "cfg": "ComfyUI's guider has it",
    **dict.fromkeys(("msg", "exc_text"), "Python's logging reads it"),
    "is_injected": "ComfyUI's patcher has it",
    "tensor_list": "torch names this argument",
    **dict.fromkeys(("external_attr", "compress_type"), "Python's zipfile reads it"),
    **dict.fromkeys(
        ("model_max_length", "added_tokens_encoder", "apply_chat_template"),
        "diffusers' pipelines ask a tokenizer for it",
    ),
    **dict.fromkeys(("ignore_compile_internals", "donated_buffer"), "torch's compiler reads or calls it"),
    "found_inf": "the fused optimizers of torch look at it",
    "forget": "what is gone when a process ends, for tests that stand for a new process",
    **{name: "ComfyUI reads or calls it" for name in COMFYUI_READS},
    **{node.FUNCTION: "ComfyUI calls it by this name" for node in NODE_CLASS_MAPPINGS.values()},
    **{rules.model.rpartition(".")[2]: "a table names it as text" for rules in RULES.values()},
    **{path.rpartition(".")[2]: "a table names it as text" for path in OF_GRAPHS.values()},
    **{reward_class(kind).__name__: "its node names it as text" for kind in REWARDS},
    **{node.__name__: "nodes are found in their files" for node in NODE_CLASS_MAPPINGS.values()},
}


def unused(*files: Path) -> list[str]:
    """What nothing uses in these files, as vulture sees it. Tests do not count as use."""
    finder = Vulture(ignore_names=list(USED), ignore_decorators=["@command", "@place"])
    finder.scavenge(list(files))
    return [f"{item.filename}:{item.first_lineno}: {item.message}" for item in finder.get_unused_code(60)]


def test_no_code_is_unused():
    assert not unused(*python_files(*ROOMS, *OTHERS), *ROOT.glob("*.py"))


def test_unused_code_is_found(tmp_path):
    (tmp_path / "a.py").write_text("def called():\n    pass\n\n\ndef forgotten():\n    pass\n\n\ncalled()\n")
    assert [line.split(": ")[1] for line in unused(tmp_path / "a.py")] == ["unused function 'forgotten'"]


def names(file: Path) -> tuple[Counter[str], set[str], set[str]]:
    """(what it takes of others, private names that it makes, its private functions at the top that one place calls)."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    variables = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names]
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored = {n.attr for n in attributes if isinstance(n.ctx, ast.Store)} | {
        n.id for n in variables if isinstance(n.ctx, ast.Store)
    }
    others = [n.attr for n in attributes if not (isinstance(n.value, ast.Name) and n.value.id in ("self", "cls"))]
    uses = Counter([n.id for n in variables if isinstance(n.ctx, ast.Load)] + [n.attr for n in attributes])
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    top = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] == "_"}
    made = {name for name in defined | stored if name.startswith("_") and not name.startswith("__")}
    return Counter(others + imported), made, {name for name in top & called if uses[name] == 1}


def test_few_private_names_are_used_by_others_and_few_helpers_once():
    """Both may only fall: a test's need of a module has a public name, a helper stands in its one caller if it reads as well."""
    house = [names(file) for file in python_files(*ROOMS, *OTHERS)]
    ours = set().union(*(made for _, made, _ in house))
    taken = sum((names(file)[0] for file in python_files("tests")), Counter())
    assert sum(count for name, count in taken.items() if name in ours) <= 59
    assert sum(len(once) for _, _, once in house) <= 311


def test_every_system_runs_what_make_test_runs():
    """`.github/workflows/test.yml` has the commands of `make test` in the same order, run in its own environment."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    command = ["make", "--dry-run", "--always-make", "--directory", str(ROOT), "test"]
    said = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
    ours = re.split(
        r" & other=\$!; | && wait \$other\n| && |\n", said.replace("OMP_NUM_THREADS=1 ", "").replace(".venv/bin/", "")
    )
    ours = [
        line.replace(" --pythonpath python", "") for line in ours if line and not line.startswith(("make", "touch"))
    ]
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    steps = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    theirs = dict.fromkeys("\n".join(steps).split("\n"))  # lint and tests are two jobs, which install alike
    assert [line for line in ours if "-m venv" not in line] == [line for line in theirs if line]
