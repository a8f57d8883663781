"""axe-core on our parts of the page, in the dark and the light palette: nothing that it calls serious or critical."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from comfyui_otca.tests.comfyui.fed import answering, feed, feed_heatmap, feed_run, feed_scores
from comfyui_otca.tests.comfyui.server import ROOT
from comfyui_otca.tools.canvases.templates import TEMPLATES

HOW = "name axe.min.js by AXE_CORE, or install it beside the repository (docs/maintaining.md)"

# Only what hinders somebody. Rules about whole pages are ComfyUI's affair.
AXE = """async selector => {
    const { violations } = await axe.run(selector, { rules: { region: { enabled: false } } });
    const grave = violations.filter(({ impact }) => ["moderate", "serious", "critical"].includes(impact));
    return grave.flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => [id, html.slice(0, 200), failureSummary]));
}"""


def axe_core() -> Path | None:
    folders = [parent / "node_modules" / "axe-core" for parent in (ROOT, *ROOT.parents)]
    named = os.environ.get("AXE_CORE")
    found = [Path(named)] if named else [folder / "axe.min.js" for folder in folders]
    return next((file for file in found if file.is_file()), None)


@pytest.fixture(params=["dark", "light"])
def page(request, canvas):
    """The page of one palette with axe-core and OTCA's workflow."""
    if (script := axe_core()) is None:
        pytest.skip(f"axe-core is missing: {HOW}")
    choose = "palette => app.extensionManager.setting.set('Comfy.ColorPalette', palette)"
    canvas.page.evaluate(choose, request.param)
    # not by a tag, which fails where the page itself, at that moment, is refused a model file from another host
    canvas.page.evaluate(script.read_text(encoding="utf-8"))
    canvas.load(TEMPLATES["otca"].canvas)
    yield canvas
    canvas.page.evaluate(choose, "dark")


def check(canvas, selector: str) -> None:
    canvas.page.locator(selector).first.wait_for()
    findings = canvas.page.evaluate(AXE, selector)
    assert not findings, json.dumps(findings, indent=1)


ROWS = [
    {
        **{"iteration": number, "reward/clip_t/mean": number / 9, "held_out/accuracy/mean": 0.5},
        **{"gradient_norm": 0.1 * number, "clip/high": 0.1, "clip/low": 0.2},
        **{"seconds/rollout": 1.0, "seconds/update": 2.0, "credit/step/0": 1.2, "credit/step/1": 0.8},
    }
    for number in (1, 2, 3)
]
CHANGES = [{"iteration": 2, "lines": ["GRPO Step clip_range: 0.1 → 0.2"]}]
METRICS = {"rows": ROWS, "evaluations": [], "changes": CHANGES, "more": False}
RUN_FACTS = {
    **{"id": "fed", "status": "finished", "place": "headless", "iteration": 3, "total": 3, "rewrites": 0},
    **{"started": 1.0, "updated": 2.0, "error": "evaluation.jsonl is damaged. Fix: resume"},
    **{"has_lora": True, "has_checkpoint": True},
}
RUNS = {
    "**/api/otca/runs": {"runs": [RUN_FACTS, {**RUN_FACTS, "id": "other", "status": "stopped", "error": None}]},
    "**/api/otca/runs/*": {
        **RUN_FACTS,
        **{"settings": {"GRPO Step": {"clip_range": 1e-4}}, "rewards": ["clip_t"], "held_out": ["accuracy"]},
        **{"samples": [], "pictures": []},
        "warning": "clip_t rises while accuracy, which is held out, declines",
    },
    "**/api/otca/runs/*/metrics*": METRICS,
    "**/api/otca/runs/*/before_after": {"pairs": [], "work": None, "from_comfyui": False},
    "**/api/otca/runs/*/log*": {"text": "iteration 1", "size": 11},
}
WANT = {"kind": "host", "text": "asks 10.0.0.7", "allowed": False, "remember": "10.0.0.7", "fix": "allow it"}
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cf500f0003860180a4a5e6f40000000049454e44ae426082"
)
QUESTION = {
    **{"id": "q", "prompt": "a red circle", "pictures": [{"video": False}] * 4, "answered": False},
    "learned": "60 %",
}


def test_what_nodes_show(page):
    feed_heatmap(page, prompts=2, samples=4, steps=10)
    feed_scores(page, prompts=2, samples=4)
    feed(page, "1", "owner", {"text": "otca, iteration 4", "memory": "about 1 GiB"})
    with answering(page, {"**/otca/runs/fed/metrics*": METRICS}):
        page.show(12)
        feed_run(page, "fed", 3)
        page.page.locator(".otca-curves-line path").first.wait_for(state="attached")
    for node, selector in ((12, ".otca-curves"), (9, ".otca-heatmap"), (8, ".otca-scores"), (1, ".otca-owner-line")):
        page.show(node)
        check(page, selector)
    page.show(9)
    feed_heatmap(page, prompts=16, samples=32, steps=50, scale=1000)
    check(page, ".otca-heatmap")


def test_sidebar_and_its_dialogs(page):
    with answering(page, RUNS):
        tab, sidebar = page.our_tab(), page.page.locator(".otca-sidebar")
        tab.click()
        sidebar.locator(".otca-line").first.wait_for(state="attached")
        for button in ("Train headless…", "Export…", "Train on…"):
            sidebar.get_by_role("button", name=button).click()
            check(page, "dialog.otca-dialog[open]")
            page.page.keyboard.press("Escape")
            page.page.locator("dialog.otca-dialog[open]").wait_for(state="detached")
        sidebar.locator("summary", has_text="Log of the trainer").click()
        check(page, ".otca-sidebar")
        page.page.keyboard.press("Escape")
        tab.click()


def test_permissions(page):
    with answering(page, {"**/otca/permissions/wants": {"wants": [WANT]}}):
        page.page.evaluate("() => app.extensionManager.command.execute('OTCA.Permissions')")
        check(page, "dialog.otca-dialog[open]")


def test_vote_panel(page):
    asked = {"questions": [QUESTION], "seconds_each": 4.0}
    ask = "() => comfyAPI.api.api.dispatchEvent(new CustomEvent('otca.questions', { detail: {} }))"
    with answering(page, {"**/api/otca/votes": asked, "**/otca/votes/q/pictures/*": PIXEL}):
        page.page.evaluate(ask)
        page.page.locator("dialog.otca-vote[open]").wait_for()
        page.page.keyboard.press("1")
        check(page, "dialog.otca-vote[open]")
        page.page.keyboard.press("Escape")
        check(page, ".otca-vote-chip")
    page.page.evaluate(ask)
    page.page.locator(".otca-vote-chip").wait_for(state="hidden")
