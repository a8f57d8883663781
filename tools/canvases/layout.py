"""Where the nodes of a workflow stand: columns from left to right in the order of the method, so that links run to the right.

    note | loaders | model, prompts | sampling | rewards | stack over credit | fusion, update over the run | before and after

Sizes are what each node needs in Nodes 2.0, whose rows are the taller ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...nodes import NODE_CLASS_MAPPINGS
from ...trainer.types import MODEL_NODES, PAIRS_NODE, SAMPLER_NODE

NOTE, PREVIEW, REWARDS = "MarkdownNote", "PreviewImage", "subgraph of rewards"
STACK, RUN, TUNED, SAVE = "OTCA_RewardStack", "OTCA_TrainingRun", "OTCA_TunedModel", "OTCA_SaveLoRA"

TITLE = 30  # of a node, above its place
BETWEEN, GUTTER = 36, 48  # between two nodes of a column, and between columns
NARROW, WIDE = 40, 64  # between columns, where few links run; and where those of samples and rewards cross
LOWEST = 1000  # a column that would reach below this continues in another
LONG_NOTE = 600  # characters; a longer note has a column of its own

# Widths by stage.
WIDTHS = {"note": 340, "loaders": 290, "model": 262, "sampling": 248, "rewards": 264, "credit": 374, "after": 264}
FUSION, UPDATE = 254, 254
# What shows more when it is higher: from its least height up to so much, where its column has room.
SPREAD = (RUN, NOTE)  # these are measured at a width that is not their column's
STRETCH = {PREVIEW: 380, STACK: 400, RUN: 620, NOTE: 960}

# Our stages; what is not here is named by its category.
STAGE_OF = {TUNED: "after", SAMPLER_NODE: "sampling", PAIRS_NODE: "sampling"}
# ComfyUI's own nodes that load or prepare a model; all others belong to the pictures before and after.
LOADERS = {"UNETLoader", "CLIPLoader", "DualCLIPLoader", "VAELoader", "ModelSamplingAuraFlow", "ModelSamplingSD3"}
SAMPLED = ("VAEDecode", "ImageScaleBy", "KSampler", "KSamplerAdvanced")  # what leads to a picture of the last columns


@dataclass(frozen=True)
class Box:
    """Place and size of a node's body, in units of the canvas; its title stands above."""

    x: float
    y: float
    width: float
    height: float

    @property
    def rect(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom, with the title."""
        return self.x, self.y - TITLE, self.x + self.width, self.y + self.height


@dataclass
class Column:
    """Nodes that stand below each other."""

    width: float
    ids: list[int]
    gutter: float = GUTTER  # to the next one


def layout(kinds: Mapping[int, str], api: Mapping[str, Mapping], sizes: Mapping[int, Sequence[float]], long_note: bool):
    """{node number: Box}. `kinds` has the class of each node, with preview, note and subgraph; `sizes` the room it needs."""
    return _Layout(kinds, api, sizes).place(long_note)


def stage(kind: str) -> str:
    """The stage that a node belongs to: loaders, model, sampling, rewards, credit, fusion, training or after."""
    if kind in LOADERS:
        return "loaders"
    if kind == REWARDS:
        return "rewards"
    if kind not in NODE_CLASS_MAPPINGS:
        return "after"
    named = NODE_CLASS_MAPPINGS[kind].CATEGORY.split("/")[-1]
    return STAGE_OF.get(kind, "model" if named == "data" else named)


class _Layout:
    def __init__(self, kinds: Mapping[int, str], api: Mapping[str, Mapping], sizes: Mapping[int, Sequence[float]]):
        self.kinds = kinds
        self.api = api
        self.heights = {id: height for id, (_, height) in sizes.items()}
        self.widths = {id: width for id, (width, _) in sizes.items()}
        self.preview = max(id for id, kind in kinds.items() if kind == PREVIEW)
        self.notes = [id for id, kind in kinds.items() if kind == NOTE]
        self.stages: dict[str, list[int]] = {}
        for id, kind in kinds.items():
            if id not in (self.preview, *self.notes):
                self.stages.setdefault(stage(kind), []).append(id)

    def place(self, long_note: bool) -> dict[int, Box]:
        places: dict[int, Box] = {}
        x = 0.0
        for column in self._columns(long_note):
            x = self._below_each_other(column, x, places) + column.gutter
        x = self._training(x, places)
        for column in self._after():
            x = self._below_each_other(column, x + GUTTER, places)
        return places

    def _columns(self, long_note: bool) -> Iterable[Column]:
        """All before the fusion."""
        if long_note:
            yield Column(WIDTHS["note"], self.notes)
        # What loads and what only serves a loader stands left of the node that it leads to.
        model = self.stages.get("model", [])
        first = [id for id in model if self.kinds[id] in MODEL_NODES or stage_of_data(self.kinds[id])]
        helpers = [id for id in model if id not in first]
        yield from self._split(WIDTHS["loaders"], [*self.stages.get("loaders", []), *helpers])
        yield from self._split(WIDTHS["model"], [*first, *([] if long_note else self.notes)], NARROW)
        sampling = [*self.stages.get("sampling", [])]
        stacks = [id for id in self.stages.get("rewards", []) if self.kinds[id] == STACK]
        rewards = [id for id in self.stages.get("rewards", []) if id not in stacks]
        if any(self.kinds[id] == REWARDS for id in rewards):
            sampling, rewards = [*sampling, *rewards], []
        if not stacks:  # rewards go to the pairs, which stand where samples would
            yield from self._split(WIDTHS["rewards"], rewards)
        yield from self._split(WIDTHS["sampling"], [*sampling, self.preview], WIDE)
        if stacks:
            yield from self._split(WIDTHS["rewards"], rewards)
            yield from self._split(WIDTHS["credit"], [*stacks, *self.stages.get("credit", [])])

    def _split(self, width: float, ids: Sequence[int], gutter: float = GUTTER) -> Iterable[Column]:
        """Columns of nodes, none of which reaches below the lowest place."""
        column: list[int] = []
        for id in ids:
            if column and self._total([*column, id]) > LOWEST:
                yield Column(width, column, gutter)
                column = []
            column.append(id)
        if column:
            yield Column(width, column, gutter)

    def _total(self, ids: Sequence[int]) -> float:
        return sum(self.heights[id] + TITLE for id in ids) + BETWEEN * (len(ids) - 1)

    def _below_each_other(self, column: Column, x: float, places: dict[int, Box], top: float = 0) -> float:
        """Places a column, with what shows more stretched; returns where it ends to the right."""
        width = max([column.width, *(self.widths[id] for id in column.ids if self.kinds[id] not in SPREAD)])
        spare = LOWEST - top - self._total(column.ids)
        y = top + TITLE
        for id in column.ids:
            height = self.heights[id]
            more = max(0, min(spare, STRETCH.get(self.kinds[id], height) - height))
            spare -= more
            places[id] = Box(x, y, width, height + more)
            y += height + more + BETWEEN + TITLE
        return x + width

    def _training(self, x: float, places: dict[int, Box]) -> float:
        """Fusion and update beside each other over the run; returns where they end to the right."""
        kinds = self.kinds
        steps = [id for id in self.stages["training"] if kinds[id] not in (RUN, SAVE)]
        run, saves = (next(id for id in self.stages["training"] if kinds[id] == kind) for kind in (RUN, SAVE))
        fusion = self.stages.get("fusion", [])
        wide = [id for id in fusion if self.heights[id] > 450]  # with a heatmap of its own
        for id in wide:
            x = self._below_each_other(Column(WIDTHS["credit"], [id]), x, places) + GUTTER
        left = [*(id for id in fusion if id not in wide), saves]
        right = self._below_each_other(Column(FUSION, left), x, places) + NARROW
        right = self._below_each_other(Column(UPDATE, steps), right, places)
        below = max(places[id].rect[3] for id in (*left, *steps)) + BETWEEN + 24
        height = min(max(self.heights[run], LOWEST - below - TITLE), STRETCH[RUN])
        places[run] = Box(x, below + TITLE, right - x, height)
        return right

    def _after(self) -> Iterable[Column]:
        """What the pictures before and after share, then for each what samples, decodes and shows it.

        Of two pictures Tuned Model stands above the one that it serves, and the prompt above the other.
        """
        ids = self.stages.get("after", [])
        if not ids:
            return
        branches = []
        for id, node in self.api.items():
            if node["class_type"] == PREVIEW:
                branch = [id]
                while source := next((one for one in links(self.api[branch[0]]) if self._samples(one)), None):
                    branch.insert(0, source)
                branches.append([int(id) for id in branch])
        if len(branches) == 2:
            tops = [next(id for id in ids if self.kinds[id] == kind) for kind in ("CLIPTextEncode", TUNED)]
            branches = [[top, *branch] for top, branch in zip(tops, branches, strict=True)]
        shared = [id for id in ids if not any(id in branch for branch in branches)]
        for branch in (shared, *branches):
            yield from self._split(WIDTHS["after"], branch)

    def _samples(self, id: str) -> bool:
        return self.api[id]["class_type"] in SAMPLED


def stage_of_data(kind: str) -> bool:
    """Whether a node gives prompts."""
    return kind in NODE_CLASS_MAPPINGS and NODE_CLASS_MAPPINGS[kind].CATEGORY == "OTCA/data"


def links(entry: Mapping) -> list[str]:
    """The nodes that an entry of an API graph takes something from."""
    return [value[0] for value in entry["inputs"].values() if isinstance(value, list)]


def shifted(places: Mapping[int, Box], down: float) -> dict[int, Box]:
    """The same places further down."""
    return {id: replace(box, y=box.y + down) for id, box in places.items()}
