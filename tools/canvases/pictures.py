"""Pictures of canvases: what the list of templates shows of each, and those of docs and README.

A card of the list has the template's name, large enough for a small card, over what comes out of it: samples, heatmap and curves
after some iterations, a ranking, or what a person is asked; or over what its note says first, if its models do not come with the
pack: a graph of thirty nodes cannot be read there. `docs` takes the quickstart as a
newcomer sees it, in each ComfyUI that the tests find and each of its renderers (assets/pictures/first_sight_*.jpg), and its
heatmap, its table of rewards and the sidebar with a headless training (comfyui_*.png).
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable

from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from ...nodes import NODE_CLASS_MAPPINGS
from ...tests.comfyui.canvas import Canvas
from ...tests.comfyui.server import ROOT, targets
from .templates import TEMPLATES, Template

PICTURES = ROOT / "assets" / "pictures"
STACK, CREDIT = 8, 9  # nodes of the quickstart
ITERATIONS, HEADLESS = 6, 30

SIZE, MOST_BYTES = (1024, 576), 100_000
PAPER, INK, FAINT = "#1b1d22", "#ffffff", "#b9c0cc"
LABEL, LINE, TOLD = 76, 40, 32  # heights of the name's letters, of those below, and of a note's
LETTERS = 54  # of a note, on a line
EDGE, TOP = 32, 186  # where the label and what is below it begin
GROUPS = ("Method", "Model folder", "Video")  # of templates: what comes before the name itself

# What a node shows below its widgets, at its full size.
SHOWN = """async id => {
    const node = app.graph.getNodeById(id), { ds, canvas } = app.canvas;
    ds.scale = 1;
    ds.offset[0] = 200 - node.pos[0];
    ds.offset[1] = 160 - node.pos[1];
    app.canvas.setDirty(true, true);
    const shown = /^otca_(heatmap|curves|scores)$/, box = canvas.getBoundingClientRect();
    const from = node.widgets?.find(one => shown.test(one.name))?.y ?? 40;
    return { x: box.left + 200, y: box.top + 160 + from, width: node.size[0], height: node.size[1] - from };
}"""

# A node in the middle of the view, made so high; away from all others, which it would lie behind.
GROWN = """([id, height]) => {
    const node = app.graph.getNodeById(id);
    node.setSize([node.size[0] + 60, height]);
    node.pos = [node.pos[0], -2000 * id];
    app.canvas.ds.scale = 1.2;
    app.canvas.centerOnNode(node);
    app.graph.setDirtyCanvas(true, true);
}"""


def card(canvas: Canvas, template: Template, runs: int) -> None:
    """Writes the picture of a template, after so many iterations."""
    sheet = Image.new("RGB", SIZE, PAPER)
    _write(sheet, *_words(template.title))
    shots = _outcome(canvas, template, runs) if runs else []
    if not runs:
        # Writes the beginning of a note, as far as there is room, without its Markdown
        # PIL's own letters have no × and no Greek.
        draw, font = ImageDraw.Draw(sheet), ImageFont.truetype(font_manager.findfont("DejaVu Sans"), TOLD)
        text = re.sub(
            r"\[([^]]*)\]\([^)]*\)|[*`]", r"\1", re.sub("^#.*", "", next(iter(template.notes.values())))
        )  # a heading is the template's name again
        lines = [line for part in text.splitlines() for line in textwrap.wrap(part.strip(), LETTERS)]
        most = (SIZE[1] - TOP - 16) // (TOLD + 8)
        for row, line in enumerate(lines[:most]):
            end = " …" if row == most - 1 and len(lines) > most else ""
            draw.text((EDGE, TOP + row * (TOLD + 8)), line + end, INK, font)
    room, x = (SIZE[0] - 2 * EDGE - 16 * (len(shots) - 1)) // max(1, len(shots)), EDGE
    for shot in shots:
        shot.thumbnail((room, SIZE[1] - TOP - 16), Image.Resampling.LANCZOS)
        sheet.paste(shot, (x + (room - shot.width) // 2, TOP))
        x += room + 16
    content = io.BytesIO()
    for quality in range(88, 40, -4):
        content = io.BytesIO()
        sheet.save(content, "JPEG", quality=quality, optimize=True)
        if content.tell() <= MOST_BYTES:
            break
    template.picture.write_bytes(content.getvalue())


def _outcome(canvas: Canvas, template: Template, runs: int) -> list[Image.Image]:
    """The picture of a template after so many iterations, or after one Run where nothing is trained."""
    canvas.load(template.canvas)
    kinds = {node: kind for node, kind in canvas.page.evaluate("() => app.graph.nodes.map(n => [n.id, n.type])")}
    of = {kind: node for node, kind in kinds.items()}
    if "OTCA_RewardVote" in of:  # nobody is here to vote: the question is what there is to see
        canvas.run()
        panel = canvas.page.locator("dialog.otca-vote[open]")
        panel.wait_for(timeout=120_000)
        canvas.page.wait_for_timeout(3000)
        shot = Image.open(io.BytesIO(panel.screenshot())).convert("RGB")
        canvas.page.evaluate("() => comfyAPI.api.api.interrupt(null)")
        return [shot]
    if "OTCA_TrainingRun" not in of:
        (execution,) = canvas.run_and_wait()
        assert execution.end == "execution_success", execution.detail
        outcome = (of["OTCA_ScoreImages"], of["PreviewImage"])
    else:
        learns_from_pairs = "OTCA_MyPictures" in of  # no curve but that of evaluations
        run_iterations(canvas, of["OTCA_TrainingRun"], runs, evaluate_every=2 if learns_from_pairs else 0)
        returned = {kind: getattr(NODE_CLASS_MAPPINGS.get(kind), "RETURN_TYPES", ()) for kind in kinds.values()}
        kinds_shown = ("OTCA_StepwiseGain", "OTCA_RewardStack")
        credits = [node for node, kind in kinds.items() if kind in kinds_shown or "OTCA_CREDIT" in returned[kind]]
        credits.sort(key=lambda node: kinds[node] == "OTCA_RewardStack")  # preference pairs have neither
        outcome = (of["PreviewImage"], *credits[:1], of["OTCA_TrainingRun"])
    shots = []
    for node in outcome:
        clip = canvas.page.evaluate(SHOWN, node)
        canvas.page.wait_for_timeout(1500)  # the canvas draws in its own time
        shots.append(Image.open(io.BytesIO(canvas.page.screenshot(clip=clip))).convert("RGB"))
    return shots


def run_iterations(canvas: Canvas, run: int, count: int, evaluate_every: int = 0) -> None:
    """Queues as many prompts, without evaluations where they take long and are not seen."""
    canvas.set({f"{run}.evaluate_every": evaluate_every})
    for _ in range(count):
        (execution,) = canvas.run_and_wait()
        assert execution.end == "execution_success", execution.detail


def docs(opened: Callable) -> None:
    """Takes all pictures of docs and README; `opened` as in `__main__`."""
    oldest, *_, newest = targets()
    own, small, large = targets()[-2], (1400, 900), (1920, 1080)
    for name, installation, renderer, palette, size in (
        ("oldest_classic", oldest, "classic", "dark", small),
        ("classic", own, "classic", "dark", small),
        ("nodes2", own, "nodes2", "dark", small),
        ("nodes2_light", own, "nodes2", "light", small),
        ("newest_classic_light", newest, "classic", "light", large),
        ("newest_nodes2", newest, "nodes2", "dark", large),
    ):
        with opened(installation, size) as page:
            _sight(_after_runs(page(renderer), "quickstart", palette, ITERATIONS), f"first_sight_{name}")
    for name, installation, renderer in (("nodes2", newest, "nodes2"), ("classic", oldest, "classic")):
        with opened(installation, small) as page:
            _sight(_after_runs(page(renderer), "my_pictures", "dark", 20, evaluate_every=10), f"gallery_trained_{name}")
    with opened(newest, (1400, 1350), sharper=1.5) as page:
        canvas = page("nodes2")
        folder = canvas.comfyui.base / "output" / "otca" / "quickstart-headless"
        command = ["train", TEMPLATES["quickstart"].api, "--output", folder, "--iterations", HEADLESS]
        subprocess.run([sys.executable, "-m", "comfyui_otca", *map(str, command)], check=True)
        _details(_after_runs(canvas, "quickstart", "dark", ITERATIONS))


def _sight(canvas: Canvas, name: str) -> None:
    picture = Image.open(io.BytesIO(canvas.page.screenshot())).convert("RGB")
    picture.save(PICTURES / f"{name}.jpg", "JPEG", quality=82, optimize=True)
    print(f"{name}.jpg")


def _after_runs(canvas: Canvas, name: str, palette: str, count: int, evaluate_every: int = 0) -> Canvas:
    """A template after some iterations, once the page's own messages are gone."""
    canvas.page.evaluate("name => app.extensionManager.setting.set('Comfy.ColorPalette', name)", palette)
    template = TEMPLATES[name]
    content = json.loads(template.canvas.read_text(encoding="utf-8"))
    canvas.page.evaluate(
        "([content, name]) => app.loadGraphData(content, true, true, name, { openSource: 'template' })",
        [content, template.title],
    )
    (run,) = (node["id"] for node in content["nodes"] if node["type"] == "OTCA_TrainingRun")
    run_iterations(canvas, run, count, evaluate_every)
    canvas.page.wait_for_timeout(8000)
    return canvas


def _details(canvas: Canvas) -> None:
    """The heatmap with a cell that was clicked, the table with its correlations open, the sidebar with a run open."""
    page = canvas.page
    shown = _grown(canvas, CREDIT)
    drawn = shown.locator(".otca-heatmap canvas")
    drawn.click(position=_place(drawn, 0.3, 0.2))
    shown.locator(".otca-heatmap-preview img").wait_for()
    page.wait_for_timeout(2000)
    drawn.hover(position=_place(drawn, 0.45, 0.6))
    page.locator(".otca-tooltip").wait_for()
    _clip(page, "comfyui_heatmap", [shown, page.locator(".otca-tooltip")])
    page.mouse.move(5, 675)
    shown = _grown(canvas, STACK)
    shown.locator("summary").click()
    page.wait_for_timeout(1000)
    _clip(page, "comfyui_rewards", [shown])
    canvas.our_tab().click()
    page.get_by_text("quickstart-headless").first.click()
    page.wait_for_timeout(4000)
    _clip(page, "comfyui_sidebar", [page.locator(".otca-sidebar-container")])


def _grown(canvas: Canvas, node: int):
    canvas.page.evaluate(GROWN, [node, 900])
    canvas.page.wait_for_timeout(3000)
    return canvas.page.locator(f'[data-node-id="{node}"]')


def _place(element, right: float, down: float) -> dict[str, float]:
    box = element.bounding_box()
    return {"x": box["width"] * right, "y": box["height"] * down}


def _clip(page, name: str, elements: list) -> None:
    """Writes the part of the page that holds the elements, and a little around it."""
    boxes = [element.bounding_box() for element in elements]
    left, top = (max(0, min(box[side] for box in boxes) - 8) for side in ("x", "y"))
    right = max(box["x"] + box["width"] for box in boxes) + 8
    below = min(max(box["y"] + box["height"] for box in boxes) + 8, page.viewport_size["height"])
    area = {"x": left, "y": top, "width": right - left, "height": below - top}
    page.screenshot(path=PICTURES / f"{name}.png", clip=area)
    print(f"{name}.png")


def _words(title: str) -> tuple[str, str]:
    """The name, and what is said of it: "34 Method - uniform credit, the baseline" is "uniform credit" and "the baseline"."""
    head, _, tail = title.split(" ", 1)[1].partition(" - ")
    if head not in GROUPS:
        return head, tail
    name, _, rest = tail.partition(", ")
    return name, ", ".join(part for part in (head.lower(), rest) if part)


def _write(sheet: Image.Image, name: str, below: str) -> None:
    draw, size = ImageDraw.Draw(sheet), LABEL
    name = name[0].upper() + name[1:]
    while draw.textlength(name, ImageFont.load_default(size)) > SIZE[0] - 2 * EDGE:
        size -= 2
    draw.text((EDGE, 24), name, INK, ImageFont.load_default(size))
    draw.text((EDGE, 118), below, FAINT, ImageFont.load_default(LINE))
