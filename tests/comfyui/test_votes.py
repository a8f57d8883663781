"""Votes on the canvas: a training that waits for somebody who likes red pictures, in every ComfyUI and both renderers."""

import json
import shutil
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from comfyui_otca.tools.canvases.templates import TEMPLATES
from comfyui_otca.trainer.opinions import votes
from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.types import Prompt

ITERATIONS = 6

# A learning rate that shows in six iterations, and the same prompts in each.
VOTED = {
    "2.prompts": "a red circle on a black background\na red square on a blue background",
    "2.file": "",
    "2.prompts_per_iteration": 2,
    "2.index control_after_generate": "fixed",
    "3.group_size": 6,
    "3.steps": 4,
    "3.eta": 0.7,
    "11.learning_rate": 0.002,
    "12.evaluate_every": 1000,
    "12.evaluation_prompts": "a circle",
    "12.evaluation_seeds": 1,
}

REPLACE_REWARDS = """votes => {
    for (const id of [4, 5, 6]) app.graph.remove(app.graph.getNodeById(id));
    const node = LiteGraph.createNode("OTCA_RewardVote");
    node.pos = [...app.graph.getNodeById(7).pos];
    node.pos[1] -= 320;
    app.graph.add(node);
    const stack = app.graph.getNodeById(8);
    node.connect(0, stack, stack.inputs.findIndex(input => input.name === "reward_1"));
    node.widgets.find(widget => widget.name === "votes").value = votes;
}"""

# The mean red of each picture that is shown, as far as it is above green and blue: what a user who likes red sees.
RED = """() => [...document.querySelectorAll(".otca-vote-picture img")].map(img => {
    const canvas = Object.assign(document.createElement("canvas"), { width: img.naturalWidth, height: img.naturalHeight });
    const context = canvas.getContext("2d");
    context.drawImage(img, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    let red = 0;
    for (let at = 0; at < data.length; at += 4) red += Math.max(0, data[at] - Math.max(data[at + 1], data[at + 2]));
    return red / data.length;
})"""
LOADED = """() => { const shown = [...document.querySelectorAll(".otca-vote-picture img")];
    return shown.length > 1 && shown.every(img => img.complete && img.naturalWidth); }"""
WHICH = "() => document.querySelector('.otca-vote-picture img')?.src ?? ''"


class Voter:
    """Clicks as a user who likes red pictures does."""

    def __init__(self, canvas):
        self.canvas, self.page = canvas, canvas.page
        self.panel = self.page.locator("dialog.otca-vote[open]")

    def see(self):
        """Waits for a group, and gives how red each of its pictures is."""
        self.panel.wait_for(timeout=120_000)
        self.canvas.wait(LOADED, seconds=60)
        return self.page.evaluate(RED)

    def pick(self):
        red = self.see()
        pictures = self.panel.locator(".otca-vote-picture")
        pictures.nth(int(np.argmax(red))).click()
        pictures.nth(int(np.argmin(red))).click(button="right")

    def next(self):
        shown = self.page.evaluate(WHICH)
        self.panel.get_by_role("button", name="Next").click()
        self.canvas.wait(f"shown => ({WHICH})() !== shown", shown, seconds=60)

    def vote(self, groups):
        for _ in range(groups):
            self.pick()
            self.next()

    def marks(self):
        return self.panel.locator(".otca-vote-mark").all_text_contents()


def load(canvas, run_name):
    """OTCA's workflow with the Vote reward alone."""
    canvas.load(TEMPLATES["otca"].canvas)
    canvas.set({**VOTED, "1.seed": 0, "12.run_name": run_name, "13.filename": run_name})
    canvas.page.evaluate(REPLACE_REWARDS, run_name)


@pytest.fixture
def voted(canvas, run_name):
    load(canvas, run_name)
    yield canvas
    canvas.page.evaluate("() => comfyAPI.api.api.interrupt(null)")


def lines(canvas, run_name):
    store = votes.of_folder(canvas.comfyui.base / "output" / "otca_votes" / run_name)
    return [vote.as_json() for vote in votes.read(store)]


def redness(canvas, run_name, line):
    folder = canvas.comfyui.base / "output" / "otca_votes" / run_name
    pixels = [np.asarray(Image.open(folder / picture)).astype(float) / 255 for picture in line["pictures"]]
    return float(np.mean([np.maximum(0, p[..., 0] - p[..., 1:].max(-1)) for p in pixels]))


def test_a_training_voted_by_who_likes_red_makes_more_red(voted, run_name, newest, everything):
    if not everything and not (newest and voted.renderer == "classic"):
        pytest.skip("every ComfyUI and renderer is tried by --everything")
    voter = Voter(voted)
    with voted.executions(ITERATIONS) as ran:
        voted.run(ITERATIONS)
        voter.vote(2 * ITERATIONS)
    assert [execution.end for execution in ran] == ["execution_success"] * ITERATIONS, ran[-1].detail
    said = lines(voted, run_name)
    assert len(said) == 2 * ITERATIONS
    red = [redness(voted, run_name, line) for line in said]
    first, last = np.mean(red[:2]), np.mean(red[-2:])
    assert last > 1.2 * first, np.reshape(red, (-1, 2)).mean(1)
    assert not voter.panel.is_visible()


def test_reload_and_stop_amid_a_vote_lose_nothing(voted, run_name):
    voter = Voter(voted)
    voted.set({"3.seed control_after_generate": "fixed"})
    with voted.executions(1) as stopped:
        voted.run()
        voter.vote(1)  # the first of two groups
        (before,) = lines(voted, run_name)
        second = voted.page.evaluate(WHICH)
        voted.open()  # the page is loaded again, while the training waits
        voter.see()
        assert voted.page.evaluate(WHICH) == second, "the same group comes back"
        voter.panel.get_by_role("button", name="Stop training").click()
    assert stopped[0].end == "execution_interrupted"
    voter.panel.wait_for(state="hidden")
    assert lines(voted, run_name) == [before]
    load(voted, run_name)
    with voted.executions(1) as again:
        voted.run()
        voter.see()
        assert voted.page.evaluate(WHICH) == second, "and it is asked again, but not the one before it"
        voter.pick()
        voter.panel.get_by_role("button", name="Next").click()
    assert again[0].end == "execution_success", again[0].detail
    assert [line["answer"]["kind"] for line in lines(voted, run_name)] == ["order", "order"]
    assert lines(voted, run_name)[0] == before


def test_keys_thumbs_order_undo_alike_and_skip(voted, run_name):
    page, voter = voted.page, Voter(voted)
    with voted.executions(1) as ran:
        voted.run()
        voter.see()
        page.keyboard.press("3")
        page.keyboard.press("Shift+5")
        assert voter.marks() == ["", "", "best", "", "worst", ""]
        page.keyboard.press("u")
        assert voter.marks() == ["", "", "best", "", "", ""]
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        assert voter.marks().count("best") == 1
        page.keyboard.press("3")
        page.keyboard.press("Space")
        voted.wait("() => document.querySelector('.otca-vote').textContent.includes('1 left')")
        (first,) = lines(voted, run_name)
        assert first["answer"] == {"kind": "order", "order": [[2], [0, 1, 3, 4, 5]]}

        page.keyboard.press("u")  # back to the first group
        voted.wait("() => document.querySelector('.otca-vote').textContent.includes('2 left')")
        assert [line["answer"]["kind"] for line in lines(voted, run_name)] == ["order", "withdrawn"]
        voter.panel.get_by_role("button", name="Thumbs").click()
        pictures = voter.panel.locator(".otca-vote-picture")
        pictures.nth(1).click()
        pictures.nth(4).click(modifiers=["Shift"])
        assert voter.marks() == ["", "up", "", "", "down", ""]
        voter.panel.get_by_role("button", name="Order").click()
        pictures.nth(5).drag_to(pictures.nth(0))
        assert voter.marks() == ["1.", "", "", "", "", ""]
        page.keyboard.press("3")
        assert voter.marks() == ["1.", "2.", "", "", "", ""]
        voter.next()
        assert lines(voted, run_name)[-1]["answer"] == {"kind": "order", "order": [[5], [2], [0, 1, 3, 4]]}

        page.keyboard.press("Escape")
        page.get_by_role("button", name="Vote: 1 group waiting").click()
        voter.see()
        voter.panel.get_by_role("button", name="All alike").click()
    assert ran[0].end == "execution_success", ran[0].detail
    assert [line["answer"]["kind"] for line in lines(voted, run_name)] == ["order", "withdrawn", "order", "alike"]
    (row,) = voted.comfyui.metrics(run_name)
    assert row["does_not_apply/vote"] == 6


# --- the picture that was edited --------------------------------------------------------------------------------------------

BLUE = (20, 60, 220)
# The size and the middle pixel of the picture that was edited, where it is shown.
SOURCE = """() => { const img = document.querySelector(".otca-vote-source");
    if (!img || img.hidden || !img.complete || !img.naturalWidth) return null;
    const canvas = Object.assign(document.createElement("canvas"), { width: img.naturalWidth, height: img.naturalHeight });
    const context = canvas.getContext("2d");
    context.drawImage(img, 0, 0);
    const { data } = context.getImageData(canvas.width / 2, canvas.height / 2, 1, 1);
    return [canvas.width, canvas.height, ...data.slice(0, 3)];
}"""


def test_the_picture_that_was_edited_stands_beside_the_prompt(canvas, run_name, once, tiny_folder):
    base = canvas.comfyui.base
    folder = base / "models" / "diffusers" / "tiny-kontext"
    if not folder.exists():
        shutil.copytree(tiny_folder("flux-kontext"), folder)
    Image.new("RGB", (60, 40), BLUE).save(base / "input" / "start.png")
    rows = [{"prompt": "make it red", "image": "start.png"}, {"prompt": "make it green", "image": "start.png"}]
    (base / "input" / "edits.jsonl").write_text("\n".join(map(json.dumps, rows)))
    load(canvas, run_name)
    edits = {"1.path": "tiny-kontext", "2.prompts": "", "2.file": "edits.jsonl", "3.width": 32, "3.height": 32}
    canvas.set({**edits, "3.group_size": 2, "12.evaluate_every": 0})
    voter = Voter(canvas)
    with canvas.executions(1) as ran:
        canvas.run()
        voter.see()
        canvas.wait(f"() => ({SOURCE})()")
        assert canvas.page.evaluate(SOURCE) == [60, 40, *BLUE]
        box = voter.panel.locator(".otca-vote-source").bounding_box()
        text = voter.panel.locator(".otca-vote-prompt").bounding_box()
        assert box["width"] > 40 and box["x"] + box["width"] <= text["x"], "beside the prompt, before it"
        voter.vote(2)
    assert ran[0].end == "execution_success", ran[0].detail


def test_the_page_of_a_vote_elsewhere_shows_it_too(browser, tmp_path):
    """`otca vote`, and a training in another process whose files it cannot see."""
    Image.new("RGB", (60, 40), BLUE).save(tmp_path / "start.png")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "comfyui_otca", "vote", "--folder", str(tmp_path / "votes"), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    try:
        assert [server.stdout.readline(), server.stdout.readline()][1].startswith("vote on")
        reward, found = reward_class("vote")(url=f"http://127.0.0.1:{port}/score"), []
        pictures = torch.arange(2)[:, None, None, None].expand(2, 64, 64, 3) / 4
        edit = Prompt("make it red", {"image": str(tmp_path / "start.png")})
        training = threading.Thread(target=lambda: found.append(reward.score_groups(pictures, [edit] * 2, [0, 0])))
        training.start()
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_function(f"() => ({SOURCE})()", timeout=30_000)
        assert page.evaluate(SOURCE) == [60, 40, *BLUE]
        page.locator(".otca-vote-picture").nth(1).click()
        page.get_by_role("button", name="Next").click()
        training.join(30)
        [[low, high]] = found
        assert high > 0 > low
    finally:
        page.close()
        server.kill()
        server.wait()
        server.stdout.close()
