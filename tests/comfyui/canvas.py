"""Drives ComfyUI's page as a user does, and hears what it complains about."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .server import PACK, ComfyUI

OF_OURS = re.compile(rf"/extensions/{PACK}|/otca|otca", re.IGNORECASE)
READY_SECONDS = 60
PRESSES, PRESS_SECONDS = 3, 5
RUN_SECONDS = 240

BROWSER_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

# ComfyUI greets a new user with tutorials, and asks before things that a test means to do.
SETTINGS = {
    "Comfy.TutorialCompleted": True,
    # Dialogs that open when they are ready: they would cover the canvas of a later test.
    "Comfy.Workflow.ShowMissingNodesWarning": False,
    "Comfy.Workflow.ShowMissingModelsWarning": False,
    "Comfy.Workflow.ConfirmDelete": False,
    "Comfy.Notification.ShowVersionUpdates": False,
    "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasInfo": False,
}

# The colours that fill at least 50 pixels where a heatmap's <canvas> has its cells, and how many of them are orange
# (reinforced): legend, labels and bars lie outside.
CELLS = """canvas => {
    const part = (from, to, length) => [Math.round(from * length), Math.round((to - from) * length)];
    const [left, width] = part(0.32, 0.85, canvas.width), [top, height] = part(0.2, 0.65, canvas.height);
    const { data } = canvas.getContext("2d").getImageData(left, top, width, height);
    const counts = new Map();
    for (let at = 0; at < data.length; at += 4) {
        const colour = data.slice(at, at + 4).join(" ");
        counts.set(colour, (counts.get(colour) ?? 0) + 1);
    }
    const cells = [...counts].filter(([, count]) => count >= 50).map(([colour]) => colour.split(" ").map(Number));
    return { colours: cells.length, orange: cells.filter(([r, g, b, a]) => a && r > g + 30 && g > b + 30).length };
}"""


def chromium() -> str | None:
    """The system's browser, or the one that CHROMIUM_PATH names."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM_PATH") or next(filter(None, map(shutil.which, names)), None)


# What ComfyUI's page says of each bypassed node that takes nothing of the kind that it gives, as rewards and credit do.
BYPASSED = "No input types match type [OTCA_"


class Canvas:
    """The page with the graph. `events` are the server's messages about prompts, in order, as [type, data]."""

    def __init__(self, page, comfyui: ComfyUI, renderer: str):
        self.page = page
        self.comfyui = comfyui
        self.renderer = renderer
        self.complaints: list[str] = []
        self.expected: list[str] = []  # parts of complaints that a test means to provoke
        self._listen()
        comfyui.post("/api/settings", {**SETTINGS, "Comfy.VueNodes.Enabled": renderer == "nodes2"})
        self.open()

    def _listen(self) -> None:
        def console(message):
            place = message.location.get("url", "")
            if message.type in ("error", "warning") and OF_OURS.search(f"{message.text} {place}"):
                self.complaints.append(f"console {message.type}: {message.text[:500]} ({place})")

        def page_error(error):
            if OF_OURS.search(f"{error} {error.stack}"):
                self.complaints.append(f"uncaught: {error}\n{error.stack}")

        def request_failed(request):
            if OF_OURS.search(request.url) and request.failure != "net::ERR_ABORTED":
                self.complaints.append(f"request failed: {request.url} {request.failure}")

        def response(answer):
            if OF_OURS.search(answer.url) and answer.status >= 400:
                self.complaints.append(f"request refused: {answer.url} {answer.status}")

        self.page.on("console", console)
        self.page.on("pageerror", page_error)
        self.page.on("requestfailed", request_failed)
        self.page.on("response", response)

    def open(self) -> None:
        """Loads the page, or loads it again."""
        self.page.goto(self.comfyui.url)
        self.page.wait_for_function(
            "() => window.app?.extensionManager && app.graph?.nodes && document.querySelector('#graph-canvas')"
            " && Object.keys(LiteGraph.registered_node_types).length > 100",
            timeout=READY_SECONDS * 1000,
        )
        self.page.evaluate(
            """() => {
                window.otcaTest = { events: [] };
                const types = ["execution_start", "execution_cached", "executing", "executed", "execution_success",
                               "execution_error", "execution_interrupted", "progress"];
                for (const type of types) {
                    comfyAPI.api.api.addEventListener(type, ({ detail }) => otcaTest.events.push([type, detail]));
                }
            }"""
        )

    def renderer_is_hidden(self) -> bool:
        """Whether this front end's Nodes 2.0 is an experiment that its settings dialog does not offer."""
        return self.page.evaluate("() => app.ui.settings.settingsLookup['Comfy.VueNodes.Enabled'].type === 'hidden'")

    def forget(self) -> None:
        """Leaves nothing of one test to the next: no prompt, an empty graph, no dialog, no messages, no complaints."""
        # A test that failed may leave one of ComfyUI's, which hides all else from `get_by_role`.
        if self.page.locator("[role=dialog]:visible").count():
            self.open()
        self.page.evaluate(
            """async () => {
                const { api } = comfyAPI.api;
                const atWork = async () => {
                    const { queue_running, queue_pending } = await (await api.fetchApi("/queue")).json();
                    return queue_running.length + queue_pending.length;
                };
                if (await atWork()) {
                    await api.fetchApi("/queue", { method: "POST", body: '{"clear": true}' });
                    await api.interrupt(null);
                    for (let left = 300; left && (await atWork()); left--) await new Promise(done => setTimeout(done, 100));
                }
                app.graph.clear();
                for (const dialog of document.querySelectorAll("dialog.otca-dialog[open]")) dialog.close();
                otcaTest.events.length = 0;
            }"""
        )
        self.complaints.clear()
        self.expected.clear()

    def unexpected(self, complaints: list[str]) -> list[str]:
        expected = (*self.expected, BYPASSED)
        return [complaint for complaint in complaints if not any(part in complaint for part in expected)]

    # The graph

    def load(self, workflow: Path) -> None:
        """Opens a workflow file of the canvas's own format."""
        content = json.loads(workflow.read_text(encoding="utf-8"))
        self.page.evaluate(
            """async content => {
                await app.loadGraphData(content);
                await new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)));  // the view is fitted
            }""",
            content,
        )
        self.wait("n => app.graph.nodes.length === n", len(content["nodes"]))

    def set(self, values: dict[str, object]) -> None:
        """Sets widgets as typing would: {"9.w_min": 0.2, "3.seed control_after_generate": "fixed"}."""
        self.page.evaluate(
            """values => {
                for (const [key, value] of Object.entries(values)) {
                    const [id, path] = key.split("."), [name, linked] = path.split(" ");
                    const node = app.graph.getNodeById(id);
                    let widget = node?.widgets?.find(w => w.name === name);
                    if (linked) widget = widget?.linkedWidgets?.find(w => w.name === linked);
                    if (!widget) throw new Error(`no widget ${key}`);
                    widget.value = value;
                    widget.callback?.(value, app.canvas, node);
                }
                app.graph.setDirtyCanvas(true, true);
            }""",
            values,
        )

    def show(self, node: int) -> None:
        """Moves the canvas to a node, unmagnified."""
        self.page.evaluate(
            "id => { app.canvas.ds.scale = 1; app.canvas.centerOnNode(app.graph.getNodeById(id)); }", node
        )

    def widget(self, key: str):
        node, name = key.split(".")
        return self.page.evaluate(
            "([id, name]) => app.graph.getNodeById(id).widgets.find(w => w.name === name).value", [node, name]
        )

    def prompt(self) -> dict:
        """What is queued for the page: the graph in API format."""
        return self.page.evaluate("async () => (await app.graphToPrompt()).output")

    def press(self, node: int, name: str) -> None:
        """Presses a node's button widget, which only Nodes 2.0 has in the page's own elements.

        The other renderers draw it where the last frame had it. A node that grows meanwhile moves it away, so it is pressed
        again until it has heard of that.
        """
        self.show(node)
        if self.renderer == "nodes2":
            self.page.locator(f'[data-node-id="{node}"]').get_by_role("button", name=name).click()
            return
        self.wait(
            """([id, name]) => {
                const widget = app.graph.getNodeById(id).widgets.find(w => w.name === name);
                if (!(widget.last_y > 0)) return false;
                const { callback } = widget;
                otcaTest.pressed = false;
                widget.callback = function (...values) {
                    widget.callback = callback;
                    otcaTest.pressed = true;
                    return callback.apply(this, values);
                };
                return true;
            }""",
            [node, name],
        )
        for _ in range(PRESSES):
            self._click(node, name)
            heard = self.page.evaluate(
                """async seconds => {
                    const end = Date.now() + 1000 * seconds;
                    while (!otcaTest.pressed && Date.now() < end) await new Promise(done => setTimeout(done, 50));
                    return otcaTest.pressed;
                }""",
                PRESS_SECONDS,
            )
            if heard:
                return
        raise AssertionError(f"the button {name} did not hear of {PRESSES} clicks")

    def _click(self, node: int, name: str) -> None:
        """Clicks where a button widget was drawn last."""
        place, before = self._place(node, name), None
        while place != before:  # what is being moved, or laid out anew, is drawn some frames later
            self.page.wait_for_timeout(150)
            place, before = self._place(node, name), place
        covering = self.page.evaluate(
            """([x, y]) => {
                const top = document.elementFromPoint(x, y);
                return top?.closest("#graph-canvas, .graph-canvas-container") ? "" : top?.outerHTML.slice(0, 300) ?? "nothing";
            }""",
            place,
        )
        assert not covering, f"the button {name} is behind {covering}"
        self.page.mouse.click(*place)

    def _place(self, node: int, name: str) -> list[float]:
        """Where a widget was drawn last, in pixels of the page."""
        return self.page.evaluate(
            """([id, name]) => {
                const node = app.graph.getNodeById(id), widget = node.widgets.find(w => w.name === name);
                const { ds, canvas } = app.canvas, box = canvas.getBoundingClientRect();
                const at = [node.pos[0] + node.size[0] / 2, node.pos[1] + widget.last_y + 10];
                return [box.left + (at[0] + ds.offset[0]) * ds.scale, box.top + (at[1] + ds.offset[1]) * ds.scale];
            }""",
            [node, name],
        )

    def our_tab(self):
        """The sidebar's button of our tab, which older front ends name by a class, and 1.58 by an id for tests."""
        return self.page.locator(".otca-tab-button, [data-testid=otca-tab-button]")

    # Running it

    def press_run(self) -> None:
        self.page.get_by_role("button", name="Run", exact=True).first.click()  # ComfyUI 0.33 calls its menu Run, too

    def press_stop(self) -> None:
        self.page.get_by_role("button", name="Cancel current run").click()

    def run(self, times: int = 1) -> None:
        """Queues the graph as the Run button does, without waiting."""
        refused = self.page.evaluate(
            "async times => { await app.queuePrompt(0, times); return app.lastNodeErrors; }", times
        )
        assert not refused, f"the server refused the prompt: {refused}"

    def run_and_wait(self, times: int = 1) -> list[Execution]:
        """Queues the graph, waits for its end, and says what ran."""
        with self.executions(times) as ran:
            self.run(times)
        return ran

    @contextmanager
    def executions(self, times: int):
        """The prompts that end while the block runs and after; waits for `times` of them."""
        first = self.page.evaluate("() => otcaTest.events.length")
        ran: list[Execution] = []
        yield ran
        self.wait(
            """([first, times]) => otcaTest.events.slice(first).filter(
                ([type]) => /execution_(success|error|interrupted)/.test(type)).length >= times""",
            [first, times],
            seconds=RUN_SECONDS,
        )
        ran += _executions(self.page.evaluate("first => otcaTest.events.slice(first)", first))

    def events(self) -> list:
        return self.page.evaluate("() => otcaTest.events")

    def wait(self, condition: str, argument=None, seconds: float = 20):
        """Waits until a JavaScript function returns something true, which may be an object of the page."""
        self.page.wait_for_function(condition, arg=argument, timeout=seconds * 1000)

    def wait_for_value(self, function: str, argument=None, seconds: float = 20):
        """What a JavaScript function returns as soon as that is true, read as JSON."""
        return self.page.wait_for_function(function, arg=argument, timeout=seconds * 1000).json_value()


class Execution(NamedTuple):
    """One prompt's way through the server: its end, the nodes that ran, and the nodes whose outputs were there already."""

    end: str
    detail: dict
    ran: set[str]
    cached: set[str]


def _executions(events: list) -> list[Execution]:
    found, ran, cached = [], set(), set()
    for type_, detail in events:
        if type_ == "execution_start":
            ran, cached = set(), set()
        elif type_ == "executing" and detail:
            ran.add(detail if isinstance(detail, str) else detail["node"])
        elif type_ == "execution_cached":
            cached |= set(detail["nodes"])
        elif type_ in ("execution_success", "execution_error", "execution_interrupted"):
            found.append(Execution(type_, detail, ran - cached, cached))
    return found
