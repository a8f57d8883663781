"""A graph that needs a package which is not there: refused before anything runs, with the line that installs it."""

from __future__ import annotations

import subprocess

import pytest

from comfyui_otca.tools.canvases.templates import TEMPLATES

NEEDS = "Reward: Text needs rapidocr"
ADD = """() => {
    const stack = app.graph.nodes.find(({ type }) => type === "OTCA_RewardStack");
    const node = LiteGraph.createNode("OTCA_RewardText");
    node.pos = [stack.pos[0], stack.pos[1] - 260];
    app.graph.add(node);
    node.connect(0, stack, stack.inputs.findIndex(({ name, link }) => name.startsWith("reward_") && !link));
    return String(node.id);
}"""


def test_nothing_runs_and_the_line_is_on_the_node_and_over_the_page(canvas, run_name):
    comfyui = canvas.comfyui
    python = [comfyui.installation.python, "-c", "import rapidocr"]
    if subprocess.run(python, capture_output=True, check=False).returncode == 0:
        pytest.skip("this ComfyUI's Python has the package")
    canvas.load(TEMPLATES["quickstart"].canvas)
    canvas.set({"12.run_name": run_name})
    node = canvas.page.evaluate(ADD)
    canvas.expected.append("400")
    before = comfyui.log().count(NEEDS)
    canvas.page.evaluate("() => app.queuePrompt(0)")
    toast = canvas.page.locator(".otca-toast")
    toast.wait_for()
    assert NEEDS in toast.inner_text() and "-m pip install" in toast.inner_text()
    for place in (toast, canvas.page.locator(".otca-owner-line.otca-missing")):
        assert "-m pip install" in place.locator("pre").inner_text()
        place.get_by_role("button", name="Copy").wait_for()
    marked = canvas.page.evaluate(
        "id => Boolean(app.graph.getNodeById(id).has_errors) || Boolean(app.lastNodeErrors?.[id])", node
    )
    assert marked and canvas.events() == []
    assert not comfyui.run_folder(run_name).exists(), "no run was begun"
    assert comfyui.log().count(NEEDS) == before + 1, "once in the log"
    toast.get_by_role("button", name="Close").click()
