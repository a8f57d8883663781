"""The house stays as docs/architecture.md draws it: few files at the trainer's top, files and functions that fit a sitting."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("trainer", "inference", "nodes", "page", "study", "commands", "host")
OTHERS = (
    "assets",
    "bench",
    "docs",
)  # Python that counts, but may have longer files: scripts that are read from top to bottom
TABLES = {"INPUT_TYPES"}  # functions that are one table, and read as one
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 400, 60


def python_files(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def functions(source: str) -> list[tuple[str, int]]:
    """Name and length in lines of every function and method."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    return [(node.name, node.end_lineno - node.lineno + 1) for node in found]


def test_the_trainers_top_is_one_iteration():
    top = sorted(file.name for file in (ROOT / "trainer").glob("*.py"))
    assert len(top) <= 12, top


@pytest.mark.parametrize("room", ROOMS)
def test_files_can_be_read_in_one_sitting(room):
    too_long = {str(file): count for file in python_files(room) if (count := lines(file)) > MOST_LINES_OF_A_FILE}
    assert not too_long


@pytest.mark.parametrize("room", (*ROOMS, *OTHERS))
def test_functions_fit_a_screen(room):
    too_long = [
        (str(file), name, count)
        for file in python_files(room)
        for name, count in functions(file.read_text(encoding="utf-8"))
        if count > MOST_LINES_OF_A_FUNCTION and name not in TABLES
    ]
    assert not too_long


def test_the_length_of_a_function_is_that_of_all_its_lines():
    assert functions("def f():\n    def g(\n        x,\n    ): ...\n    return g\n") == [("f", 5), ("g", 3)]


def test_less_than_half_of_the_code_is_the_trainers():
    trainer = sum(map(lines, python_files("trainer")))
    rest = sum(map(lines, [*python_files(*ROOMS[1:], *OTHERS), *ROOT.glob("*.py")]))
    assert trainer < 0.45 * (trainer + rest), f"{trainer} of {trainer + rest} lines"
