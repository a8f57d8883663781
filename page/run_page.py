"""`otca report`: one run as one HTML page that holds all it shows, and fetches nothing."""

from __future__ import annotations

import base64
import io
import json
import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..host import extras, paths
from ..host.extras import MissingPackage
from ..host.files import read_bytes, write_text
from ..trainer import keys
from ..trainer.pictures import figures, heatmaps
from ..trainer.pictures.media import upright
from ..trainer.run import status, verdicts
from ..trainer.run.folder import (
    BEST,
    BEST_FIGURES,
    EVALUATIONS,
    METRICS,
    SAMPLES,
    WORKFLOW,
    RunError,
    read_changes,
    read_lines,
    read_own,
)
from ..trainer.run.verdicts import comparable, measured
from ..trainer.workflow import graph, lineage
from ..trainer.workflow.declared import read_node

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)

MOST_SAMPLES = 6  # grids of evaluations, evenly spread
MOST_PIXELS = 1600  # of a picture's width
PHASES = ("rollout", "reward", "credit", "update")


def write(folder: Path, output: Path | None, node_classes: Mapping[str, type]) -> Path:
    """Writes the page of a run, by default into its folder, and returns where it is."""
    path = output or folder / "report.html"
    write_text(path, page(folder, node_classes))
    return path


def page(folder: Path, node_classes: Mapping[str, type]) -> str:
    """The HTML of a run as it stands.

    `node_classes`: by which the settings are compared with the nodes' defaults.

    Raises:
        RunError: that folder does not hold a run.
    """
    if not (folder / WORKFLOW).is_file() or (workflow := read_own(folder, WORKFLOW)) is None:
        raise RunError(f"{folder} holds no run. Fix: give the folder that has its {WORKFLOW}")
    history, evaluations = read_lines(folder / METRICS), read_lines(folder / EVALUATIONS)
    changes, written = read_changes(folder), status.read(folder)
    best = read_own(folder / BEST, BEST_FIGURES) or {}
    return rendered(
        "run.html",
        title=folder.resolve().name,
        **_stands(folder, history, written, graph.planned_iterations(workflow)),
        warnings=warnings(history, evaluations, written),
        changes=[(row["iteration"], lineage.change_line(change)) for row in changes for change in row["changes"]],
        **_pictures(folder),
        credit=_credit(history),
        **parts(history, evaluations, [row["iteration"] for row in changes], best, workflow, node_classes),
    )


def rendered(template: str, **values: Any) -> str:
    """The page of a template in assets/pages/, where no text becomes markup."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    look = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    return Environment(loader=FileSystemLoader(paths.ASSETS / "pages"), **look).get_template(template).render(values)


def parts(
    history: Sequence[Mapping],
    evaluations: Sequence[Mapping],
    changed: Sequence[int],
    best: Mapping,
    workflow: Mapping[str, Mapping],
    node_classes: Mapping[str, type],
) -> dict[str, Any]:
    """Values for those macros of parts.html that each page of a training has; None where there is nothing to show."""
    return {
        "curves": curves(history, evaluations, changed),
        "evaluations": evaluation_table(evaluations, best) if evaluations else None,
        "times": time_table([row for row in history if measured(row.get("seconds/iteration"))]),  # none that was lost
        "workflow": workflow_cards(workflow, node_classes),
    }


# --- how it stands ----------------------------------------------------------------------------------------------------


def _stands(folder: Path, history: Sequence[Mapping], written: status.Status, planned: int | None) -> dict[str, Any]:
    done, total = (history[-1]["iteration"] if history else 0), written.total or planned
    facts = [f"iteration {done}{f' of {total}' if total else ''}"]
    if written.started:
        facts.append(f"begun {time.strftime('%Y-%m-%d %H:%M', time.localtime(written.started))}")
    facts.append(f"page made {time.strftime('%Y-%m-%d %H:%M')}")
    return {"status": status.now(folder, written, done=done, planned=total), "facts": facts}


def warnings(history: Sequence[Mapping], evaluations: Sequence[Mapping], written: status.Status) -> list[str]:
    """The warnings of a run for a person: an error, a brake, a warning."""
    texts = [written.error, written.reason, *verdicts.warnings(history, evaluations).values()]
    if warned := [row["iteration"] for row in history if row.get(keys.HACKING)]:
        texts.append(
            f"Warnings of reward hacking: in {len(warned)} of {len(history)} iterations, from {warned[0]} to {warned[-1]}."
        )
    if masked := sum(row.get("groups/masked_samples") or 0 for row in history):
        texts.append(f"{masked:.0f} samples were left out, since a reward could not score them.")
    return list(filter(None, texts))


# --- rewards ----------------------------------------------------------------------------------------------------------


def curves(history: Sequence[Mapping], evaluations: Sequence[Mapping], changed: Sequence[int]) -> dict[str, Any]:
    if not history:
        return {"drawn": [], "note": "No iteration is on record yet."}
    try:
        drawn = [
            figures.svg(lambda panel=panel: figures.curves_figure(history, evaluations, [panel], changed))
            for panel in figures.panels(history, evaluations)
        ]
    except MissingPackage as missing:
        return {"drawn": [], "note": str(missing)}
    note = (
        "Thin: an iteration's mean, which jumps with its prompts. Thick: running mean. Dots: fixed prompts and seeds."
    )
    return {"drawn": drawn, "note": note + (" Dotted: a value was changed." if changed else "")}


def evaluation_table(evaluations: Sequence[Mapping], best: Mapping) -> dict[str, Any]:
    """Means and standard errors, and beneath each how far it has come since the first, in standard deviations there."""
    first = min(evaluations, key=lambda row: row["iteration"])
    held_out = {name: figures["held_out"] for row in evaluations for name, figures in row["rewards"].items()}
    rows = [
        {
            "iteration": row["iteration"],
            "is_best": row["iteration"] == best.get("iteration"),
            "figures": [_figure(first, row, name) for name in held_out],
        }
        for row in evaluations
    ]
    pairs = max((len(figures["values"]) for figures in first["rewards"].values()), default=0)
    caption = (
        f"Mean ± standard error over {pairs} pairs of prompt and seed; below, the change since iteration {first['iteration']} in "
        "standard deviations of that evaluation, coloured beyond two standard errors."
    )
    if best:
        caption += f" ★ best by {best['metric']} ({best['value']:.4g}): its adapter is in {BEST}/."
    names = [f"{name}{' (held out)' if out else ''}" for name, out in held_out.items()]
    return {"names": names, "rows": rows, "caption": caption}


def _figure(first: Mapping, row: Mapping, name: str) -> tuple[str, str, str]:
    """(mean and standard error, the tone of the change, the change or "")."""
    figures, before = row["rewards"].get(name), first["rewards"].get(name)
    if figures is None or not measured(figures["mean"]):
        return "–", "", ""
    mean, error = figures["mean"], figures["standard_error"]
    # Two digits of the error, and as many of the mean.
    decimals = max(0, 1 - math.floor(math.log10(error))) if error else 4
    shown = f"{mean:.{decimals}f} ± {error:.{decimals}f}"
    if row is first or not comparable(first, row) or not measured(before["mean"]) or not before["std"]:
        return shown, "", ""
    change, of_change = verdicts.change(first, row, name)
    beyond = abs(change) > 2 * of_change
    tone = ("up" if change > 0 else "down") if beyond else "quiet"
    return shown, tone, f"{change / before['std']:+.2f}"


# --- pictures ---------------------------------------------------------------------------------------------------------


def _pictures(folder: Path) -> dict[str, Any]:
    grids = sorted((p for p in (folder / SAMPLES).glob("*.png") if p.stem.isdecimal()), key=lambda p: int(p.stem))
    count = min(MOST_SAMPLES, len(grids))
    chosen = [grids[round(i * (len(grids) - 1) / max(1, count - 1))] for i in range(count)]
    over_time = [_picture(path, f"Evaluation at iteration {int(path.stem)}.") for path in chosen]
    both = _picture(folder / "samples.png", "Before training and at the last evaluation: the same prompts and seeds.")
    return {"both": both, "over_time": list(filter(None, over_time)), "grids": len(grids)}


def _picture(path: Path, words: str) -> dict[str, str] | None:
    image = opened(path) if path.exists() else None
    return in_page(image, words) if image else None


def opened(path: Path) -> Image | None:
    """A picture of a run; None, with a line in the log, if it cannot be shown."""
    try:
        return upright(read_bytes(path) or b"")
    except ValueError as error:
        logger.warning("%s cannot be shown, and is left out (%s)", path, error)
        return None


def in_page(image: Image, words: str, most: int = MOST_PIXELS) -> dict[str, str]:
    """A picture for a page that holds it, at most so many pixels wide. `words`: for who does not see it."""
    image.thumbnail((most, 100 * most))
    with io.BytesIO() as content:
        image.save(content, "JPEG", quality=88, subsampling=0)
        return {"data": base64.b64encode(content.getvalue()).decode(), "words": words}


# --- credit and time --------------------------------------------------------------------------------------------------


def _credit(history: Sequence[Mapping]) -> str:
    steps = heatmaps.credit_steps(history)
    if not steps or extras.wrong("", "plots", "matplotlib"):  # which the curves have said
        return ""
    return figures.svg(lambda: heatmaps.credit_figure(history, steps, [f"step {step}" for step in steps]))


def time_table(history: Sequence[Mapping]) -> dict[str, Any] | None:
    """Where the seconds went: phases, and within the rewards' each of them."""
    if not history:
        return None
    whole = sum(_seconds(history, "iteration"))
    rewards = [f"reward/{name}" for name in keys.timed_rewards(history[-1])]
    after = PHASES.index("reward") + 1
    rows = []
    for phase in (*PHASES[:after], *rewards, *PHASES[after:]):
        seconds = _seconds(history, phase)
        share = f"{sum(seconds) / max(whole, 1e-9):.1%}"
        rows.append((phase.replace("/", ": "), f"{statistics.median(seconds):.3g} s", share))
    rate = statistics.median(row.get("samples_per_second") or 0.0 for row in history)
    caption = (
        f"{duration(whole)} in {len(history)} iterations, {rate:.3g} samples a second; evaluations and checkpoints are not "
        "counted. Medians of an iteration, and shares of all."
    )
    return {"rows": rows, "caption": caption}


def _seconds(history: Sequence[Mapping], phase: str) -> list[float]:
    return [row.get(f"seconds/{phase}") or 0.0 for row in history]


def duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds:.0f} s"


# --- the workflow -----------------------------------------------------------------------------------------------------


def workflow_cards(workflow: Mapping[str, Mapping], node_classes: Mapping[str, type]) -> dict[str, Any]:
    """Every node with its values, and the graph itself."""
    cards = []
    for node, entry in workflow.items():
        cls = node_classes.get(entry["class_type"])
        declared = read_node(node, entry, cls).declared if cls is not None else {}
        defaults = {name: d.options.get("default", (d.choices or [None])[0]) for name, d in declared.items()}
        values = [
            (
                name,
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
                defaults.get(name) not in (None, value),
            )
            for name, value in graph.constants(entry).items()
        ]
        cards.append((graph.title(entry), node, values))
    return {"cards": cards, "code": json.dumps(workflow, indent=1, ensure_ascii=False)}
