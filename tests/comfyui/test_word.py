"""What a real ComfyUI offers without the user's word: no route that works with a process or deletes, no node that runs code, and
what the page says instead. With it, all other tests here try what there is."""

from __future__ import annotations

import json
import urllib.error

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, WITHHELD
from comfyui_otca.tests.comfyui.canvas import Canvas
from comfyui_otca.tests.comfyui.server import ComfyUI
from comfyui_otca.tools.canvases.templates import TEMPLATES

TRUSTED = [
    "train",
    *(
        f"runs/mine/{action}"
        for action in ("resume", "stop", "move_up", "delete", "before_after", "before_after/cancel")
    ),
]


@pytest.fixture(scope="module")
def wordless(comfyui, tmp_path_factory):
    """The same ComfyUI, started without the word."""
    with ComfyUI(comfyui.installation, tmp_path_factory.mktemp("wordless"), word=False) as server:
        yield server


def status(comfyui, path, content):
    try:
        comfyui.post(path, content)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def test_no_route_works_with_a_process_or_deletes(wordless, comfyui):
    """With the word the same requests are refused for what they say: each route is there."""
    run = wordless.run_folder("mine")
    run.mkdir(parents=True)
    (run / "status.json").write_text(json.dumps({"status": "running", "place": "headless", "pid": 1, "total": 3}))
    for prefix in ("/otca", "/api/otca"):
        without = {path: status(wordless, f"{prefix}/{path}", {}) for path in TRUSTED}
        assert set(without.values()) <= {404, 405}, without
        with_word = {path: status(comfyui, f"{prefix}/{path}", {"unknown": 1}) for path in TRUSTED}
        assert set(with_word.values()) == {400}, with_word
    assert {path.name for path in run.iterdir()} == {"status.json"}
    assert wordless.get("/otca/machine")["trainings"]["given"] is False
    assert comfyui.get("/otca/machine")["trainings"]["given"] is True


def test_reward_python_is_listed_only_with_its_word(wordless, comfyui):
    assert comfyui.object_info.keys() - wordless.object_info.keys() == {"OTCA_RewardPython"}
    assert wordless.object_info.keys() >= NODE_CLASS_MAPPINGS.keys() - WITHHELD.keys()
    graph = {"7": {"class_type": "OTCA_RewardPython", "inputs": {"file": "mine.py", "function": "score"}}}
    with pytest.raises(urllib.error.HTTPError) as refused:
        wordless.post("/prompt", {"prompt": graph})
    assert json.load(refused.value)["error"]["message"] == WITHHELD["OTCA_RewardPython"]
    (want,) = json.loads(wordless.post("/otca/permissions/wants", {"prompt": graph}))["wants"]
    assert (want["allowed"], want["fix"]) == (False, WITHHELD["OTCA_RewardPython"])


def test_a_word_given_by_a_file_counts_after_a_restart(once, wordless):
    """Neither before, nor by a file that a request can write."""
    told = wordless.get("/otca/machine")["trainings"]
    assert f"--user-folder {wordless.base / 'user'}" in told["command"]
    assert status(wordless, "/userdata/..%2Fotca_allow_trainings", {}) in (400, 403, 404)
    assert status(wordless, "/userdata/otca_allow_trainings", {}) == 200  # of a user's own folder
    assert not (wordless.base / "user" / "otca_allow_trainings").exists()
    (wordless.base / "user" / "otca_allow_trainings").touch()
    assert status(wordless, "/otca/train", {}) in (404, 405)
    base = wordless.base.with_name("again")
    (base / "user").mkdir(parents=True)
    (base / "user" / "otca_allow_trainings").touch()
    with ComfyUI(wordless.installation, base, word=False) as again:
        assert status(again, "/otca/train", {}) == 400


@pytest.mark.parametrize("renderer", ["classic"])
def test_the_page_says_how_to_train_and_how_to_allow_it(wordless, browser, renderer, once):
    run = wordless.run_folder("kept")
    run.mkdir(parents=True)
    (run / "status.json").write_text(json.dumps({"status": "finished", "place": "headless", "pid": 1, "total": 3}))
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    canvas = Canvas(page, wordless, renderer)
    canvas.load(TEMPLATES["otca"].canvas)
    canvas.our_tab().click()
    page.get_by_role("button", name="Train headless…").click()
    dialog = page.locator("dialog.otca-dialog[open]")
    dialog.wait_for()
    train, allow = dialog.locator(".otca-code").all_inner_texts()
    assert " train otca.json --output " in train and str(wordless.base / "output" / "otca" / "otca") in train
    assert " allow trainings --user-folder " in allow
    with page.expect_download() as download:
        dialog.get_by_role("button", name="Download otca.json").click()
    graph = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert "OTCA_TrainingRun" in {entry["class_type"] for entry in graph.values()}
    page.keyboard.press("Escape")
    page.locator(f"[data-run='{run.name}']").click()
    page.get_by_role("button", name="Delete…").click()
    dialog.wait_for()
    folder, allow = dialog.locator(".otca-code").all_inner_texts()
    assert folder == str(run) and " allow trainings --user-folder " in allow and run.exists()
    assert canvas.complaints == []
    page.close()


# What each object of ComfyUI's page that scripts reach has for methods, own or inherited, as their source.
METHODS = """() => {
    const objects = { api: comfyAPI.api.api, app, canvas: app.canvas, graph: app.graph, settings: app.ui.settings,
        manager: app.extensionManager, LiteGraph, LGraph: LGraph.prototype, LGraphNode: LGraphNode.prototype,
        LGraphCanvas: LGraphCanvas.prototype, LGraphGroup: LGraphGroup.prototype };
    const found = {};
    for (const [name, object] of Object.entries(objects)) {
        for (let at = object; at && at !== Object.prototype && at !== EventTarget.prototype; at = Object.getPrototypeOf(at)) {
            for (const key of Object.getOwnPropertyNames(at)) {
                const { value, get } = Object.getOwnPropertyDescriptor(at, key);
                const method = typeof value === "function" ? value : get;
                if (method) found[`${name}.${key}`] ??= Function.prototype.toString.call(method);
            }
        }
    }
    return found;
}"""


def test_no_method_of_comfyuis_page_is_replaced(wordless, browser):
    """Each has the source that it has where our scripts are kept away."""
    pages = {}
    for scripts in (True, False):
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        if not scripts:
            page.route("**/extensions/ComfyUI-OTCA/**", lambda route: route.abort())
        pages[scripts] = Canvas(page, wordless, "classic")
        there = page.evaluate("() => app.extensions.some(({ name }) => name === 'ComfyUI-OTCA')")
        assert there == scripts
    ours, theirs = (pages[scripts].page.evaluate(METHODS) for scripts in (True, False))
    assert len(theirs) > 300
    assert {name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)} == set()
    # And the test sees what it is about.
    pages[True].page.evaluate(
        "() => { const { queuePrompt } = app; app.queuePrompt = (...a) => queuePrompt.apply(app, a); }"
    )
    assert pages[True].page.evaluate(METHODS)["app.queuePrompt"] != theirs["app.queuePrompt"]
    for canvas in pages.values():
        canvas.page.close()
