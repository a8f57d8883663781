"""`python -m comfyui_otca.tools.canvases [NAME …]`: workflows/*.json and their pictures, from workflows/api/*.json.

Each graph is put together on the canvas of a real ComfyUI (found as the tests in tests/comfyui find it) with its note from
tools/notes, laid out by `layout`, its links led around nodes by `routes`, and saved as that ComfyUI saves it. Names are in
`templates`. Stock loaders get the addresses of their files from model_files.py. Needed whenever a node gains an input, since
saved canvases hold values by position.

    --run N         for the pictures of what needs no large model: iterations before they are taken (6)
    --no-picture    leave the pictures as they are
    --picture-only  leave the canvases as they are
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from ...nodes import NODE_CLASS_MAPPINGS
from ...tests.comfyui.canvas import BROWSER_OPTIONS, Canvas, chromium
from ...tests.comfyui.server import ComfyUI, installations
from ...trainer.types import PAIRS_NODE, SAMPLER_NODE
from ..blueprints import with_lasting_ids
from ..model_files import FILES, models_of
from . import page
from .layout import (
    FUSION,
    LONG_NOTE,
    NOTE,
    PREVIEW,
    REWARDS,
    RUN,
    SAVE,
    STACK,
    STRETCH,
    UPDATE,
    WIDTHS,
    Box,
    layout,
    stage,
)
from .pictures import picture
from .routes import Lanes
from .templates import TEMPLATES, Template
from .tour import around

# What gives the pictures of an iteration, and which of its outputs has them.
SHOWN = {SAMPLER_NODE: 1, PAIRS_NODE: 3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(TEMPLATES)
    parser.add_argument("names", nargs="*", metavar="NAME", default=names, help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--run", type=int, default=6)
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--no-picture", action="store_true")
    part.add_argument("--picture-only", action="store_true")
    options = parser.parse_args()
    comfyui = ComfyUI(installations()[-1], Path(tempfile.mkdtemp(prefix="otca-canvases-")))
    try:
        _pretend(comfyui.base / "models")
        comfyui.wait_until_up()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=BROWSER_OPTIONS)
            for name in options.names:
                making = Making(TEMPLATES[name])
                steps = () if options.picture_only else (("nodes2", making.measure), ("classic", making.save))
                for renderer, step in steps:
                    canvas = _page(browser, comfyui, renderer)
                    step(canvas)
                    canvas.page.close()
                if not options.no_picture:
                    canvas = _page(browser, comfyui, "classic")
                    picture(canvas, making.template, 0 if making.needs_files else options.run)
                    canvas.page.close()
    finally:
        comfyui.stop()


def _pretend(models: Path) -> None:
    """Empty files by the names that loaders have, which would be drawn as missing otherwise. Nothing loads them."""
    for folder, url in {file for files in FILES.values() for file in files}:
        (models / folder).mkdir(parents=True, exist_ok=True)
        (models / folder / url.rsplit("/", 1)[1]).touch()


def _page(browser: Browser, comfyui: ComfyUI, renderer: str) -> Canvas:
    canvas = Canvas(browser.new_page(viewport={"width": 2400, "height": 1350}), comfyui, renderer)
    canvas.page.evaluate("app.extensionManager.setting.set('LiteGraph.Canvas.MinFontSizeForLOD', 0)")
    return canvas


class Making:
    """A template on its way from the exported graph to the saved canvas."""

    def __init__(self, template: Template):
        self.template = template
        self.api = json.loads(template.api.read_text(encoding="utf-8"))
        self.kinds = {int(id): node["class_type"] for id, node in self.api.items()}
        self.rewards = []
        if template.rewards_inside:
            self.rewards = [id for id, kind in self.kinds.items() if stage(kind) == "rewards" and kind != STACK]
        last = max(self.kinds)
        self.added = {"preview": last + 1, "note": last + 2, "rewards": last + 3}
        self.notes = {last + 4 + index: text for index, text in enumerate(template.steps)}
        self.kinds = {id: kind for id, kind in self.kinds.items() if id not in self.rewards}
        self.kinds[self.added["preview"]] = PREVIEW
        if not self.notes:
            self.kinds[self.added["note"]] = NOTE
        if self.rewards:
            self.kinds[self.added["rewards"]] = REWARDS
        self.sizes: dict[int, list[float]] = {}

    @property
    def needs_files(self) -> bool:
        """Whether its models or rewards do not come with the pack."""
        values = [value for node in self.api.values() for value in node["inputs"].values()]
        loading = any(stage(node["class_type"]) == "loaders" for node in self.api.values())
        return loading or any(isinstance(value, str) and ("/" in value or ".pt" in value) for value in values)

    def measure(self, canvas: Canvas) -> None:
        """Learns what room each node needs in Nodes 2.0."""
        self._build(canvas)
        widths = [[id, _width(kind)] for id, kind in self.kinds.items()]
        self.sizes = {int(id): size for id, size in canvas.page.evaluate(page.MEASURE, widths).items()}

    def save(self, canvas: Canvas) -> None:
        """Writes the saved canvas."""
        self._build(canvas)
        note = "" if self.notes else self.template.note
        places = layout(self.kinds, self.api, self.sizes, len(note) > LONG_NOTE)
        if self.notes:
            places |= around(self.kinds, places, list(self.notes))
        arranged = [
            [id, box.x, box.y, box.width, box.height if self._stretches(id) else None] for id, box in places.items()
        ]
        ways = self._ways(places, canvas.page.evaluate(page.ARRANGE, arranged))
        text, ids, inner = canvas.page.evaluate(page.ROUTE, ways)
        graph = renumbered(json.loads(text), {str(id): number for id, number in ids}, inner)
        # Without an id: each time that it is opened it is another workflow, and shows nothing of what an earlier copy made.
        del graph["id"]
        kept = ("workflowRendererVersion", "reroutes", "linkExtensions")
        graph["extra"] = {key: value for key, value in graph["extra"].items() if key in kept}
        if self.rewards:
            graph = with_lasting_ids(graph)
        text = json.dumps(graph, indent=1, ensure_ascii=False) + "\n"
        self.template.canvas.write_text(text, encoding="utf-8")
        print(self.template.canvas)

    def _stretches(self, id: int) -> bool:
        kind = self.kinds.get(id, NOTE)
        return kind in STRETCH or stage(kind) == "credit"

    def _ways(self, places: Mapping[int, Box], links: list) -> list:
        lanes = Lanes([box.rect for box in places.values()])
        ordered = sorted(links, key=lambda link: abs(link[2][0] - link[1][0]) + abs(link[2][1] - link[1][1]))
        return [[id, way] for id, start, end, owner in ordered if (way := lanes.way(start, end, owner))]

    def _build(self, canvas: Canvas) -> None:
        [shown] = [(id, SHOWN[node["class_type"]]) for id, node in self.api.items() if node["class_type"] in SHOWN]
        models = {id: models for id, node in self.api.items() if (models := models_of(self.template.name, node))}
        notes = []
        for id, text in self.notes.items():
            title, _, body = text.partition("\n")
            notes.append([id, title.removeprefix("# "), body.strip()])
        note = "" if self.notes else self.template.note
        rewards = [[id, _announced(self.api[str(id)])] for id in self.rewards]
        canvas.page.evaluate(page.BUILD, [self.api, note, shown, self.added, rewards, models, notes])


def _announced(reward: dict) -> str:
    """The name of a reward node of the exported graph in tables and curves."""
    values = {name: value for name, value in reward["inputs"].items() if not isinstance(value, list)}
    [(name, _)] = NODE_CLASS_MAPPINGS[reward["class_type"]].announced(**values)
    return name


def _width(kind: str) -> float:
    if kind in (NOTE, SAVE, RUN):
        return {NOTE: WIDTHS["note"], SAVE: FUSION, RUN: FUSION + UPDATE}[kind]
    named = stage(kind)
    return {"fusion": FUSION, "training": UPDATE}.get(named) or WIDTHS["credit" if kind == STACK else named]


def renumbered(graph: dict, ids: Mapping[str, int], inner: Mapping[str, int]) -> dict:
    """The numbers of the API file for the canvas's own, in order, and whole pixels; `inner` has those of the subgraph."""
    _renumber(graph["nodes"], ids)
    graph["links"] = [
        [link, ids[str(start)], output, ids[str(end)], *rest] for link, start, output, end, *rest in graph["links"]
    ]
    for subgraph in graph.get("definitions", {}).get("subgraphs", []):
        _renumber(subgraph["nodes"], inner)
        for link in subgraph["links"]:
            for end in ("origin_id", "target_id"):
                link[end] = inner.get(str(link[end]), link[end])
        subgraph["state"]["lastNodeId"] = max(inner.values())
    for reroute in graph["extra"].get("reroutes", []):
        reroute["pos"] = [round(value) for value in reroute["pos"]]
    graph["last_node_id"] = max(*ids.values(), *inner.values(), 0)
    return graph


def _renumber(nodes: list[dict], ids: Mapping[str, int]) -> None:
    for node in nodes:
        node["id"] = ids[str(node["id"])]
        node["pos"], node["size"] = ([round(value) for value in list(node[key])[:2]] for key in ("pos", "size"))
    nodes.sort(key=lambda node: node["id"])
    for number, node in enumerate(nodes):
        node["order"] = number


if __name__ == "__main__":
    main()
