"""How far a value walks through our functions: `python -m comfyui_otca.tools.walks` makes small real calls, and counts each.

A walk goes through the functions that are handed the value, or what was made of it. Stays are the files that it comes into, one
after the other; rooms are the files; returns are stays in a file where it was before. What one place calls often counts once.
Left out are what nodes do, whose walks are their own, and what a model does with its tensors.
"""

import inspect
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from ..__main__ import parser
from ..canvas import ownership
from ..commands import training
from ..host import environment, paths
from ..nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from ..page.export import Bundles
from ..page.jobs import Jobs
from ..page.runs import Runs
from ..trainer.checks.prepare import prepare
from ..trainer.run import loop
from ..trainer.workflow import Workflow

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = str(__package__).removesuffix(".tools")
OTHERS = ("nodes", ".venv", "trainer/families", "trainer/native", "trainer/policy/policy.py")
SMALL = {
    **{"PromptDataset.prompts_per_iteration": 1, "SDESampler.group_size": 2, "SDESampler.steps": 2},
    **{"TrainingRun.evaluate_every": 1, "TrainingRun.evaluation_seeds": 1, "TrainingRun.evaluation_steps": 2},
    **{"TrainingRun.evaluation_prompts": "a red circle", "TrainingRun.best_metric": "evaluation/sum"},
}
Step = tuple[
    str, Callable, str, Callable
]  # its name, the function that it begins with, its parameter, and what calls it


class Walk:
    def __init__(self, function: Callable, parameter: str, action: Callable):
        self.files: dict[tuple, str] = {}  # by caller, its line, and what it calls
        self._values: dict[int, object] = {}
        self._folders: set[Path] = set()
        self._begin, self._parameter = function.__code__, parameter
        self._at_work: list[tuple] = []  # frames of ours, and whether each is followed; None: it is another's walk
        sys.setprofile(self._event)
        try:
            action()
        finally:
            sys.setprofile(None)

    def __str__(self) -> str:
        files = [file for file, _ in itertools.groupby(self.files.values())]
        return f"{len(files)} stays, {len(set(files))} rooms, {len(files) - len(set(files))} returns"

    def _event(self, frame, event: str, value: object) -> None:
        code, file = frame.f_code, frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        if event == "return" and self._at_work and self._at_work[-1][0] is frame and self._at_work.pop()[1]:
            self._follow(value)
        if event != "call" or file == code.co_filename or not (self._at_work or code is self._begin):
            return
        if not self._at_work:
            value = frame.f_locals[self._parameter]
            self._values[id(value)] = value
            self._follow(_parts(value))
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]
        is_other = file.startswith(OTHERS) or (self._at_work and self._at_work[-1][1] is None)
        followed = None if is_other else any(self._is_followed(frame.f_locals.get(name)) for name in names)
        if followed and not _is_part_of_its_caller(frame):
            self.files.setdefault((frame.f_back.f_code, frame.f_back.f_lineno, code), file)
        self._at_work.append((frame, followed))

    def _is_followed(self, value: object) -> bool:
        if isinstance(value, Path):
            return not self._folders.isdisjoint((value, *value.parents))
        return id(value) in self._values or (
            _is_ours(value) and any(id(part) in self._values for part in _parts(value))
        )

    def _follow(self, value: object, depth: int = 3) -> None:
        if isinstance(value, Path):
            self._folders.add(value)
        elif depth and id(value) not in self._values and (_is_ours(value) or isinstance(value, dict | list | tuple)):
            self._values[id(value)] = value
            for part in _parts(value):
                self._follow(part, depth - 1)


def _is_ours(value: object) -> bool:
    return type(value).__module__.startswith(PACKAGE)


def _parts(value) -> list:
    values = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return list(value if isinstance(value, list | tuple) else values.values())


def _is_part_of_its_caller(frame) -> bool:
    """A function inside of another one, a comprehension, and a property, which is read like a value."""
    code, owner = frame.f_code, type(frame.f_locals.get("self"))
    nested = code.co_flags & inspect.CO_NESTED or code.co_name[0] == "<"
    return bool(nested) or isinstance(getattr(owner, code.co_name, None), property)


def _small(iterations: int = 2) -> Workflow:
    workflow = Workflow.load(ROOT / "workflows" / "api" / "quickstart.json", NODE_CLASS_MAPPINGS)
    for name, value in {**SMALL, "TrainingRun.iterations": iterations}.items():
        workflow.set(name, value)
    return workflow


def train(scratch: Path) -> Iterator[Step]:
    """A new run of two iterations, and a third one after it was resumed."""
    for name, iterations in {"begun": 2, "resumed": 3}.items():
        prepared = prepare(_small(iterations), scratch / "run", resume=iterations > 2, say=lambda line: None)
        yield f"loop.train, {name}", loop.train, "prepared", lambda: loop.train(prepared, say=lambda line: None)  # noqa: B023


def command(scratch: Path) -> Iterator[Step]:
    """From the arguments to the loop, which then trains nothing."""
    (scratch / "graph.json").write_text(json.dumps(_small().graph))
    line = ["train", str(scratch / "graph.json"), "--output", str(scratch / "run"), "--device", "cpu"]
    with mock.patch.object(loop, "train", lambda prepared, say: 0):
        yield "otca train", training.train, "arguments", lambda: training.train(parser().parse_args(line))


def take_up(scratch: Path) -> Iterator[Step]:
    """A new run, the same one, and another graph under its name."""
    workflow = _small()
    [model] = workflow.run(targets=["1"])["1"]
    other = {name: entry for name, entry in workflow.graph.items() if name != "9"}
    graphs = {"begun": workflow.graph, "again": workflow.graph, "another": other, "back": workflow.graph}
    for name, graph in graphs.items():
        yield f"take_up, {name}", ownership.take_up, "graph", lambda: ownership.take_up(model, graph, "3")  # noqa: B023


def bundle(scratch: Path) -> Iterator[Step]:
    runs = Runs(paths.runs_folder, lambda run: False)
    made = Bundles(
        Jobs(runs, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS, lambda: scratch, lambda: None), lambda: scratch
    )
    yield "Bundles.make", Bundles.make, "prompt", lambda: made.make(_small().graph, "small", True, True)


if __name__ == "__main__":
    for steps in (train, command, take_up, bundle):
        with tempfile.TemporaryDirectory() as scratch:
            environment.write(paths.RUNS, str(Path(scratch, "runs")))
            for name, function, parameter, action in steps(Path(scratch).resolve()):
                print(f"{name}: {Walk(function, parameter, action)}", flush=True)
