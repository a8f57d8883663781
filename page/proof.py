"""The page of `otca prove`, and the folder with it that a person can attach to an issue.

It holds nothing of this machine but what it is made of: a graph as a bundle would have it, and texts without paths.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bundle import contents, making, packages
from ..host.files import write_text
from ..study import prove
from ..study.prove import Change, Facts
from ..study.statistics import bracketed, number
from ..trainer.pictures import grids
from ..trainer.run import budget, status
from ..trainer.run.folder import EVALUATIONS, METRICS, SAMPLES, WORKFLOW, Say, json_line, read_lines
from ..trainer.run.verdicts import comparable
from ..trainer.types import RUN_NODE
from ..trainer.workflow.running import NodeError, Workflow
from . import run_page

if TYPE_CHECKING:
    from PIL.Image import Image

FOLDER, PAGE = "proof", "proof.html"
_PAIRS, _WIDTH = 12, 480  # pictures before and after, and the pixels of each
_WHEN = "before", "after"
_STANDS = {1: ("finished", "it learned"), -1: ("failed", "it got worse"), 0: ("unknown", "nothing was learned")}
_FOLDERS = re.compile(r"(?<![\w/\\:.])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\"]+[/\\])+")


def make(workflow: Workflow, folder: Path, hours: float, pictures: int, say: Say) -> int:
    """Proves a workflow, and writes what it came to into `folder`/FOLDER, be the training finished, stopped or failed.

    Returns:
        The exit code of the training.

    Raises:
        WorkflowError: a graph with a key or a path in it, which must not be passed on; before anything is trained.
        NodeError, RunError, ValueError: as `prove.prove`.
    """
    workflow = passed_on(workflow)
    try:
        code = prove.prove(workflow, folder, hours, making.memory, pictures, say)
    except NodeError as error:
        write(workflow, folder, str(error))
        raise
    for line in write(workflow, folder):
        say(line)
    return code


def passed_on(workflow: Workflow) -> Workflow:
    """The workflow as others may have it. Raises WorkflowError: there is a key or a path in it, which must not be passed on."""
    workflow = contents.begun_from_runs(workflow)
    contents.collect(workflow)
    return workflow


def write(workflow: Workflow, folder: Path, error: str = "") -> list[str]:
    """Writes the folder to attach; returns the verdict, and where it is. `error`: that ended the training."""
    target, facts = folder / FOLDER, prove.facts(folder)
    rows = {name: read_lines(folder / name) for name in (METRICS, EVALUATIONS)}
    changes = prove.changes(rows[EVALUATIONS])
    collected = contents.collect(workflow)
    graph, files = collected.graph, [model.name for model in collected.models]
    target.mkdir(parents=True, exist_ok=True)
    facts.memory, facts.model = map(without_folders, (facts.memory, facts.model))
    for name, lines in rows.items():
        write_text(target / name, "".join(map(json_line, lines)))
    write_text(target / WORKFLOW, json.dumps(graph, indent=1, ensure_ascii=False))
    verdict = prove.verdict(changes, len(rows[METRICS]))
    write_text(
        target / prove.FACTS, json_line({"verdict": verdict, **asdict(facts), "changes": list(map(asdict, changes))})
    )
    stands, limit = status.read(folder), budget.read(folder)
    if limit is not None and stands.reason == limit.spent:
        stands = replace(stands, reason=None)  # which is how a proof should end
    texts = [error, *run_page.warnings(rows[METRICS], rows[EVALUATIONS], stands)]
    shown = [
        (
            prompt,
            [run_page.in_page(image, f"{when}: {prompt}", _WIDTH) for image, when in zip(both, _WHEN, strict=True)],
        )
        for prompt, *both in pairs(folder / SAMPLES, rows[EVALUATIONS], _PAIRS)
    ]
    html = run_page.rendered(
        "proof.html",
        **_head(graph, changes, verdict, facts),
        warnings=filter(None, dict.fromkeys(map(without_folders, texts))),
        **_changes(changes, rows[EVALUATIONS]),
        pairs=shown,
        machine=_machine(facts, files),
        phases=_phases(facts, rows[METRICS], rows[EVALUATIONS]),
        **run_page.parts(rows[METRICS], rows[EVALUATIONS], [], {}, graph, workflow.node_classes),
    )
    write_text(target / PAGE, html)
    return [*verdict, f"{target / PAGE}, in a folder that you can attach to an issue"]


def without_folders(text: str) -> str:
    """A message without the folders of this machine: of each path its last name is left."""
    return _FOLDERS.sub("", text)


# --- the page ---------------------------------------------------------------------------------------------------------


def _head(
    graph: Mapping[str, Mapping], found: Sequence[Change], verdict: Sequence[str], known: Facts
) -> dict[str, Any]:
    name = next(entry["inputs"]["run_name"] for entry in graph.values() if entry["class_type"] == RUN_NODE)
    directions = {change.direction for change in found if not change.held_out}
    is_known = directions and not verdict[0].startswith("No verdict")
    kind, word = _STANDS[1 if 1 in directions else min(directions, default=0)] if is_known else ("unknown", "open")
    facts = [f"{known.hours:g} hours were given", f"page made {time.strftime('%Y-%m-%d %H:%M')}"]
    return {"title": f"Proof of {name}", "status": kind, "word": word, "facts": facts, "verdict": verdict}


def _changes(found: Sequence[Change], evaluations: Sequence[Mapping]) -> dict[str, Any]:
    lines = [
        (
            f"{change.name}{' (held out)' if change.held_out else ''}",
            number(change.before, ".3g", "–"),
            number(change.after, ".3g", "–"),
            bracketed(change.change, "+.3g", "–").replace("**", ""),
            "< 0.001" if change.by_chance < 0.001 else number(change.by_chance, ".3f", "–"),
        )
        for change in found
    ]
    prompts = len(set(evaluations[0].get("prompts") or ())) if found else 0
    compared = (
        f"{found[0].change.count if found else 0} pictures of {prompts} prompts, each from a noise of its own, and the same "
        "noises before and after. In brackets the 95 % interval, clustered by prompt; p is corrected for the number of rewards "
        "(Holm)."
    )
    return {"changes": lines, "compared": compared}


def pairs(samples: Path, evaluations: Sequence[Mapping], most: int) -> list[tuple[str, Image, Image]]:
    """Prompts, and pictures of the same noise, cut out of the sheets of the first and of the last evaluation in that folder.

    Empty if there are not two evaluations, or a sheet is gone.
    """
    if len(evaluations) < 2 or not evaluations[0]["rewards"] or not comparable(evaluations[0], evaluations[-1]):
        return []
    prompts, sheets = evaluations[0].get("prompts") or [""], []
    count = len(next(iter(evaluations[0]["rewards"].values()))["values"])
    captions = [prompts[i % len(prompts)] for i in range(min(count, grids.MOST_SHOWN))]
    for row in (evaluations[0], evaluations[-1]):
        image = run_page.opened(samples / f"{row['iteration']:06d}.png")
        layout = grids.found_in(image.size, captions) if image else None
        if image is None or layout is None:
            return []
        boxes = [layout.box(i) for i in range(len(captions))]
        sheets.append([image.crop((x, y, x + width, y + height)) for x, y, width, height in boxes])
    return list(zip(captions, *sheets, strict=True))[:: -(-len(captions) // most)]


def _machine(known: Facts, files: Sequence[str]) -> list[tuple[str, str]]:
    versions = {"otca": packages.version(), **known.versions}
    return [
        ("model", known.model),
        ("files", ", ".join(files) or "only what comes with the pack"),
        *known.hardware.items(),
        ("versions", ", ".join(f"{name} {v}" for name, v in versions.items())),
        ("estimate", known.memory or "–"),
        *((f"peak, {name}", f"{size / 1e9:.1f} GB") for name, size in known.peaks.items()),
    ]


def _phases(known: Facts, history: Sequence[Mapping], evaluations: Sequence[Mapping]) -> list[tuple[str, str, str]]:
    phases = dict(known.seconds)
    took = [row.get(budget.EVALUATED) or 0.0 for row in evaluations]
    names = ["evaluating before", *["evaluating between"] * (len(took) - 2), "evaluating after"]
    for name, seconds in zip(names, took, strict=False):
        phases[name] = phases.get(name, 0.0) + seconds
    phases[f"training, {len(history)} iterations"] = sum(row.get(budget.USED) or 0.0 for row in history)
    total = sum(phases.values())
    lines = [
        (name, run_page.duration(seconds), f"{seconds / max(total, 1e-9):.0%}") for name, seconds in phases.items()
    ]
    return [*lines, ("all", run_page.duration(total), "")]
