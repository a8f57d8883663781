"""Problems of a workflow, as text of bounded length: a stranger's graph may hold megabytes anywhere."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...host.errors import Expected
from ...host.text import printable, shortened

MOST_PROBLEMS = 50  # problems in one answer
MOST_CHARACTERS = {"node_id": 80, "title": 80, "input": 80, "message": 900, "fix": 500}
MOST_OF_A_VALUE = 200
LONGEST_GUESS = 100  # of a wrong name, what is compared with the right ones


@dataclass(frozen=True)
class Problem:
    """One thing to change before the workflow can run. `node_id` is None where it concerns the whole graph.

    All texts are shortened and printable here, and `value` where it becomes text, so nothing that shows it need care for that.
    """

    node_id: str | None
    title: str | None
    input: str | None
    value: Any
    message: str
    fix: str
    severity: str = "error"

    def __post_init__(self):
        for name, most in MOST_CHARACTERS.items():
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, shortened(printable(shortened(text, most)), most))

    def __str__(self) -> str:
        where = "workflow" if self.node_id is None else f'node {self.node_id} "{self.title}"'
        if self.input is not None:
            value = "" if self.value is None else f" = {shortened(reprlib.repr(self.value), MOST_OF_A_VALUE)}"
            where += f", input {self.input}{value}"
        text = f"{where}: {self.message.rstrip('. ')}." + (f" Fix: {self.fix}" if self.fix else "")
        return " ".join(text.split())


class WorkflowError(Expected, ValueError, status=400):
    """The workflow cannot be read, changed or run; `problems` says why, all of it at once."""

    def __init__(self, problems: Sequence[Problem]):
        self.problems, self.more = problems, {"problems": as_json(problems)}
        super().__init__("\n".join(map(str, bounded(problems))))


def bounded(problems: Sequence[Problem]) -> list[Problem]:
    """The first of many problems, errors before warnings, and how many more there are."""
    if len(problems) <= MOST_PROBLEMS:
        return list(problems)
    first = sorted(problems, key=lambda problem: problem.severity != "error")[:MOST_PROBLEMS]
    return [*first, general(f"and {len(problems) - MOST_PROBLEMS} more problems", "mend these first")]


def as_json(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """Problems for the page, without the values: it has them, and some are not JSON."""
    return [{key: text for key, text in vars(problem).items() if key != "value"} for problem in bounded(problems)]


def general(message: str, fix: str) -> Problem:
    """A problem of the graph as a whole."""
    return Problem(None, None, None, None, message, fix)


def refusal(message: str, fix: str) -> WorkflowError:
    """An error of the graph as a whole, to raise."""
    return WorkflowError([general(message, fix)])


def errors(problems: Iterable[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.severity == "error"]


@dataclass(frozen=True)
class Misfit:
    """A value that an input cannot take, said by a function that does not know which node it is of."""

    input: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.message}. Fix: {self.fix}"


def did_you_mean(name: Any, names: Iterable[Any]) -> str:
    """The beginning of a fix: the known name that is closest to a wrong one; empty if no name is close."""
    close = difflib.get_close_matches(str(name)[:LONGEST_GUESS], list(map(str, names)), n=1)
    return f"did you mean {close[0]}? " if close else ""


def suggest(name: Any, names: Iterable[Any]) -> str:
    """A fix: what there is instead of `name`, the closest first."""
    names = list(names)
    listed = ", ".join(map(str, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"{did_you_mean(name, names)}use one of: {listed or '(nothing)'}"
