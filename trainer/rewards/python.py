"""A reward that is one function in a file of the user's. Off until the user allows a folder: see `permissions.python_file`."""

from __future__ import annotations

import hashlib
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from torch import Tensor

from ...host import files, stopping
from ...host.access import permissions
from ..networks import RewardError
from .base import Reward


class PythonReward(Reward):
    """Whatever `function(images, prompts)` in `file` returns: [B] numbers, NaN for what cannot be scored, None in a list for
    what it does not apply to.

    The function receives a float32 tensor [B, H, W, 3] in [0, 1] on the CPU, its own copy, and a list of B prompts. For a
    video it receives VIDEO_FRAMES frames, and the score is their mean.

    Args:
        file: the name of a .py file in an allowed folder, or its path.
    """

    def __init__(self, name: str = "", *, file: str, function: str = "score", **use):
        self.path = permissions.python_file(file)
        super().__init__(name or self.path.stem, **use)
        module = _load(self.path)
        judge = getattr(module, function, None)
        if not callable(judge):
            names = ", ".join(n for n, value in vars(module).items() if callable(value) and not n.startswith("_"))
            raise RewardError(
                f"{self.path} has no function {function!r}. Fix: define {function}(images, prompts), or choose of: "
                f"{names or 'nothing, it defines no function'}"
            )
        self.function = judge

    @classmethod
    def own_name(cls, settings: Mapping) -> str:
        return permissions.python_file(settings["file"]).stem

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor | Sequence[float | None]:
        return _naming_the_line(self.path, lambda: self.function(images.clone(), list(prompts)))


def _load(path: Path) -> ModuleType:
    """The file as a module under a name of its own; the same one for all nodes, until the text changes.

    Run and not imported, since Python's cache of compiled files does not see a change within a second.
    """
    name, digest = f"_otca_reward_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}", files.sha256(path)
    module = sys.modules.get(name)
    if module is not None and vars(module)["__digest__"] == digest:
        return module
    content = _naming_the_line(path, lambda: runpy.run_path(str(path), run_name=name))
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(content, __digest__=digest)
    return module


def _naming_the_line(path: Path, call: Callable):
    """`call()`, whose errors name the line of the user's file that they come from."""
    try:
        return call()
    except stopping.interrupts():
        raise
    except Exception as error:
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        # A SyntaxError has no line that ran.
        line = f", line {lines[-1].lineno}, in {lines[-1].name}" if lines else ""
        raise RewardError(f"{path}{line}: {type(error).__name__}: {error}. Fix: correct that file") from error
