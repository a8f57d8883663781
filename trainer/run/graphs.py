"""The graph of a run: as the run began with it, and which of its values were changed since."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from ...host.files import write_text
from ..workflow import graph, lineage
from .folder import CANVAS, CHANGES, WORKFLOW, Lines, read_changes, read_own

logger = logging.getLogger(__name__)


class Graphs:
    """workflow.json, canvas.json and changes.jsonl.

    Attributes:
        workflow: the graph of the last iteration, in API form.
        canvas: the same as ComfyUI's canvas has it; None where that is not known.
        done: iterations before the one that `workflow` is the graph of.
        node: on the canvas: the id of the run's Training Run, since a graph may have several there; else None.
    """

    def __init__(self, folder: Path, workflow: Mapping, node: str | None, writes: bool, say: Callable[[str], None]):
        self.folder, self.workflow = folder, workflow
        self.canvas: Mapping | None = read_own(folder, CANVAS, say)
        self.changes = Lines(folder / CHANGES, read_changes(folder, say), writes)
        self.done = 0
        self.node = node

    def before(self) -> dict | None:
        """The graph on record; None where there is none."""
        return read_own(self.folder, WORKFLOW)

    def write(self) -> None:
        """Writes down the graph as the run began with it."""
        # On the canvas the seeds have moved on with every prompt; the training loop adds the number of the iteration to them.
        begun = lineage.as_begun(self.workflow, self.done) if self.node is not None else self.workflow
        write_text(self.folder / WORKFLOW, json.dumps(graph.resumable(begun), indent=1))
        if self.canvas is not None:
            write_text(self.folder / CANVAS, json.dumps(self.canvas, indent=1))

    def note_changes(self, before: Mapping, iteration: int) -> None:
        """Values that differ from those of the graph before are an event of the run; `iteration` is the first that has them."""
        changes = lineage.changes(before, self.workflow, self.node)
        if not changes:
            return
        lines = "; ".join(map(lineage.change_line, changes))
        logger.info("%s, from iteration %d on: %s", self.folder.name, iteration, lines)
        rows = self.changes.rows
        if rows and rows[-1]["iteration"] == iteration:
            changes = rows.pop()["changes"] + changes
        rows.append({"iteration": iteration, "changes": changes})
        if self.changes.writes and self.folder.is_dir():
            self.changes.write()
