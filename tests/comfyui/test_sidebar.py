"""Training in a process of its own, started and followed from the sidebar. Which renderer draws the nodes does not matter."""

import pytest

from comfyui_otca.tests.comfyui.canvas import Canvas
from comfyui_otca.tools.locales import page_table

pytestmark = pytest.mark.parametrize("open_canvas", ["classic"], indirect=True)

TRAINER_SECONDS = 90  # it starts a Python with torch, which takes most of them on a busy machine


@pytest.fixture
def sidebar(small):
    """OTCA's tab, open."""
    tab = small.our_tab()
    tab.click()
    panel = small.page.locator(".otca-sidebar")
    panel.wait_for()
    yield panel
    small.page.keyboard.press("Escape")
    tab.click()


def train(small, sidebar, name: str, iterations: int) -> None:
    sidebar.get_by_role("button", name="Train headless…").click()
    dialog = small.page.locator("dialog.otca-dialog[open]")
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_label("Iterations").fill(str(iterations))
    dialog.get_by_role("button", name="Start training").click()
    dialog.wait_for(state="detached")


def train_on(small, sidebar, iterations: int) -> None:
    sidebar.get_by_role("button", name="Train on…").click()
    dialog = small.page.locator("dialog.otca-dialog[open]")
    dialog.get_by_label("Iterations in all").fill(str(iterations))
    dialog.get_by_role("button", name="Train on", exact=True).click()
    dialog.wait_for(state="detached")


def wait_for(sidebar, status: str, progress: str = "") -> None:
    """Until the chosen run's head says so. (Its name, a test's, may hold any word.)"""
    has = sidebar.page.locator(".otca-status", has_text=status)
    head = sidebar.locator(".otca-run-head").filter(has=has).filter(has_text=progress)
    head.wait_for(timeout=TRAINER_SECONDS * 1000)


def wait_for_iteration(small, run: str, least: int) -> None:
    """Until that run has so many: the head may still be that of the run which was shown before."""
    small.wait(
        """([run, least]) => {
            const head = document.querySelector(".otca-run-head");
            const its = head.querySelector(".otca-run-name").textContent === run;
            return its && Number(/iteration ([0-9]+)/.exec(head.textContent.replace(run, ""))?.[1]) >= least;
        }""",
        [run, least],
        seconds=TRAINER_SECONDS,
    )


def test_a_headless_run_is_trained_trained_on_and_its_adapter_loaded(small, sidebar, run_name):
    name = f"headless-{run_name}"
    train(small, sidebar, name, 2)
    entry = sidebar.locator(f'[data-run="{name}"]')
    entry.wait_for()
    wait_for(sidebar, "finished", "iteration 2 of 2")
    assert "headless" in entry.inner_text()
    assert sidebar.locator("figure.otca-chart", has_text="colorfulness").count() >= 1

    sidebar.locator("summary", has_text="Log of the trainer").click()
    small.wait("() => /iteration/i.test(document.querySelector('.otca-log').textContent)")

    train_on(small, sidebar, 3)
    wait_for(sidebar, "finished", "iteration 3 of 3")
    rows = small.comfyui.metrics(name)
    assert [row["iteration"] for row in rows] == [1, 2, 3]

    sidebar.get_by_role("button", name="Load the LoRA").click()
    small.wait("() => app.graph.nodes.some(node => node.type === 'LoraLoaderModelOnly')")
    chosen = small.page.evaluate(
        "() => app.graph.nodes.find(node => node.type === 'LoraLoaderModelOnly').widgets.find(w => w.name === 'lora_name').value"
    )
    assert chosen in (f"otca/{name}.safetensors", f"{run_name}.safetensors"), "a copy, or what Save LoRA wrote"
    loader = "LoraLoaderModelOnly"
    offered = small.comfyui.get(f"/object_info/{loader}")[loader]["input"]["required"]["lora_name"][0]
    assert chosen in offered


def test_a_headless_run_is_stopped_and_resumed(once, small, sidebar, run_name):
    name = f"long-{run_name}"
    train(small, sidebar, name, 500)
    wait_for_iteration(small, name, 1)
    sidebar.get_by_role("button", name="Stop", exact=True).click()
    wait_for(sidebar, "stopped")
    stopped = len(small.comfyui.metrics(name))
    assert 1 <= stopped < 500

    sidebar.get_by_role("button", name="Resume headless", exact=True).click()
    wait_for_iteration(small, name, stopped + 1)
    sidebar.get_by_role("button", name="Stop", exact=True).click()
    wait_for(sidebar, "stopped")
    rows = [row["iteration"] for row in small.comfyui.metrics(name)]
    assert rows == list(range(1, len(rows) + 1)), "it goes on where it was stopped"


def test_it_speaks_the_language_of_comfyui(once, open_canvas, browser):
    comfyui, page = open_canvas.comfyui, browser.new_page(viewport={"width": 1600, "height": 900})
    comfyui.post("/api/settings", {"Comfy.Locale": "fr"})
    try:
        french = Canvas(page, comfyui, "classic")
        french.our_tab().click()
        said = page_table("fr")
        for text in ("Train headless…", "New run"):
            page.locator(".otca-sidebar").get_by_role("button", name=said[text], exact=True).wait_for()
        assert french.complaints == []
    finally:
        comfyui.post("/api/settings", {"Comfy.Locale": "en"})
        page.close()
