"""axe-core on our parts of the page, in the dark and the light palette: nothing that it calls serious or critical."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from comfyui_otca.tests.comfyui.fed import RUN, feed, feed_heatmap, feed_scores
from comfyui_otca.tests.comfyui.server import ROOT
from comfyui_otca.tools.canvases.templates import TEMPLATES

HOW = "name axe.min.js by AXE_CORE, or install it beside the repository (CONTRIBUTING.md)"

# Only what hinders somebody. Rules about whole pages are ComfyUI's affair.
AXE = """async selector => {
    const { violations } = await axe.run(selector, { rules: { region: { enabled: false } } });
    const grave = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
    return grave.flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => [id, html.slice(0, 200), failureSummary]));
}"""


def axe_core() -> Path | None:
    folders = [parent / "node_modules" / "axe-core" for parent in (ROOT, *ROOT.parents)]
    named = os.environ.get("AXE_CORE")
    found = [Path(named)] if named else [folder / "axe.min.js" for folder in folders]
    return next((file for file in found if file.is_file()), None)


@pytest.fixture(params=["dark", "light"])
def page(request, canvas):
    """The page of one palette with axe-core and OTCA's workflow, whose widgets show something."""
    if (script := axe_core()) is None:
        pytest.skip(f"axe-core is missing: {HOW}")
    choose = "palette => app.extensionManager.setting.set('Comfy.ColorPalette', palette)"
    canvas.page.evaluate(choose, request.param)
    # not by a tag, which fails where the page itself, at that moment, is refused a model file from another host
    canvas.page.evaluate(script.read_text(encoding="utf-8"))
    canvas.load(TEMPLATES["otca"].canvas)
    feed_heatmap(canvas, prompts=2, samples=4, steps=10)
    feed_scores(canvas, prompts=2, samples=4)
    yield canvas
    canvas.page.evaluate(choose, "dark")


def check(canvas, selector: str) -> None:
    canvas.page.locator(selector).first.wait_for()
    findings = canvas.page.evaluate(AXE, selector)
    assert not findings, json.dumps(findings, indent=1)


def test_heatmap(page):
    page.show(9)
    check(page, ".otca-heatmap")
    feed_heatmap(page, prompts=16, samples=32, steps=50, scale=1000)
    check(page, ".otca-heatmap")


def test_reward_table(page):
    page.show(8)
    check(page, ".otca-scores")


def test_curves(page):
    rows = [
        {"iteration": number, "reward/clip_t/mean": number / 9, "held_out/accuracy/mean": 0.5} for number in (1, 2, 3)
    ]
    answer = {"rows": rows, "evaluations": [], "changes": [{"iteration": 2, "lines": ["clip: 1"]}], "more": False}
    route = "**/otca/runs/fed/metrics*"
    answer_by(page, route, answer)
    page.show(12)
    feed(page, RUN, "run", {"run": "fed", "iteration": 3})
    page.page.locator(".otca-curves-line path").first.wait_for(state="attached")
    page.page.unroute(route)
    check(page, ".otca-curves")


def test_owner(page):
    feed(page, "1", "owner", {"text": "otca, iteration 4", "memory": "about 1 GiB"})
    page.show(1)
    check(page, ".otca-owner-line")


RUN_FACTS = {
    "id": "fed",
    "status": "finished",
    "place": "headless",
    "iteration": 3,
    "total": 3,
    "started": 1.0,
    "updated": 2.0,
    "rewrites": 0,
    "error": "evaluation.jsonl is damaged. Fix: resume",
    "has_lora": True,
    "has_checkpoint": True,
}
ROWS = [
    {
        "iteration": number,
        "reward/clip_t/mean": number / 9,
        "held_out/accuracy/mean": 0.5,
        "gradient_norm": 0.1 * number,
        "clip/high": 0.1,
        "clip/low": 0.2,
        "seconds/rollout": 1.0,
        "seconds/update": 2.0,
        "credit/step/0": 1.2,
        "credit/step/1": 0.8,
    }
    for number in (1, 2, 3)
]
ANSWERS = {
    "/otca/runs": {"runs": [RUN_FACTS, {**RUN_FACTS, "id": "other", "status": "stopped", "error": None}]},
    "/otca/runs/*": {
        **RUN_FACTS,
        "settings": {"GRPO Step": {"clip_range": 1e-4}},
        "rewards": ["clip_t"],
        "held_out": ["accuracy"],
        "samples": [],
        "pictures": [],
        "warning": "clip_t rises while accuracy, which is held out, declines",
    },
    "/otca/runs/*/metrics*": {
        "rows": ROWS,
        "evaluations": [],
        "changes": [{"iteration": 2, "lines": ["GRPO Step clip_range: 0.1 → 0.2"]}],
        "more": False,
    },
    "/otca/runs/*/before_after": {"pairs": [], "work": None, "from_comfyui": False},
    "/otca/runs/*/log*": {"text": "iteration 1", "size": 11},
}


def answer_by(page, route: str, answer: dict) -> None:
    page.page.route(route, lambda request: request.fulfill(json=answer))


@pytest.fixture
def sidebar(page):
    """OTCA's tab with a run that needs no training."""
    for route, answer in ANSWERS.items():
        answer_by(page, f"**/api{route}", answer)
    tab = page.our_tab()
    tab.click()
    page.page.locator(".otca-sidebar .otca-line").first.wait_for(state="attached")
    yield page
    page.page.keyboard.press("Escape")
    tab.click()
    for route in ANSWERS:
        page.page.unroute(f"**/api{route}")


def test_sidebar(sidebar):
    sidebar.page.locator(".otca-sidebar summary", has_text="Log of the trainer").click()
    check(sidebar, ".otca-sidebar")


@pytest.mark.parametrize("button", ["Train headless…", "Export…", "Train on…"])
def test_dialogs_of_the_sidebar(sidebar, button):
    sidebar.page.locator(".otca-sidebar").get_by_role("button", name=button).click()
    check(sidebar, "dialog.otca-dialog[open]")
    sidebar.page.keyboard.press("Escape")
    sidebar.page.locator("dialog.otca-dialog[open]").wait_for(state="detached")


def test_permissions(page):
    wants = [{"kind": "host", "text": "asks 10.0.0.7", "allowed": False, "remember": "10.0.0.7", "fix": "allow it"}]
    route = "**/otca/permissions/wants"
    answer_by(page, route, {"wants": wants})
    page.page.evaluate("() => app.extensionManager.command.execute('OTCA.Permissions')")
    check(page, "dialog.otca-dialog[open]")
    page.page.unroute(route)


PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cf500f0003860180a4a5e6f40000000049454e44ae426082"
)


def test_vote_panel(page):
    question = {
        "id": "q",
        "prompt": "a red circle",
        "pictures": [{"video": False}] * 4,
        "answered": False,
        "learned": "60 %",
    }
    asked = {"questions": [question], "seconds_each": 4.0}
    answer_by(page, "**/api/otca/votes", asked)
    page.page.route("**/otca/votes/q/pictures/*", lambda request: request.fulfill(body=PIXEL, content_type="image/png"))
    page.page.evaluate("() => comfyAPI.api.api.dispatchEvent(new CustomEvent('otca.questions', { detail: {} }))")
    panel = page.page.locator("dialog.otca-vote[open]")
    panel.wait_for()
    page.page.keyboard.press("1")
    check(page, "dialog.otca-vote[open]")
    page.page.keyboard.press("Escape")
    check(page, ".otca-vote-chip")
    page.page.unroute("**/api/otca/votes")
    page.page.unroute("**/otca/votes/q/pictures/*")
    page.page.evaluate("() => comfyAPI.api.api.dispatchEvent(new CustomEvent('otca.questions', { detail: {} }))")
    page.page.locator(".otca-vote-chip").wait_for(state="hidden")
