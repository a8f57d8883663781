"""What the list of templates shows of each: its name, large enough for a small card, over what comes out of it.

Of a template whose models come with the pack these are its samples, its heatmap and its curves after some iterations; of another
one, which nobody could run here, it is the graph.
"""

from __future__ import annotations

import io

from PIL import Image, ImageDraw, ImageFont

from ...tests.comfyui.canvas import Canvas
from . import page
from .layout import PREVIEW, RUN, STACK, stage
from .templates import Template

SIZE, MOST_BYTES = (1024, 576), 100_000
PAPER, INK, FAINT = "#1b1d22", "#ffffff", "#b9c0cc"
LABEL, LINE = 76, 40  # heights of the name's letters, and of those below
EDGE, TOP = 32, 186  # where the label and what is below it begin
GROUPS = ("Method", "Model folder", "Video")  # of templates: what comes before the name itself


def picture(canvas: Canvas, template: Template, runs: int) -> None:
    """Writes the picture of a template, after so many iterations."""
    canvas.load(template.canvas)
    if runs:
        run = _outcome(canvas)[-1]
        canvas.set({f"{run}.evaluate_every": 0})  # an evaluation takes longer than these iterations, and is not seen
        for execution in (canvas.run_and_wait()[0] for _ in range(runs)):
            assert execution.end == "execution_success", execution.detail
        shots = [_node(canvas, id) for id in _outcome(canvas)]
    else:
        shots = [_shot(canvas, canvas.page.evaluate(page.FRAME))]
    card = Image.new("RGB", SIZE, PAPER)
    _write(card, *_words(template.title))
    room, x = (SIZE[0] - 2 * EDGE - 16 * (len(shots) - 1)) // len(shots), EDGE
    for shot in shots:
        shot.thumbnail((room, SIZE[1] - TOP - 16), Image.Resampling.LANCZOS)
        card.paste(shot, (x + (room - shot.width) // 2, TOP))
        x += room + 16
    content = io.BytesIO()
    for quality in range(88, 40, -4):
        content = io.BytesIO()
        card.save(content, "JPEG", quality=quality, optimize=True)
        if content.tell() <= MOST_BYTES:
            break
    template.picture.write_bytes(content.getvalue())


def _words(title: str) -> tuple[str, str]:
    """The name, and what is said of it: "34 Method - uniform credit, the baseline" is "uniform credit" and "the baseline"."""
    head, _, tail = title.split(" ", 1)[1].partition(" - ")
    if head not in GROUPS:
        return head, tail
    name, _, rest = tail.partition(", ")
    return name, ", ".join(part for part in (head.lower(), rest) if part)


def _write(card: Image.Image, name: str, below: str) -> None:
    draw, size = ImageDraw.Draw(card), LABEL
    name = name[0].upper() + name[1:]
    while draw.textlength(name, ImageFont.load_default(size)) > SIZE[0] - 2 * EDGE:
        size -= 2
    draw.text((EDGE, 24), name, INK, ImageFont.load_default(size))
    draw.text((EDGE, 118), below, FAINT, ImageFont.load_default(LINE))


def _outcome(canvas: Canvas) -> list[int]:
    """The nodes that show samples, credit and curves."""
    kinds = {
        int(id): kind for id, kind in canvas.page.evaluate("() => app.graph.nodes.map(node => [node.id, node.type])")
    }
    samples = next(id for id, kind in kinds.items() if kind == PREVIEW)
    heatmaps = [id for id, kind in kinds.items() if kind == "OTCA_StepwiseGain" or stage(kind) == "credit"]
    tables = [id for id, kind in kinds.items() if kind == STACK]
    return [samples, *[*heatmaps, *tables][:1], next(id for id, kind in kinds.items() if kind == RUN)]


def _node(canvas: Canvas, id: int) -> Image.Image:
    clip = canvas.page.evaluate(
        """async id => {
            const node = app.graph.getNodeById(id), { ds, canvas } = app.canvas;
            ds.scale = 1;
            ds.offset[0] = 200 - node.pos[0];
            ds.offset[1] = 160 - node.pos[1];
            app.canvas.setDirty(true, true);
            const shown = /^otca_(heatmap|curves|scores)$/, box = canvas.getBoundingClientRect();
            const widget = node.widgets?.find(one => shown.test(one.name));
            const from = widget?.y ?? 40;
            return { x: box.left + 200, y: box.top + 160 + from, width: node.size[0], height: node.size[1] - from };
        }""",
        id,
    )
    return _shot(canvas, clip)


def _shot(canvas: Canvas, clip: dict) -> Image.Image:
    canvas.page.wait_for_timeout(1500)  # the canvas draws in its own time
    return Image.open(io.BytesIO(canvas.page.screenshot(clip=clip))).convert("RGB")
