"""`otca prove`: whether a model learns on this machine in the time there is, by one training between two evaluations.

Both evaluations draw the same pictures from the same noises, each from a noise of its own. The training is a run like any other,
in that folder; FACTS in it has what a run does not know: how long it took to load, memory, hardware, versions. Whatever
ends it, the same call continues.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..host import devices, extras, stopping
from ..host.files import present, write_text
from ..host.json_files import NUMBER, TEXT, read_json
from ..trainer.checks.prepare import prepare
from ..trainer.prompts import PRESET, as_line, distinct, lines, read_prompts
from ..trainer.run import status
from ..trainer.run.budget import ANY_NUMBER, CLOCK, Budget
from ..trainer.run.folder import WORKFLOW, RunError, Say, read_own
from ..trainer.run.loop import Prepared, differences, only, train, trained_model
from ..trainer.run.verdicts import by_prompt, changes_by_pair, comparable, measured
from ..trainer.types import DATASET_NODE, RUN_NODE
from ..trainer.workflow.running import Workflow
from . import fairness
from .statistics import Interval, clustered, holm, plus_minus

FACTS = "proof.json"
PICTURES = 64  # of an evaluation, at least
_EVALUATIONS = 4  # in the time that is trained, as far as they leave time to train
_CHECKPOINT_EVERY = 5  # at least so often, since an iteration of a large model takes minutes
_MOST_BY_CHANCE = 0.05
_FEW = 10  # iterations, after which it says nothing that no reward has risen yet
_FIX = "remove it, or choose another --output"

Rehearse = Callable[[Mapping[str, Mapping]], tuple[int | None, str]]  # of a graph: bytes on a GPU, and words


@dataclass
class Facts:
    """The facts of a proof beside its run. Seconds and peaks are those of all processes that it took.

    Attributes:
        hours: that were given.
        model: what was trained, in words.
        seconds: {phase: how long it took}; of training and evaluating the run knows.
        memory: what is estimated, in words.
        estimate: the same in bytes; None if it is unknown.
        peaks: {what: the most bytes that were in use}.
        hardware, versions: in words.
    """

    hours: float = 0.0
    model: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    memory: str = ""
    estimate: int | None = None
    peaks: dict[str, int] = field(default_factory=dict)
    hardware: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        write_text(folder / FACTS, json.dumps(asdict(self), indent=1))

    def took(self, phase: str, began: float) -> None:
        """`began`: by `time.monotonic`."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - began


def facts(folder: Path) -> Facts:
    """The facts of a folder; empty if it has none. Raises Damaged."""
    content = read_json(folder / FACTS, fields={"hours": NUMBER, "memory": TEXT}, fix=_FIX) or {}
    return Facts(**{name: value for name, value in content.items() if name in Facts.__dataclass_fields__})


def prove(
    workflow: Workflow, folder: Path, hours: float, rehearse: Rehearse, pictures: int = PICTURES, say: Say = print
) -> int:
    """Loads, estimates memory, evaluates, trains as long as there is time, and evaluates again.

    `folder`: of the proof, which is a run; what it holds is continued, with another number of hours too.
    `hours`: in all, without what a process lost that was killed. The training ends early enough for the last evaluation, but it
        has one iteration at least.
    `pictures`: of an evaluation; there are as many seeds as give at least so many.

    Returns:
        The exit code of `loop.train`.

    Raises:
        RunError: the folder holds another proof.
        ValueError: no time, or no prompts to evaluate.
    """
    if not 0 < hours < math.inf:
        raise ValueError(f"--hours {hours:g} is not a time. Fix: a number above 0, such as 1")
    proof, planned = facts(folder), plan(workflow, pictures)
    before = read_own(folder, WORKFLOW)
    if before is not None and (lines := differences(before, planned.graph)):
        raise RunError(f"{folder} was begun otherwise: {'; '.join(lines)}. Fix: {_FIX}")
    if status.read(folder).status == "finished" and hours <= proof.hours:
        return 0
    proof.hours = hours
    proof.hardware, proof.versions = hardware(), versions()
    prepared = prepare(planned, folder, resume=present(folder / WORKFLOW), say=say)
    try:
        _load(prepared, proof, rehearse, say)
    except BaseException:
        prepared.held.close()
        raise
    finally:
        proof.write(folder)
    amount = max(1.0, round(3600 * hours - sum(proof.seconds.values())))
    Budget(CLOCK, amount, _EVALUATIONS).write(folder)
    try:
        return train(prepared, say=say)
    finally:
        peaks = devices.peak_memory()
        proof.peaks = {name: max(proof.peaks.get(name, 0), peaks.get(name, 0)) for name in {**proof.peaks, **peaks}}
        proof.write(folder)


def _load(prepared: Prepared, known: Facts, rehearse: Rehearse, say: Say) -> None:
    graph = prepared.workflow.graph
    if not prepared.held.resume:  # so that a call that is killed here is continued
        write_text(prepared.held.folder / WORKFLOW, json.dumps(graph, indent=1))
    began = time.monotonic()
    with stopping.stop_signals():
        model = trained_model(prepared.workflow)
    known.took("loading the model", began)
    count = sum(parameter.numel() for parameter in model.policy.trainable_parameters())
    how = "an adapter" if model.policy.is_adapted else "all weights"
    known.model = (
        f"{Path(model.source).name}, {how} of {count:,} numbers, computed in {str(model.dtype).partition('.')[2]}"
    )
    began = time.monotonic()
    known.estimate, known.memory = rehearse(graph)
    known.took("estimating memory", began)
    say(known.memory)


# --- what is trained --------------------------------------------------------------------------------------------------


def plan(workflow: Workflow, pictures: int) -> Workflow:
    """The same workflow, which evaluates so many pictures, ends by the clock, and tells no tracker.

    Raises:
        ValueError: nothing says what to evaluate by.
    """
    node, inputs = only(workflow, RUN_NODE), fairness.run_inputs(workflow)
    prompts = distinct(lines(inputs["evaluation_prompts"])) or _dataset(workflow)
    if len(prompts) > pictures:
        prompts = [prompts[number * len(prompts) // pictures] for number in range(pictures)]
    planned = Workflow(workflow.graph, workflow.node_classes, workflow.display_names, workflow.addresses)
    settings = {
        "iterations": ANY_NUMBER,
        "evaluate_every": ANY_NUMBER,
        "checkpoint_every": min(_CHECKPOINT_EVERY, inputs["checkpoint_every"]),
        "keep_checkpoints": 1,
        "evaluation_prompts": "\n".join(map(as_line, prompts)),
        "evaluation_seeds": -(-pictures // len(prompts)),
        "wandb_project": "",
    }
    for name, value in settings.items():
        planned.set(f"{node}.{name}", value)
    return planned


def _dataset(workflow: Workflow) -> list[str]:
    """The prompts that are trained on, for a Training Run that names none."""
    for node in workflow.find(DATASET_NODE):
        inputs = fairness.inputs(workflow, node)
        return distinct(read_prompts(inputs["prompts"], inputs["file"], PRESET))
    raise ValueError("there are no prompts to evaluate. Fix: write evaluation_prompts on Training Run, one per line")


# --- what it came to --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """One reward before and after. `change`: over the pairs of prompt and seed, clustered by prompt. `by_chance`: its p, by
    Holm's correction for the number of trained rewards, or of held-out ones."""

    name: str
    held_out: bool
    before: float
    after: float
    change: Interval
    by_chance: float

    def __str__(self) -> str:
        return f"{self.name} {plus_minus(self.change, '+.3g')}"

    @property
    def direction(self) -> int:
        """1: it rose, -1: it fell, 0: that cannot be told from chance."""
        sure = self.by_chance < _MOST_BY_CHANCE
        return 0 if not sure else 1 if self.change.mean > 0 else -1


def changes(evaluations: Sequence[Mapping]) -> list[Change]:
    """From the first to the last evaluation; empty if they cannot be compared, or there are not two."""
    if len(evaluations) < 2 or not comparable(evaluations[0], evaluations[-1]):
        return []
    first, last = evaluations[0], evaluations[-1]
    rows = []
    for held_out in (False, True):
        names = [name for name, figures in first["rewards"].items() if figures["held_out"] is held_out]
        values = [changes_by_pair(first, last, name) for name in names]
        intervals = [clustered(own, by_prompt(first.get("prompts"), len(own))) for own in values]
        for name, interval, p in zip(names, intervals, holm([test.p for test in intervals]), strict=True):
            means = [row["rewards"][name]["mean"] for row in (first, last)]
            before, after = (mean if measured(mean) else math.nan for mean in means)
            rows.append(Change(name, held_out, before, after, interval, p))
    return rows


def verdict(found: Sequence[Change], iterations: int) -> list[str]:
    """Sentences for a person, the first of which is the verdict on the trained rewards, after so many iterations."""
    trained = [change for change in found if not change.held_out]
    if not trained:
        return ["No verdict: there are not two evaluations of a trained reward that can be compared."]
    rose, fell = ([change for change in trained if change.direction == sign] for sign in (1, -1))
    listed = ", ".join(map(str, trained))
    open_ = [change for change in trained if not change.direction]
    if rose:
        lines = [f"It learned: {', '.join(map(str, rose))} (± is 95 %)."]
        lines += [f"Not more than chance: {', '.join(map(str, open_))}."] * bool(open_)
    elif fell:
        lines = ["It got worse: no trained reward rose."]
    elif all(math.isnan(change.change.low) for change in trained):
        lines = [f"No verdict: too few prompts to say how sure a change is ({listed})."]
    elif iterations < _FEW:
        lines = [f"No verdict: {iterations} iterations are too few to tell ({listed})."]
    elif all(change.change.low <= 0 <= change.change.high for change in trained):
        lines = [f"Nothing was learned: the interval includes 0 ({listed})."]
    else:
        lines = [f"Nothing was learned that is sure: of {len(trained)} rewards one moves so far by chance ({listed})."]
    if fell:
        lines.append(f"Trained rewards that fell: {', '.join(map(str, fell))}.")
    ends = {
        1: "rose too, so what was learned is not only what was trained on",
        -1: "fell, so the trained rewards may have been tricked",
        0: "did not change by more than chance",
    }
    lines += [f"Held out: {change}: it {ends[change.direction]}." for change in found if change.held_out]
    return lines


# --- where ------------------------------------------------------------------------------------------------------------


def hardware() -> dict[str, str]:
    """This machine in words; nothing that says which one it is."""
    import psutil
    import torch

    memory, cores = psutil.virtual_memory().total, psutil.cpu_count() or 1
    facts = {
        "CPU": f"{platform.processor() or platform.machine()}, {cores} cores",
        "main memory": f"{memory / 1e9:.1f} GB",
    }
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        bfloat16 = "" if torch.cuda.is_bf16_supported(including_emulation=False) else ", without bfloat16"
        facts[f"GPU {number}"] = f"{about.name}, {about.total_memory / 1e9:.1f} GB{bfloat16}"
    return facts | {"system": f"{platform.system()}, {platform.machine()}"}


def versions() -> dict[str, str]:
    """The versions of what computes."""
    from ..host import comfyui

    installed = {name: extras.installed(name) for name in ("torch", "transformers", "diffusers", "peft")}
    names = {"Python": platform.python_version(), **{name: version for name, version in installed.items() if version}}
    if comfyui.comfy_loaded():
        import comfyui_version

        names["ComfyUI"] = comfyui_version.__version__
    return names
