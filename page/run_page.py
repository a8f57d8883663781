"""`otca report`: one run as one HTML page that holds all it shows, and fetches nothing."""

from __future__ import annotations

import base64
import io
import json
import logging
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

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
    history = read_lines(folder / METRICS)
    evaluations = read_lines(folder / EVALUATIONS)
    changes = read_changes(folder)
    stands, best = status.read(folder), read_own(folder / BEST, BEST_FIGURES) or {}
    warned = [f'<p class="warning">{escape(text)}</p>' for text in warnings(history, evaluations, stands)]
    lines = [
        f"<tr><td>{row['iteration']}</td><td>{escape(lineage.change_line(change))}</td></tr>"
        for row in changes
        for change in row["changes"]
    ]
    changed = f'<div class="card wide">{table(("from iteration", "change"), lines)}</div>' if lines else ""
    body = [
        _head(folder, history, stands, graph.planned_iterations(workflow)),
        *warned,
        section("Rewards", curves(history, evaluations, [row["iteration"] for row in changes])),
        section("Changes", changed),
        section("Evaluations", evaluation_table(evaluations, best)),
        section("Pictures", _pictures(folder)),
        section("Credit over time", _credit(history)),
        section("Time", time_table(history)),
        section("Workflow", workflow_cards(workflow, node_classes)),
    ]
    return whole(folder.resolve().name, body)


def whole(title: str, body: Iterable[str]) -> str:
    """The page of that title, of these parts."""
    template = (paths.ASSETS / "report.html").read_text(encoding="utf-8")
    return Template(template).substitute(title=escape(title), body="\n".join(filter(None, body)))


def card(content: str, caption: str = "", kind: str = "wide") -> str:
    shown = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="card"><div class="{kind}">{content}</div>{shown}</figure>'


def table(heads: Iterable[str], lines: Iterable[str]) -> str:
    """A table of lines of HTML; the heads are text."""
    return f"<table><tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>{''.join(lines)}</table>"


def section(heading: str, content: str) -> str:
    return f"<section><h2>{heading}</h2>\n{content}</section>" if content else ""


# --- how it stands ----------------------------------------------------------------------------------------------------


def _head(folder: Path, history: Sequence[Mapping], written: status.Status, planned: int | None) -> str:
    done, total = (history[-1]["iteration"] if history else 0), written.total or planned
    stands = status.now(folder, written, done=done, planned=total)
    facts = [f"iteration {done}{f' of {total}' if total else ''}"]
    if written.started:
        facts.append(f"begun {time.strftime('%Y-%m-%d %H:%M', time.localtime(written.started))}")
    facts.append(f"page made {time.strftime('%Y-%m-%d %H:%M')}")
    pill = f'<span class="status {escape(stands)}">{escape(stands)}</span>'
    return f'<h1>{escape(folder.resolve().name)} {pill}</h1>\n<p class="quiet">{" · ".join(facts)}</p>'


def warnings(history: Sequence[Mapping], evaluations: Sequence[Mapping], written: status.Status) -> list[str]:
    """The warnings of a run for a person: an error, a brake, a warning."""
    texts = [written.error, written.reason, *verdicts.warnings(history, evaluations).values()]
    warned = [row["iteration"] for row in history if row.get(keys.HACKING)]
    if warned:
        texts.append(
            f"Warnings of reward hacking: in {len(warned)} of {len(history)} iterations, from {warned[0]} to {warned[-1]}."
        )
    masked = sum(row.get("groups/masked_samples") or 0 for row in history)
    if masked:
        texts.append(f"{masked:.0f} samples were left out, since a reward could not score them.")
    return list(filter(None, texts))


# --- rewards ----------------------------------------------------------------------------------------------------------


def curves(history: Sequence[Mapping], evaluations: Sequence[Mapping], changed: Sequence[int]) -> str:
    if not history:
        return '<p class="quiet">No iteration is on record yet.</p>'
    try:
        drawn = [
            figures.svg(lambda panel=panel: figures.curves_figure(history, evaluations, [panel], changed))
            for panel in figures.panels(history, evaluations)
        ]
    except MissingPackage as missing:
        return f'<p class="quiet">{escape(str(missing))}</p>'
    caption = (
        "Thin: an iteration's mean, which jumps with its prompts. Thick: running mean. Dots: fixed prompts and seeds."
        + (" Dotted: a value was changed." if changed else "")
    )
    cards = "".join(f'<div class="card curve">{picture}</div>' for picture in drawn)
    return f'<div class="cards curves">{cards}</div><p class="quiet">{caption}</p>'


def evaluation_table(evaluations: Sequence[Mapping], best: Mapping) -> str:
    """Means and standard errors, and beneath each how far it has come since the first, in standard deviations there."""
    if not evaluations:
        return ""
    first = min(evaluations, key=lambda row: row["iteration"])
    held_out = {name: figures["held_out"] for row in evaluations for name, figures in row["rewards"].items()}
    heads = [f"{name}{' (held out)' if out else ''}" for name, out in held_out.items()]
    lines = []
    for row in evaluations:
        cells = "".join(f'<td class="nowrap">{_figure(first, row, name)}</td>' for name in held_out)
        is_best = row["iteration"] == best.get("iteration")
        lines.append(
            f"<tr{' class=best' if is_best else ''}><td>{row['iteration']}{' ★' if is_best else ''}</td>{cells}</tr>"
        )
    pairs = max((len(figures["values"]) for figures in first["rewards"].values()), default=0)
    caption = f"Mean ± standard error over {pairs} pairs of prompt and seed; below, the change since iteration "
    caption += f"{first['iteration']} in standard deviations of that evaluation, coloured beyond two standard errors."
    if best:
        caption += f" ★ best by {best['metric']} ({best['value']:.4g}): its adapter is in {BEST}/."
    return card(table(["iteration", *heads], lines), caption)


def _figure(first: Mapping, row: Mapping, name: str) -> str:
    figures, before = row["rewards"].get(name), first["rewards"].get(name)
    if figures is None or not measured(figures["mean"]):
        return "–"
    mean, error = figures["mean"], figures["standard_error"]
    # Two digits of the error, and as many of the mean.
    decimals = max(0, 1 - math.floor(math.log10(error))) if error else 4
    shown = f"{mean:.{decimals}f} ± {error:.{decimals}f}"
    if row is first or not comparable(first, row) or not measured(before["mean"]) or not before["std"]:
        return shown
    change, of_change = verdicts.change(first, row, name)
    beyond = abs(change) > 2 * of_change
    tone = ("up" if change > 0 else "down") if beyond else "quiet"
    return f'{shown}<br><span class="{tone}">{change / before["std"]:+.2f}</span>'


# --- pictures ---------------------------------------------------------------------------------------------------------


def _pictures(folder: Path) -> str:
    both = [(folder / "samples.png", "Before training and at the last evaluation: the same prompts and seeds.")]
    grids = sorted((p for p in (folder / SAMPLES).glob("*.png") if p.stem.isdecimal()), key=lambda p: int(p.stem))
    count = min(MOST_SAMPLES, len(grids))
    chosen = [grids[round(i * (len(grids) - 1) / max(1, count - 1))] for i in range(count)]
    over_time = [_picture(path, f"Evaluation at iteration {int(path.stem)}.") for path in chosen]
    pictures = [_picture(path, caption) for path, caption in both if path.is_file()]
    if over_time:
        pictures.append(
            f"<details><summary>Over time: {count} of {len(grids)} evaluations</summary>{''.join(over_time)}</details>"
        )
    return "\n".join(pictures)


def _picture(path: Path, caption: str) -> str:
    image = opened(path)
    return card(in_page(image, caption), caption) if image else ""


def opened(path: Path) -> Image | None:
    """A picture of a run; None, with a line in the log, if it cannot be shown."""
    try:
        return upright(read_bytes(path) or b"")
    except ValueError as error:
        logger.warning("%s cannot be shown, and is left out (%s)", path, error)
        return None


def in_page(image: Image, words: str, most: int = MOST_PIXELS) -> str:
    """A picture as HTML that holds it, at most so many pixels wide. `words`: for who does not see it."""
    image.thumbnail((most, 100 * most))
    with io.BytesIO() as content:
        image.save(content, "JPEG", quality=88, subsampling=0)
        data = base64.b64encode(content.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{data}" alt="{escape(words)}">'


# --- credit and time --------------------------------------------------------------------------------------------------


def _credit(history: Sequence[Mapping]) -> str:
    steps = heatmaps.credit_steps(history)
    if not steps or extras.wrong("", "plots", "matplotlib"):  # which the curves have said
        return ""
    return card(figures.svg(lambda: heatmaps.credit_figure(history, steps, [f"step {step}" for step in steps])))


def time_table(history: Sequence[Mapping]) -> str:
    """Where the seconds went: phases, and within the rewards' each of them."""
    history = [row for row in history if measured(row.get("seconds/iteration"))]  # and none that was lost
    if not history:
        return ""
    whole = _seconds(history, "iteration")
    rewards = [f"reward/{name}" for name in keys.timed_rewards(history[-1])]
    phases: list[str] = list(PHASES)
    lines = []
    phases[phases.index("reward") + 1 : 0] = rewards
    for phase in phases:
        seconds = _seconds(history, phase)
        share = sum(seconds) / max(sum(whole), 1e-9)
        lines.append(
            f"<tr><td>{escape(phase.replace('/', ': '))}</td><td>{statistics.median(seconds):.3g} s</td><td>{share:.1%}</td>"
            f'<td style="width:40%"><span class="bar" style="width:{share:.1%}"></span></td></tr>'
        )
    rate = statistics.median(row.get("samples_per_second") or 0.0 for row in history)
    caption = (
        f"{duration(sum(whole))} in {len(history)} iterations, {rate:.3g} samples a second; evaluations and checkpoints are not "
        "counted. Medians of an iteration, and shares of all."
    )
    return card(table(("phase", "an iteration", "share", ""), lines), caption)


def _seconds(history: Sequence[Mapping], phase: str) -> list[float]:
    return [row.get(f"seconds/{phase}") or 0.0 for row in history]


def duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds:.0f} s"


# --- the workflow -----------------------------------------------------------------------------------------------------


def workflow_cards(workflow: Mapping[str, Mapping], node_classes: Mapping[str, type]) -> str:
    """Every node with its values, and the graph itself."""
    cards = []
    for node, entry in workflow.items():
        cls, lines = node_classes.get(entry["class_type"]), []
        declared = read_node(node, entry, cls).declared if cls is not None else {}
        defaults = {name: d.options.get("default", (d.choices or [None])[0]) for name, d in declared.items()}
        for name, value in graph.constants(entry).items():
            shown = escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            if defaults.get(name) not in (None, value):
                shown = f"<b>{shown}</b>"
            lines.append(f'<tr><td>{escape(name)}</td><td class="value"><div tabindex="0">{shown}</div></td></tr>')
        title = f"{escape(graph.title(entry))} <span class=quiet>{escape(node)}</span>"
        cards.append(f'<div class="card"><h3>{title}</h3><table>{"".join(lines)}</table></div>')
    code = escape(json.dumps(workflow, indent=1, ensure_ascii=False))
    return (
        f'<p class="quiet">Bold: not the node\'s default.</p><div class="cards">{"".join(cards)}</div>'
        f"<details><summary>In API form, as otca train reads it</summary><pre>{code}</pre></details>"
    )
