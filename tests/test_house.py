"""The house stays as docs/architecture.md draws it: few files at the trainer's top, files and functions that fit a sitting, and
no code that nothing uses. (Who may import whom is held by import-linter, see pyproject.toml.)"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from vulture import Vulture

from comfyui_otca.bench.gpu.parts import PARTS
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.flow import FAMILIES
from comfyui_otca.trainer.rewards import REWARDS

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("trainer", "bundle", "canvas", "inference", "nodes", "page", "study", "commands", "host")
OTHERS = (
    "assets",
    "bench",
    "docs",
    "tools",
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
    assert trainer < 0.49 * (trainer + rest), f"{trainer} of {trainer + rest} lines"


# What we set on ComfyUI's objects, or define for them.
COMFYUI_READS = (
    *("latent_format", "sampling_settings", "scale_factor", "latent_channels", "spacial_downscale_ratio"),
    *("latent_rgb_factors", "latent_rgb_factors_bias", "taesd_decoder_name"),
    *("params", "t5xxl", "tokenize_with_weights", "patcher", "downscale_ratio", "upscale_ratio"),
)

# Names that are used where Python code does not show it, and why.
USED = {
    "__init_subclass__": "Python calls it",
    "get_code": "Python's own loader calls it",
    "fullname": "an argument of that call",
    "normalizer": "a part of a tokenizer, set for its library",
    "pre_tokenizer": "a part of a tokenizer, set for its library",
    "inner_model": "ComfyUI's guider has it",
    "cfg": "ComfyUI's guider has it",
    "is_injected": "ComfyUI's patcher has it",
    "tensor_list": "torch names this argument",
    **dict.fromkeys(("external_attr", "compress_type"), "Python's zipfile reads it"),
    **dict.fromkeys(
        ("model_max_length", "added_tokens_encoder", "apply_chat_template"),
        "diffusers' pipelines ask a tokenizer for it",
    ),
    **dict.fromkeys(("_update_peak_stats", "peak_state"), "torch's memory tracker calls it"),
    "found_inf": "the fused optimizers of torch look at it",
    "forget": "what is gone when a process ends, for tests that stand for a new process",
    **{name: "ComfyUI reads or calls it" for name in COMFYUI_READS},
    **{node.FUNCTION: "ComfyUI calls it by this name" for node in NODE_CLASS_MAPPINGS.values()},
    **{part.measure.args[1]: "a table of bench/gpu.sh names it as text" for part in PARTS.values()},
    **{path.rpartition(".")[2]: "a table names it as text" for table in (FAMILIES, REWARDS) for path in table.values()},
}


def unused(*files: Path) -> list[str]:
    """What nothing uses in these files, as vulture sees it. Tests do not count as use."""
    finder = Vulture(ignore_names=list(USED))
    finder.scavenge(list(files))
    return [f"{item.filename}:{item.first_lineno}: {item.message}" for item in finder.get_unused_code(60)]


def test_no_code_is_unused():
    assert not unused(*python_files(*ROOMS, *OTHERS), *ROOT.glob("*.py"))


def test_unused_code_is_found(tmp_path):
    (tmp_path / "a.py").write_text("def called():\n    pass\n\n\ndef forgotten():\n    pass\n\n\ncalled()\n")
    assert [line.split(": ")[1] for line in unused(tmp_path / "a.py")] == ["unused function 'forgotten'"]
