"""The first sight of every template: nothing overlaps, no link hides behind a node, and everything can be read."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from comfyui_otca.tools.canvases.templates import TEMPLATES

# What the eye still follows: a curve may dip so far behind a node's edge. Units of the canvas.
DIP = 18
LEAST_LETTERS = 9  # pixels
MOST_WIDGETS = 6
BADGE = "OTCA"  # ComfyUI writes the name of the pack above its nodes
FIRST_SIGHT = {"width": 1400, "height": 900}

# Keeps what is drawn of each path, and what is written at which size in pixels.
WATCH = """() => {
    const paths = otcaTest.paths = new WeakMap();
    otcaTest.letters = [];
    for (const name of ["moveTo", "lineTo", "bezierCurveTo"]) {
        const before = Path2D.prototype[name];
        Path2D.prototype[name] = function (...values) {
            (paths.get(this) ?? paths.set(this, []).get(this)).push([name, ...values]);
            return before.apply(this, values);
        };
    }
    const write = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        const { a, b } = this.getTransform(), size = parseFloat(/([\\d.]+)px/.exec(this.font)[1]);
        otcaTest.letters.push([String(text), size * Math.hypot(a, b) / devicePixelRatio]);
        return write.call(this, text, ...rest);
    };
}"""

# Opens a template as the templates' dialog does.
OPEN = """async content => {
    await app.loadGraphData(content, true, true, "template", { openSource: "template" });
    await new Promise(done => setTimeout(done, 600));
    otcaTest.letters.length = 0;
    app.canvas.draw(true, true);
    const { scale } = app.canvas.ds, offset = [...app.canvas.ds.offset];
    const letters = [...otcaTest.letters], title = LiteGraph.NODE_TITLE_HEIGHT;
    const written = "[class*='otca-'], .comfy-markdown, .comfy-markdown-content, textarea";
    for (const element of document.querySelectorAll(".dom-widget *, [data-node-id] *")) {
        const own = [...element.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
        const seen = element.getClientRects().length && element.closest(written) && !element.closest(".otca-sidebar");
        const size = parseFloat(getComputedStyle(element).fontSize) * scale;
        if (own && seen) letters.push([element.textContent.trim().slice(0, 40), size]);
    }
    const nodes = app.graph.nodes.map(node => ({
        name: `${node.id} ${node.title}`, ours: node.type.startsWith("OTCA_"),
        left: node.pos[0], top: node.pos[1] - title, right: node.pos[0] + node.size[0], bottom: node.pos[1] + node.size[1],
        widgets: (node.widgets ?? []).filter(widget => !widget.hidden && widget.type !== "button"
            && !widget.options?.hidden && !/^otca_|^control_/.test(widget.name)
            && !(widget.options?.advanced && !node.showAdvanced)).map(widget => widget.name),
    }));
    // Links that are out of sight are not drawn.
    app.canvas.ds.scale = 0.2;
    app.canvas.ds.offset = [600, 900];
    app.canvas.draw(true, true);
    const links = [...app.graph.links.values()].map(link => {
        const parts = [link];
        for (let id = link.parentId; id !== undefined; id = app.graph.reroutes.get(id).parentId) {
            parts.push(app.graph.reroutes.get(id));
        }
        const name = [link.origin_id, link.origin_slot, link.target_id, link.target_slot].join(" ");
        const color = getComputedStyle(document.documentElement).getPropertyValue(`--color-datatype-${link.type}`);
        return { name, type: link.type, color, onCanvas: LGraphCanvas.link_type_colors[link.type],
                 curves: parts.map(part => part.path ? otcaTest.paths.get(part.path) : null) };
    });
    return { links, nodes, letters, scale, offset };
}"""


@pytest.fixture
def first_sight(canvas, once):
    """first_sight(name): a template as it is seen when it is opened."""
    before = canvas.page.viewport_size
    canvas.page.set_viewport_size(FIRST_SIGHT)
    canvas.page.evaluate(f"otcaTest.paths || ({WATCH})()")

    def opened(name):
        return canvas.page.evaluate(OPEN, json.loads(TEMPLATES[name].canvas.read_text(encoding="utf-8")))

    yield opened
    canvas.page.set_viewport_size(before)


def points(commands, count=40):
    """Points of a recorded path."""
    t = np.linspace(0, 1, count + 1)[1:, None]
    found, here = [], None
    for name, *values in commands:
        ends = np.reshape(values, (-1, 2))
        if name == "bezierCurveTo":
            first, second, end = ends
            found += [*((1 - t) ** 3 * here + 3 * (1 - t) ** 2 * t * first + 3 * (1 - t) * t**2 * second + t**3 * end)]
        elif name == "lineTo":
            found += [*(here + (ends[0] - here) * t)]
        here = ends[-1]
    return found


def assert_apart(nodes):
    for one, other in itertools.combinations(nodes, 2):
        beside = one["right"] <= other["left"] or other["right"] <= one["left"]
        above = one["bottom"] <= other["top"] or other["bottom"] <= one["top"]
        assert beside or above, f"{one['name']} and {other['name']} overlap"


@pytest.mark.parametrize("name", TEMPLATES)
def test_first_sight(first_sight, name):
    seen = first_sight(name)
    nodes = seen["nodes"]
    assert_apart(nodes)
    assert seen["links"]
    for link in seen["links"]:
        assert link["curves"] and all(link["curves"]), f"nothing was drawn of {link['name']}"
        colored = link["color"].strip() and link["onCanvas"]
        assert colored or not link["type"].startswith("OTCA_"), f"{link['type']} has no colour"
        for x, y in (point for curve in link["curves"] for point in points(curve)):
            for node in nodes:
                behind = node["left"] + DIP < x < node["right"] - DIP and node["top"] + DIP < y < node["bottom"] - DIP
                assert not behind, f"the link {link['name']} passes behind {node['name']} at {x:.0f}, {y:.0f}"
    for node in nodes:
        assert not node["ours"] or len(node["widgets"]) <= MOST_WIDGETS, node
    small = {
        text for text, size in seen["letters"] if size < LEAST_LETTERS and any(map(str.isalpha, text)) and text != BADGE
    }
    assert not small, f"too small to read: {sorted(small)[:12]}"


# ComfyUI's minimap begins there, from the page's left and top, in pixels.
MINIMAP = (1143, 643)


# Those that a newcomer opens, but for the tour, whose notes lead to it, and Wan 14B, whose loaders fill the first view.
NEWCOMERS = [
    name for name, one in TEMPLATES.items() if one.title[:2] in "01 03 05 06 07 11 12 13 14 15 16 17 21".split()
]


@pytest.mark.parametrize("name", NEWCOMERS)
def test_the_curve_is_seen_at_first_sight(first_sight, name):
    seen = first_sight(name)
    (run,) = (node for node in seen["nodes"] if node["name"].endswith(" Training Run"))
    right, bottom = (
        (run[side] + by) * seen["scale"] for side, by in zip(("right", "bottom"), seen["offset"], strict=True)
    )
    assert right <= FIRST_SIGHT["width"] and bottom <= FIRST_SIGHT["height"], "it is out of sight"
    assert right <= MINIMAP[0] or bottom <= MINIMAP[1], "the minimap covers it"


SIZES = """() => app.graph.nodes.map(node => ({
    name: `${node.id} ${node.title}`, left: node.pos[0], right: node.pos[0] + node.size[0],
    top: node.pos[1] - LiteGraph.NODE_TITLE_HEIGHT, bottom: node.pos[1] + node.size[1],
}))"""


def test_nothing_overlaps_when_results_have_come(canvas, once, run_name):
    canvas.load(TEMPLATES["quickstart"].canvas)
    canvas.set({"2.prompts_per_iteration": 2, "3.group_size": 4, "12.run_name": run_name, "13.filename": run_name})
    assert canvas.run_and_wait()[0].end == "execution_success"
    canvas.wait("() => document.querySelector('.otca-scores table')")
    assert_apart(canvas.page.evaluate(SIZES))
