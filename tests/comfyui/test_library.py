"""Many runs in the sidebar: narrowed, sorted, noted, compared and deleted. The renderer does not matter."""

import json
import re

import pytest
import torch

from comfyui_otca.tests.comfyui.server import WORKFLOWS
from comfyui_otca.trainer.pictures import grids

pytestmark = pytest.mark.parametrize("open_canvas", ["classic"], indirect=True)

PROMPTS = ["a red circle", "a blue square"]


@pytest.fixture
def kept(canvas, run_name):
    """kept(name, rise, w_min): the folder of a run that has ended, of one reward; its last pictures are of one grey, `rise`."""

    def make(name, rise, w_min=0.2, iterations=40):
        run = canvas.comfyui.run_folder(f"{run_name}-{name}")
        run.mkdir(parents=True)
        graph = json.loads((WORKFLOWS / "api" / "otca.json").read_text(encoding="utf-8"))
        (weights,) = [entry for entry in graph.values() if entry["class_type"] == "OTCA_TCDWeights"]
        weights["inputs"]["w_min"] = w_min
        (run / "workflow.json").write_text(json.dumps(graph), encoding="utf-8")
        rows = [{"iteration": i, "reward/clip_t/mean": rise * i / iterations} for i in range(1, iterations + 1)]
        rows = [{**row, "seconds/iteration": 2.0} for row in rows]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        evaluations = []
        for iteration in (0, iterations):
            mean = rise * iteration / iterations
            figures = {"mean": mean, "std": 1.0, "standard_error": 0.1, "held_out": False, "values": [mean, mean]}
            evaluations.append({"iteration": iteration, "prompts": PROMPTS, "rewards": {"clip_t": figures}})
            picture = grids.sample_grid(torch.full((2, 32, 32, 3), min(1.0, mean)), PROMPTS)
            grids.save(picture, run / "samples" / f"{iteration:06d}.png")
        (run / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evaluations))
        (run / "status.json").write_text(json.dumps({"status": "finished", "place": "headless", "total": iterations}))
        return run

    return make


@pytest.fixture
def sidebar(canvas):
    """Opens OTCA's tab; afterwards it is closed again."""
    tab = canvas.our_tab()

    def open_tab():
        tab.click()
        panel = canvas.page.locator(".otca-sidebar")
        panel.wait_for()
        return panel

    yield open_tab
    canvas.page.keyboard.press("Escape")
    if canvas.page.locator(".otca-sidebar").count():
        whole = canvas.page.get_by_role("button", name="Show all")
        if whole.is_visible():
            whole.click()  # else the next test's list is narrow, too
        tab.click()


def names(panel):
    return panel.locator(".otca-run-title").all_text_contents()  # also of entries that are out of view


def entry(panel, run):
    return panel.locator(f'[data-run="{run.name}"]')


def test_the_list_is_narrowed_sorted_and_noted(canvas, sidebar, kept, run_name):
    worst, best = kept("a", 0.25), kept("b", 0.75)
    panel = sidebar()
    panel.get_by_label("Filter by name or notes").fill(run_name)
    panel.get_by_label("Sort by").select_option("score")
    canvas.wait("() => document.querySelectorAll('.otca-run-title').length === 2")
    assert names(panel) == [best.name, worst.name] and "score 0.75" in entry(panel, best).text_content()
    panel.get_by_label("Sort by").select_option("name")
    assert names(panel) == [worst.name, best.name]

    entry(panel, worst).click()
    panel.locator(".otca-run-name", has_text=worst.name).wait_for()
    panel.get_by_label("Notes", exact=True).fill("too slow, says the log")
    panel.get_by_label("Filter by name or notes").fill("says slow")
    canvas.wait("() => document.querySelectorAll('.otca-run-title').length === 1")
    kept_notes = json.loads((worst / "notes.json").read_text())
    assert kept_notes == {"notes": "too slow, says the log"}

    panel.get_by_role("button", name="Show all").click()
    panel.get_by_label("Sort by").select_option("newest")
    assert {worst.name, best.name} <= set(names(panel))


def test_two_runs_are_compared_by_keyboard_and_mouse(canvas, sidebar, kept):
    one, two = kept("a", 0.25, w_min=0.2), kept("b", 0.75, w_min=0.5)
    panel, page = sidebar(), canvas.page
    entry(panel, one).focus()
    page.keyboard.press("Control+Space")
    entry(panel, two).click(modifiers=["Control"])
    panel.get_by_role("button", name="Compare 2 runs").click()
    dialog = page.locator("dialog.otca-compare[open]")
    canvas.wait("() => document.querySelectorAll('.otca-compare .otca-line').length === 2")

    # Along seconds the last of 40 iterations, of 2 s each, stands at 80; the readout is that of the right end.
    dialog.get_by_label("Figure").select_option("reward/clip_t/mean")
    dialog.get_by_label("Along", exact=True).select_option("seconds")
    canvas.wait("() => /seconds/.test(document.querySelector('.otca-compare .otca-chart-plot').textContent)")
    dialog.locator(".otca-chart-plot").focus()
    page.keyboard.press("ArrowRight")
    readout = dialog.locator(".otca-chart-readout").inner_text()
    assert readout.startswith("80: ") and f"{one.name} 0.25" in readout and f"{two.name} 0.75" in readout, readout

    slider = dialog.get_by_label(re.compile(r"^Where .* ends and .* begins$"))
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert slider.input_value() == "49"
    # Whichever is on the left: the two halves are of the two greys of the pictures, 0.25 and 0.75 of white.
    stage = dialog.locator(".otca-split")
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.49, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 20)
    page.mouse.up()
    assert abs(int(slider.input_value()) - 80) <= 3  # the thumb has a width, too

    (row,) = dialog.locator(".otca-settings tbody tr").all_inner_texts()
    assert "TCD Weights" in row and "w_min" in row and {"0.2", "0.5"} <= set(row.split())
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    panel.get_by_role("button", name="Choose none").click()


def test_a_run_is_deleted(canvas, sidebar, kept):
    run = kept("a", 0.5)
    panel, page = sidebar(), canvas.page
    entry(panel, run).click()
    panel.locator(".otca-run-name", has_text=run.name).wait_for()
    panel.get_by_role("button", name="Delete…").click()
    dialog = page.locator("dialog.otca-dialog[open]")
    dialog.wait_for()
    assert str(run) in dialog.inner_text() and "files" in dialog.inner_text()
    dialog.get_by_role("button", name="Delete for good").click()
    dialog.wait_for(state="detached")
    canvas.wait("name => !document.querySelector(`[data-run='${name}']`)", run.name)
    assert not run.exists()


def test_a_deleted_run_begins_anew(small, sidebar, run_name):
    small.run_and_wait()
    first = small.comfyui.metrics(run_name)
    panel, page = sidebar(), small.page
    panel.locator(f'[data-run="{run_name}"]').click()
    panel.locator(".otca-run-name", has_text=run_name).wait_for()
    panel.get_by_role("button", name="Delete…").click()
    dialog = page.locator("dialog.otca-dialog[open]")
    dialog.get_by_role("button", name="Delete for good").click()
    dialog.wait_for(state="detached")
    small.run_and_wait()
    assert [row["iteration"] for row in first] == [1]
    assert [row["iteration"] for row in small.comfyui.metrics(run_name)] == [1], "a run of its own, from its beginning"
