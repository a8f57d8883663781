"""The use of a training, and a budget that ends it instead of a number of iterations: forwards, or seconds.

A comparison gives trainings of unequal iterations the same budget. It lies in the run's folder as budget.json, so a resumed run
has it too, and whether it is used up is read off metrics.jsonl alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ...host import distributed
from ...host.files import write_text
from .folder import BUDGET, json_line, read_own
from .verdicts import measured

FORWARDS, SECONDS = UNITS = ("forwards", "seconds")
CLOCK = "seconds by the clock"
ANY_NUMBER = 10**6  # of iterations if a budget ends a training
# In forwards. A backward pass costs one for the gradient of what each layer was given, and one for that of its weights. An
# adapter on a large model saves most of the second.
BACKWARD = 2.0
USED = "seconds/used"  # in metrics.jsonl
EVALUATED = "seconds/evaluation"  # in evaluation.jsonl


@dataclass(frozen=True)
class Budget:
    """How much a training may use: it ends after the iteration with which it has used `amount` or more.

    Attributes:
        unit: FORWARDS, each of one sample at one step and a backward pass as BACKWARD of them, or SECONDS as `Meter` counts them.
            Evaluations are in neither. CLOCK is what a person waits for: evaluations count too, and another iteration and the
            last evaluation, as long as those on record, still have to fit.
        evaluations: it is evaluated whenever another one of so many equal parts is used up.
    """

    unit: str
    amount: float
    evaluations: int

    def __str__(self) -> str:
        return f"{self.amount:,.10g} {self.unit}"

    @property
    def spent(self) -> str:
        """The sentence about a run that ended by it."""
        return f"its budget of {self} is used up"

    def share(self, history: Sequence[Mapping], evaluations: Sequence[Mapping] = (), without: int = 0) -> float:
        """The share of it that all iterations on record have used, but for the last `without` ones.

        By the clock it is the share of what evaluations leave to iterations, and 1 if they leave nothing.
        """
        if len(history) <= without:
            return 0.0
        total, amount = used(history, self.unit, [history[-1]["iteration"] - without])[0], self.amount
        if self.unit == CLOCK:
            took = [row[EVALUATED] for row in evaluations if measured(row.get(EVALUATED))]
            amount -= sum(took) + sum(took[-1:]) + used(history, CLOCK, [history[-1]["iteration"]])[0] / len(history)
        if amount <= 0:
            return 1.0
        return 0.0 if math.isnan(total) else total / amount

    def write(self, folder: Path) -> None:
        write_text(folder / BUDGET, json_line(asdict(self)))


def read(folder: Path) -> Budget | None:
    """The budget of the run in that folder. Raises Damaged."""
    content = read_own(folder, BUDGET)
    return None if content is None else Budget(**{name: content[name] for name in Budget.__dataclass_fields__})


def cost(row: Mapping, unit: str) -> float | None:
    """The use of one iteration, from its row of metrics.jsonl; None if that was not measured."""
    weights = {"forwards/all": 1.0, "forwards/with_gradient": BACKWARD} if unit == FORWARDS else {USED: 1.0}
    if not all(measured(row.get(key)) for key in weights):
        return None
    return sum(weight * row[key] for key, weight in weights.items())


def used(history: Sequence[Mapping], unit: str, iterations: Sequence[int]) -> list[float]:
    """The use until the end of each of these iterations, 0 for 0.

    An iteration that was not measured, or whose line was lost, counts as the mean of the others. NaN if none was measured.
    """
    costs = {row["iteration"]: value for row in history if (value := cost(row, unit)) is not None}
    lost = statistics.fmean(costs.values()) if costs else float("nan")
    return [sum(costs.get(number, lost) for number in range(1, until + 1)) for until in iterations]


def slowest(seconds: float) -> float:
    """The most seconds of all processes, which then decide alike."""
    return distributed.each(torch.tensor(seconds, dtype=torch.float64)).max().item()


class Meter:
    """Measures what the iterations of a run use in this process, and how far that is through its budget.

    Args:
        folder: of the run; None on the canvas, where a person says when it ends, and whose process does other things too.
    """

    def __init__(self, folder: Path | None):
        self.budget = None if folder is None else read(folder)
        self._measures = folder is not None
        self._began: float | None = None  # the end of the last iteration, in seconds of computing

    def restart(self) -> None:
        """Leaves out of the next iteration what was done since the last one: evaluating, saving."""
        self._began = time.process_time() if self._measures else None

    def take(self, seconds: float, on_cpu: bool) -> dict[str, float]:
        """The use of the iteration that just ended, in all processes together, as one figure of metrics.jsonl.

        On the CPU that is seconds of computing, of all threads, so that it does not matter what else the machine does. What
        waits for an accelerator computes nothing, so there it is `seconds`, those by the clock. A process' first iteration is not
        measured: it also loads and imports much, and a run that was resumed would pay for that twice. A budget by the clock
        counts it, and takes the seconds of the slowest process.
        """
        if self.budget is not None and self.budget.unit == CLOCK:
            return {USED: slowest(seconds)}
        if self._began is None:
            return {}
        own = time.process_time() - self._began if on_cpu else seconds
        return {USED: distributed.each(torch.tensor(own, dtype=torch.float64)).sum().item()}

    def due(self, history: Sequence[Mapping], every: int, evaluations: Sequence[Mapping] = ()) -> bool:
        """Whether an evaluation is due after the last iteration: `every` so many, or as the budget says."""
        if self.budget is None:
            return history[-1]["iteration"] % every == 0
        now, before = (self.budget.share(history, evaluations, without) for without in (0, 1))
        return int(now * self.budget.evaluations) > int(before * self.budget.evaluations)

    def spent(self, history: Sequence[Mapping], evaluations: Sequence[Mapping] = ()) -> str | None:
        """A sentence for a human if the budget is used up, so that the run ends here; else None."""
        if self.budget is None or self.budget.share(history, evaluations) < 1:
            return None
        return self.budget.spent
