"""`python -m comfyui_otca.tools.canvases [NAME …]`: refreshes workflows/*.json and their pictures from workflows/api/*.json.

Nodes stand where a person put them, once, on the canvas of a real ComfyUI (found as the tests in tests/comfyui find it). This
program opens each saved canvas there, gives every widget the value of the exported graph by its name, the notes their text of
tools/notes and stock loaders the addresses of their files, and saves it. Needed whenever a node gains an input, since saved
canvases hold values by position. A new template: put it together on the canvas, save it into workflows/, export it into
workflows/api/ with the same node numbers, and add its row to `templates`.

    --run N         for the pictures of what needs no large model: iterations before they are taken (6)
    --no-picture    leave the pictures as they are
    --picture-only  leave the canvases as they are
    --docs          the pictures of docs and README instead: see `pictures`
    --blueprints    subgraphs/*.json instead, which ComfyUI offers as subgraph blueprints. Each was saved there by a person's own
                    *Publish Subgraph*; the values of its widgets are those that it has by their names
"""

from __future__ import annotations

import argparse
import json
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

from ...nodes import NODE_CLASS_MAPPINGS
from ...tests.comfyui.canvas import BROWSER_OPTIONS, Canvas, chromium
from ...tests.comfyui.server import ROOT, ComfyUI, Installation, installations
from . import pictures
from .templates import FILES, HPS, TEMPLATES, Template, models_of

# Opens a saved canvas and says it anew, with the widgets' values by their names.
REFRESH = """async ([saved, api, promoted, models, notes]) => {
    await app.loadGraphData(saved);
    const inside = [...(app.graph.subgraphs?.values() ?? [])].flatMap(subgraph => subgraph.nodes);
    const find = id => [...app.graph.nodes, ...inside].find(node => String(node.id) === id);
    for (const [id, { class_type, inputs }] of Object.entries(api)) {
        const node = find(id);
        if (node?.type !== class_type) throw new Error(`node ${id} of the exported graph is not on the canvas: place it there`);
        const { required = {}, optional = {} } = node.constructor.nodeData?.input ?? {};
        for (const widget of node.widgets ?? []) {
            const value = inputs[widget.name] ?? ({ ...required, ...optional })[widget.name]?.[1]?.default;
            if (value !== undefined && !Array.isArray(value)) widget.value = value.__value__ ?? value;
            for (const linked of widget.linkedWidgets ?? []) {
                const still = ["OTCA_LoadFlowModel", "OTCA_MakeTrainable", "KSampler", "KSamplerAdvanced"].includes(node.type);
                const orders = ["OTCA_PromptDataset", "OTCA_MyPictures"].includes(node.type)
                    && widget.name === "seed";
                if (linked.name === "control_after_generate") linked.value = still || orders ? "fixed" : "increment";
            }
        }
        if (models[id]) node.properties.models = models[id];
    }
    for (const node of app.graph.nodes) {
        for (const widget of node.widgets ?? []) if (widget.name in promoted) widget.value = promoted[widget.name];
        if (node.type === "MarkdownNote") {
            if (!(node.title in notes)) throw new Error(`note ${node.title} has no text in tools/notes`);
            node.widgets[0].value = notes[node.title];
        }
    }
    return JSON.stringify(app.graph.serialize());
}"""


# The same for a blueprint, which keeps the values that it has.
PUBLISHED = """async saved => {
    await app.loadGraphData(saved);
    const [outer] = app.graph.nodes;
    for (const [place, node] of outer.subgraph.nodes.entries()) {  // loading gives them other ids
        const { type, widgets_values_named: kept = {} } = saved.definitions.subgraphs[0].nodes[place];
        if (node.type !== type) throw new Error(`${node.type} stands where ${type} was`);
        const { required = {}, optional = {} } = node.constructor.nodeData?.input ?? {};
        for (const widget of node.widgets ?? []) {
            const value = kept[widget.name] ?? ({ ...required, ...optional })[widget.name]?.[1]?.default;
            if (value !== undefined) widget.value = value;
        }
    }
    const { nodes, definitions } = app.graph.serialize();
    return JSON.stringify({ ...saved, nodes, definitions });
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(TEMPLATES)
    parser.add_argument("names", nargs="*", metavar="NAME", default=names, help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--run", type=int, default=6)
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--no-picture", action="store_true")
    part.add_argument("--picture-only", action="store_true")
    part.add_argument("--docs", action="store_true")
    part.add_argument("--blueprints", action="store_true")
    options = parser.parse_args()
    if options.docs:
        pictures.docs(opened)
        return
    with opened(installations()[-1], (2400, 1350)) as page:
        if options.blueprints:
            for path in sorted((ROOT / "subgraphs").glob("*.json")):
                publish(page("classic"), path)
            return
        for template in map(TEMPLATES.__getitem__, options.names):
            if not options.picture_only:
                refresh(page("classic"), template)
            if not options.no_picture:
                pictures.card(page("classic"), template, 0 if template.needs_files else options.run)


@contextmanager
def opened(installation: Installation, size: tuple[int, int], sharper: float = 1.0) -> Iterator:
    """A ComfyUI, and with it a function that opens its page in a renderer."""
    comfyui = ComfyUI(installation, Path(tempfile.mkdtemp(prefix="otca-canvases-")))
    try:
        for folder, url in {HPS, *(file for files in FILES.values() for file in files)}:
            # Empty files by the names that loaders have, which would be drawn as missing otherwise. Nothing loads them.
            place = comfyui.base / "models" / folder
            place.mkdir(parents=True, exist_ok=True)
            (place / url.rsplit("/", 1)[1]).touch()
        comfyui.wait_until_up()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=BROWSER_OPTIONS)

            def page(renderer: str) -> Canvas:
                for context in browser.contexts:
                    context.close()
                viewport = ViewportSize(width=size[0], height=size[1])
                canvas = Canvas(browser.new_page(viewport=viewport, device_scale_factor=sharper), comfyui, renderer)
                canvas.page.evaluate("app.extensionManager.setting.set('LiteGraph.Canvas.MinFontSizeForLOD', 0)")
                return canvas

            yield page
    finally:
        comfyui.stop()


def refresh(canvas: Canvas, template: Template) -> None:
    """Writes the saved canvas anew."""
    saved = json.loads(template.canvas.read_text(encoding="utf-8"))
    api = json.loads(template.api.read_text(encoding="utf-8"))
    models = {id: models for id, node in api.items() if (models := models_of(template.name, node))}
    promoted = {}
    if template.rewards_inside:  # a coefficient stands outside of the subgraph, by the name of its reward
        for node in api.values():
            announced = getattr(NODE_CLASS_MAPPINGS.get(node["class_type"]), "announced", None)
            values = {name: value for name, value in node["inputs"].items() if not isinstance(value, list)}
            if announced and "coefficient" in values:
                promoted[announced(**values)[0][0]] = values["coefficient"]
    text = canvas.page.evaluate(REFRESH, [saved, api, promoted, models, template.notes])
    graph = json.loads(text)
    # Without an id: each time that it is opened it is another workflow, and shows nothing of what an earlier copy made.
    graph.pop("id", None)
    kept = ("workflowRendererVersion", "reroutes", "linkExtensions")
    graph["extra"] = {key: value for key, value in graph["extra"].items() if key in kept}
    titles = {node["id"]: node["title"] for node in saved["nodes"] if "title" in node}
    for node in graph["nodes"]:  # the front end leaves out a title that is the name of the node's subgraph
        node |= {"title": titles[node["id"]]} if node["id"] in titles else {}
    for part in (graph, *graph.get("definitions", {}).get("subgraphs", [])):
        part["nodes"].sort(key=lambda node: node["id"])
        for number, node in enumerate(part["nodes"]):
            node["order"] = number
            node["pos"], node["size"] = ([round(value) for value in list(node[key])[:2]] for key in ("pos", "size"))
    if template.rewards_inside:
        graph = with_lasting_ids(graph)
    template.canvas.write_text(compact(graph), encoding="utf-8")
    print(template.canvas)


def publish(canvas: Canvas, path: Path) -> None:
    """Writes a blueprint anew."""
    saved = json.loads(path.read_text(encoding="utf-8"))
    content = with_lasting_ids(json.loads(canvas.page.evaluate(PUBLISHED, saved)))
    (before,), (graph,) = saved["definitions"]["subgraphs"], content["definitions"]["subgraphs"]
    graph |= {key: before[key] for key in ("category", "description")}
    content["nodes"][0]["title"] = path.stem
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(path)


def with_lasting_ids(content: dict) -> dict:
    """The same with ids of its subgraph that are the same each time that it is made."""
    text = json.dumps(content)
    (graph,) = content["definitions"]["subgraphs"]
    for number, id in enumerate([graph["id"], *(slot["id"] for slot in (*graph["inputs"], *graph["outputs"]))]):
        text = text.replace(id, str(uuid.uuid5(uuid.NAMESPACE_URL, f"comfyui-otca/{graph['name']}/{number}")))
    return json.loads(text)


def compact(graph: dict) -> str:
    """JSON with a line for each node, each link, and each other entry."""
    parts = []
    for key, value in graph.items():
        lines = [json.dumps(entry, ensure_ascii=False) for entry in value] if key in ("nodes", "links") else []
        parts.append(
            f'"{key}": ' + ("[\n  " + ",\n  ".join(lines) + "\n ]" if lines else json.dumps(value, ensure_ascii=False))
        )
    return "{\n " + ",\n ".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
