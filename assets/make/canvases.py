"""`python -m comfyui_otca.assets.make.canvases [NAME …]`: workflows/*.json and their thumbnails, from workflows/api/*.json.

Each graph is laid out by stage on the canvas of a real ComfyUI (found as the tests in tests/comfyui find it) with its note from
assets/make/notes, and saved as that ComfyUI saves it. Stock loaders get the addresses of their files from model_files.py. Needed
whenever a node gains an input, since saved canvases hold values by position.

    --run N     for the thumbnail, run the graph N times first (only what needs no large model)
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from ...nodes import NODE_CLASS_MAPPINGS
from ...tests.comfyui.canvas import BROWSER_OPTIONS, Canvas, chromium
from ...tests.comfyui.server import WORKFLOWS, ComfyUI, installations
from ...trainer.types import MODEL_NODES, PAIRS_NODE, SAMPLER_NODE
from .model_files import FILES, models_of

NOTES = Path(__file__).with_name("notes")
SIZE, MOST_BYTES = (1024, 576), 100_000
NOTE, PREVIEW = "MarkdownNote", "PreviewImage"

# A column's width, and the titles and colours of the frames around the stages. The values of one frame stand below each other.
FRAMES = {
    "model": ("1 · Model and prompts", 330, "#3f789e"),
    "sampling": ("2 · Sampling", 330, "#8A8"),
    "pairs": ("2 · Pairs in place of samples", 330, "#8A8"),
    "rewards": ("3 · Rewards", 310, "#b58b2a"),
    "credit": ("4 · Credit: which step", 560, "#a1309b"),
    "fusion": ("5 · Fusion: which reward", 290, "#8b5fbf"),
    "training": ("6 · Training", 310, "#b06634"),
    "after": ("7 · Before and after", 330, "#3f789e"),
}
STAGE_OF = {"OTCA/data": "model", **{f"OTCA/{name}": name for name in FRAMES}}
TUNED = "OTCA_TunedModel"  # begins the last frame, whatever its category
# What gives the pictures of an iteration: its stage, and which of its outputs has them.
SHOWN = {SAMPLER_NODE: ("sampling", 1), PAIRS_NODE: ("pairs", 3)}
# ComfyUI's own nodes: their frame, and how many rows their widgets and sockets take.
STOCK = {
    "UNETLoader": ("model", 3),
    "CLIPLoader": ("model", 4),
    "DualCLIPLoader": ("model", 5),
    "VAELoader": ("model", 2),
    "ModelSamplingAuraFlow": ("model", 2),
    "ModelSamplingSD3": ("model", 2),
    "CLIPTextEncode": ("after", 5),
    "ConditioningZeroOut": ("after", 1),
    "EmptyImage": ("after", 4),
    "ImageScaleBy": ("after", 3),
    "VAEEncode": ("after", 2),
    "EmptyLatentImage": ("after", 4),
    "EmptySD3LatentImage": ("after", 4),
    "EmptyFlux2LatentImage": ("after", 4),
    "EmptyHunyuanLatentVideo": ("after", 5),
    "Wan22ImageToVideoLatent": ("after", 7),
    "KSampler": ("after", 12),
    "KSamplerAdvanced": ("after", 15),
    "VAEDecode": ("after", 2),
    "PreviewImage": ("after", 0),
}
SAMPLED = ("VAEDecode", "ImageScaleBy", "KSampler", "KSamplerAdvanced")  # what leads to a picture of the last frame
GAP, BETWEEN_FRAMES, HEADER = 60, 90, 85
LOWEST, LOWEST_REWARD = 1550, 1050  # a column that would reach below this continues in another
# Heights for the taller rows of Nodes 2.0: a title, and so much for each widget or socket.
TITLE, ROW, TEXT_ROWS = 50, 30, 3
FIXED = {
    NOTE: (420, 760),
    PREVIEW: (330, 400),
    TUNED: (330, 200),  # as high as CLIPTextEncode, which stands beside it
    "OTCA_RewardStack": (470, 850),
    "OTCA_TrainingRun": (470, 930),
    "OTCA_PromptDataset": (330, 390),
    "OTCA_StepwiseGain": (560, 720),  # with a heatmap
}
HEATMAP = 560
# What our page adds: whose the adapter is, what it needs of memory, and a button.
OWN_ROWS = dict.fromkeys(MODEL_NODES, 2) | {"OTCA_MakeTrainable": 5}

ARRANGE = """async ([api, note, places, frames, shown, models]) => {
    app.graph.clear();
    await app.loadApiJson(api, "workflow");
    for (const node of app.graph.nodes) {
        for (const widget of node.widgets ?? []) for (const linked of widget.linkedWidgets ?? []) {
            const still = ["OTCA_LoadFlowModel", "OTCA_MakeTrainable", "KSampler", "KSamplerAdvanced"].includes(node.type);
            const ordering = ["OTCA_PromptDataset", "OTCA_PreferencePairs"].includes(node.type) && widget.name === "seed";
            const stays = still || ordering;
            if (linked.name === "control_after_generate") linked.value = stays ? "fixed" : "increment";
        }
    }
    const add = (type, id) => {
        const node = LiteGraph.createNode(type);
        app.graph.add(node);
        added[id] = node;
        return node;
    };
    const added = {}, find = id => added[id] ?? app.graph.nodes.find(node => String(node.id) === String(id));
    const ids = Object.keys(places).map(Number), last = Math.max(...ids);
    for (const [id, files] of Object.entries(models)) find(id).properties.models = files;
    find(shown[0]).connect(shown[1], add("PreviewImage", last - 1), 0);
    const text = add("MarkdownNote", last);
    text.title = "Read me";
    text.widgets[0].value = note;
    text.color = "#432"; text.bgcolor = "#322a20";
    for (const [id, [x, y, width, height]] of Object.entries(places)) {
        find(id).pos = [x, y];
        find(id).setSize([width, height]);
    }
    for (const [title, box, color] of frames) {
        const frame = new LGraphGroup(title);
        Object.assign(frame, { pos: box.slice(0, 2), size: box.slice(2), color, font_size: 24 });
        app.graph.add(frame);
    }
    const ours = Object.fromEntries(ids.map(id => [find(id).id, id]));
    return [JSON.stringify(app.graph.serialize()), ours];
}"""

# The graph alone, clear of the page's own bars, in 16:9.
FRAME = """async () => {
    const boxes = [...app.graph.groups, ...app.graph.nodes].map(item => [...item.pos, ...item.size]);
    const far = side => Math.max(...boxes.map(box => box[side] + box[side + 2]));
    let x = Math.min(...boxes.map(box => box[0])) - 20, y = Math.min(...boxes.map(box => box[1])) - 40;
    let width = far(0) - x + 20, height = far(1) - y + 20;
    if (width / height > 16 / 9) { y -= (width * 9 / 16 - height) / 2; height = width * 9 / 16; }
    else { x -= (height * 16 / 9 - width) / 2; width = height * 16 / 9; }
    const left = 80, top = 150;
    const scale = Math.min((innerWidth - left - 20) / width, (innerHeight - top - 80) / height);
    app.canvas.ds.scale = scale;
    app.canvas.ds.offset = [left / scale - x, top / scale - y];
    app.canvas.setDirty(true, true);
    const box = app.canvas.canvas.getBoundingClientRect();
    return { x: box.left + left, y: box.top + top, width: width * scale, height: height * scale };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(path.stem for path in NOTES.glob("*.md"))
    parser.add_argument("names", nargs="*", metavar="NAME", default=names, help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--run", type=int, default=0)
    options = parser.parse_args()
    comfyui = ComfyUI(installations()[-1], Path(tempfile.mkdtemp(prefix="otca-canvases-")))
    try:
        _pretend(comfyui.base / "models")
        comfyui.wait_until_up()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=BROWSER_OPTIONS)
            for name in options.names:
                canvas = Canvas(browser.new_page(viewport={"width": 2400, "height": 1350}), comfyui, "classic")
                canvas.page.evaluate("app.extensionManager.setting.set('LiteGraph.Canvas.MinFontSizeForLOD', 0)")
                save(canvas, name)
                thumbnail(canvas, name, options.run)
                canvas.page.close()
    finally:
        comfyui.stop()


def _pretend(models: Path) -> None:
    """Empty files by the names that loaders have, which would be drawn as missing otherwise. Nothing loads them."""
    for folder, url in {file for files in FILES.values() for file in files}:
        (models / folder).mkdir(parents=True, exist_ok=True)
        (models / folder / url.rsplit("/", 1)[1]).touch()


def save(canvas: Canvas, name: str) -> None:
    target = WORKFLOWS / f"{name}.json"
    api = json.loads((WORKFLOWS / "api" / f"{name}.json").read_text(encoding="utf-8"))
    places, frames = layout(api)
    [shown] = [(id, SHOWN[node["class_type"]][1]) for id, node in api.items() if node["class_type"] in SHOWN]
    note = (NOTES / f"{name}.md").read_text(encoding="utf-8")
    models = {id: models for id, node in api.items() if (models := models_of(name, node))}
    text, ids = canvas.page.evaluate(ARRANGE, [api, note, places, frames, shown, models])
    graph = renumbered(json.loads(text), {str(node): id for node, id in ids.items()})
    del graph[
        "id"
    ]  # each time that it is opened it is another workflow, and shows nothing of what an earlier copy made
    graph["extra"] = {key: value for key, value in graph["extra"].items() if key == "workflowRendererVersion"}
    target.write_text(json.dumps(graph, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for node in graph["nodes"]:
        _, _, width, height = places[node["id"]]
        if node["size"][0] > width + 2 or node["size"][1] > height + 2:
            print(f"{name}: {node['type']} takes {node['size']}, its frame has {width} x {height}")
    print(target)


def layout(api: Mapping[str, Mapping]) -> tuple[dict[int, tuple], list[tuple]]:
    """Places [x, y, width, height] by node number, and the frames; the preview and the note get the next two numbers."""
    stages: dict[str, list[int]] = {stage: [] for stage in FRAMES}
    for id, node in api.items():
        stages[_stage(node["class_type"])].append(int(id))
    kinds = {int(id): node["class_type"] for id, node in api.items()}
    stacks = [id for id in stages["rewards"] if kinds[id] == "OTCA_RewardStack"]  # none where pairs are given
    [source] = {SHOWN[kind][0] for kind in kinds.values() if kind in SHOWN}
    run = next(id for id in stages["training"] if kinds[id] == "OTCA_TrainingRun")
    preview, note = max(kinds) + 1, max(kinds) + 2
    kinds |= {preview: PREVIEW, note: NOTE}
    stages[source].append(preview)

    places: dict[int, tuple] = {}

    def column(ids: list[int], x: float, y: float) -> tuple[float, float]:
        """Puts nodes below each other; returns where it ends, to the right and below."""
        right = x
        for id in ids:
            width, height = _size(kinds[id])
            places[id] = (x, y, width, height)
            right, y = max(right, x + width), y + height + GAP
        return right, y - GAP

    def columns(ids: list[int], x: float, y: float, lowest: float = LOWEST) -> tuple[float, float]:
        rest, bottom = list(ids), y
        while rest:
            height, count = 0, 0
            while count < len(rest) and (not count or height + _size(kinds[rest[count]])[1] <= lowest):
                height, count = height + _size(kinds[rest[count]])[1] + GAP, count + 1
            right, below = column(rest[:count], x, y)
            rest, bottom, x = rest[count:], max(bottom, below), right + GAP
        return x - GAP, bottom

    x, _ = column([note], 0, 0)
    x, loaders = x + BETWEEN_FRAMES - GAP, _loaders(api)
    for first in (True, False):
        x, _ = columns([id for id in stages["model"] if (id in loaders) == first], x + GAP, 0)
    x, _ = columns(stages[source], x + BETWEEN_FRAMES, 0)
    left = x + BETWEEN_FRAMES
    x, below = columns([id for id in stages["rewards"] if id not in stacks], left, 0, LOWEST_REWARD)
    lowest = below
    if stacks:
        x, lowest = column(stacks, x + GAP, 0)
    y = max(below, lowest) + HEADER + GAP
    right = left - BETWEEN_FRAMES
    for stage in ("credit", "fusion"):
        if stages[stage]:  # some nodes are both
            right, _ = column(stages[stage], right + BETWEEN_FRAMES, y)
    left = max(x, right) + BETWEEN_FRAMES
    x, below = column([id for id in stages["training"] if id != run], left, 0)
    _, lowest = column([run], x + GAP, 0)
    for ids in _branches(api, stages["after"]):
        left = column(ids, left, max(below, lowest) + HEADER + GAP)[0] + GAP

    return places, _frames(stages, places)


def _frames(stages: Mapping[str, list[int]], places: Mapping[int, tuple]) -> list[tuple]:
    """Title, box [x, y, width, height] and colour of each stage that has nodes."""
    frames = []
    for stage, (title, _, color) in FRAMES.items():
        boxes = [places[id] for id in stages[stage]]
        if not boxes:
            continue
        x, y = min(box[0] for box in boxes) - 20, min(box[1] for box in boxes) - HEADER
        far, low = max(box[0] + box[2] for box in boxes) + 20, max(box[1] + box[3] for box in boxes) + 20
        frames.append((title, (x, y, far - x, low - y), color))
    return frames


def _stage(kind: str) -> str:
    if kind in STOCK:
        return STOCK[kind][0]
    if kind in SHOWN:
        return SHOWN[kind][0]
    return "after" if kind == TUNED else STAGE_OF[NODE_CLASS_MAPPINGS[kind].CATEGORY]


def _loaders(api: Mapping[str, Mapping]) -> set[int]:
    """The nodes that lead to Make Trainable."""
    found: set[str] = set()
    pending = [id for id, node in api.items() if node["class_type"] == "OTCA_MakeTrainable"]
    while pending:
        sources = {source for source, _ in _links(api[pending.pop()])}
        found |= sources
        pending += sources
    return set(map(int, found))


def _branches(api: Mapping[str, Mapping], ids: list[int]) -> list[list[int]]:
    """The columns of the last frame: what its pictures share, and for each picture what samples, decodes and shows it.

    Of two pictures, before and after, Tuned Model stands above the one that it serves, and the prompt above the other.
    """
    branches = []
    for id, node in api.items():
        if node["class_type"] == PREVIEW:
            branch = [id]
            while source := next((one for one, _ in _links(api[branch[0]]) if api[one]["class_type"] in SAMPLED), None):
                branch.insert(0, source)
            branches.append([int(id) for id in branch])
    if len(branches) == 2:
        tops = [next(id for id in ids if api[str(id)]["class_type"] == kind) for kind in ("CLIPTextEncode", TUNED)]
        branches = [[top, *branch] for top, branch in zip(tops, branches, strict=True)]
    return [[id for id in ids if not any(id in branch for branch in branches)], *branches]


def _links(entry: Mapping) -> list[list]:
    return [value for value in entry["inputs"].values() if isinstance(value, list)]


def _size(kind: str) -> tuple[float, float]:
    if kind in FIXED:
        return FIXED[kind]
    if kind in STOCK:
        stage, rows = STOCK[kind]
        return FRAMES[stage][1], TITLE + ROW * rows
    node, stage = NODE_CLASS_MAPPINGS[kind], _stage(kind)
    if stage == "credit":
        return FRAMES[stage][1], HEATMAP
    declared = node.INPUT_TYPES()
    rows = OWN_ROWS.get(kind, 0) + (len(node.RETURN_TYPES) if "OTCA_REWARD" in node.RETURN_TYPES else 0)
    for _, *options in {**declared["required"], **declared.get("optional", {})}.values():
        options = options[0] if options else {}
        rows += TEXT_ROWS if options.get("multiline") else 2 if options.get("control_after_generate") else 1
    return FRAMES[stage][1], TITLE + ROW * rows


def renumbered(graph: dict, ids: Mapping[str, int]) -> dict:
    """The numbers of the API file for the canvas's own, in order, and whole pixels."""
    for node in graph["nodes"]:
        node["id"] = ids[str(node["id"])]
        node["pos"], node["size"] = ([round(value) for value in list(node[key])[:2]] for key in ("pos", "size"))
    graph["nodes"].sort(key=lambda node: node["id"])
    for number, node in enumerate(graph["nodes"]):
        node["order"] = number
    graph["links"] = [
        [link, ids[str(start)], output, ids[str(end)], *rest] for link, start, output, end, *rest in graph["links"]
    ]
    graph["last_node_id"] = max(ids.values())
    return graph


def thumbnail(canvas: Canvas, name: str, runs: int) -> None:
    canvas.load(WORKFLOWS / f"{name}.json")
    if runs:
        for execution in canvas.run_and_wait(runs):
            assert execution.end == "execution_success", execution.detail
    clip = canvas.page.evaluate(FRAME)
    canvas.page.wait_for_timeout(2500)  # the canvas draws in its own time
    picture = (
        Image.open(io.BytesIO(canvas.page.screenshot(clip=clip))).convert("RGB").resize(SIZE, Image.Resampling.LANCZOS)
    )
    for quality in range(88, 40, -4):
        content = io.BytesIO()
        picture.save(content, "JPEG", quality=quality, optimize=True)
        if content.tell() <= MOST_BYTES:
            break
    (WORKFLOWS / f"{name}.jpg").write_bytes(content.getvalue())


if __name__ == "__main__":
    main()
