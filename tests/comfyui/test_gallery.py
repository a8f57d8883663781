"""The gallery in every ComfyUI: by the keyboard, in two pages, in spite of strangers' texts."""

from __future__ import annotations

import json

import pytest

from comfyui_otca.tests.comfyui.test_accessibility import AXE, HOW, axe_core
from comfyui_otca.tests.page.strange_pictures import SCRIPT, graph, png, strange
from comfyui_otca.trainer.opinions.store import FILE, Store

PROMPTS = ["a cat", "a castle", SCRIPT]
TILES = "() => document.querySelectorAll('.otca-gallery-tile:not([hidden])').length"
SIGNS = "document.querySelectorAll('.otca-gallery-tile:not([hidden]) .otca-gallery-signs')"
KEPT = "() => JSON.parse(sessionStorage.getItem('otca.gallery.waiting') ?? '[]').length === 0"


@pytest.fixture(scope="module")
def pictures(comfyui):
    """Pictures in the output folder, strange ones among them; their names, without those."""
    for number in range(24):
        text = {"prompt": json.dumps(graph(PROMPTS[number % 3], number))}
        (comfyui.base / "output" / f"gallery_{number:02d}.png").write_bytes(png(text, number, 64))
        name, content = strange(number)
        (comfyui.base / "output" / name).write_bytes(content)
    yield
    for file in (comfyui.base / "output").glob("*.*"):
        file.unlink()
    for file in comfyui.base.rglob(FILE):
        file.unlink()


def tile(number: int) -> str:
    return f'.otca-gallery-tile:not([hidden])[aria-posinset="{number}"]'


def store(comfyui) -> Store:
    return Store(next(comfyui.base.rglob(FILE)))


@pytest.fixture
def own(browser, comfyui, pictures):
    """The gallery in a tab of its own; nothing in it may fail, nor run what a picture says."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    failed = []

    def told(message):
        is_known = (
            "503" in message.text or "/otca/gallery/pictures/" in message.location["url"]
        )  # one that cannot be shown
        if message.type in ("error", "warning") and not is_known:
            failed.append(message.text)

    page.on("pageerror", lambda error: failed.append(f"uncaught: {error}"))
    page.on("console", told)
    page.goto(f"{comfyui.url}/otca/gallery")
    page.wait_for_function(f"({TILES})() > 5")
    yield page
    assert page.evaluate("window.hacked") is None and not failed
    page.close()


def test_by_the_keyboard_and_again_after_a_reload(own, comfyui):
    own.get_by_label("Words of prompts").fill("gallery_ castle")
    own.wait_for_function(f"({TILES})() === 8")
    own.locator(tile(1)).click()
    for key in ("ArrowUp", "j", "ArrowDown", "j", "4", "k", "z", "j", "p", "j", "p"):
        own.keyboard.press(key)
    own.wait_for_function(KEPT)
    said = [(opinion.kind, opinion.value) for opinion in store(comfyui).standing()]
    assert said == [("thumb", 1), ("thumb", -1), ("pair", True)]  # Z took the stars back
    own.reload()
    own.get_by_label("Words of prompts").fill("gallery_ castle")
    own.wait_for_function(f"() => [...{SIGNS}].filter(each => each.textContent).length === 4")


def test_two_pages_show_the_same_and_nothing_is_lost_while_the_server_is_away(own, browser, comfyui):
    other = browser.new_page(viewport={"width": 1400, "height": 900})
    other.goto(f"{comfyui.url}/otca/gallery")
    for page in (own, other):
        page.get_by_label("Words of prompts").fill("gallery_ cat")
        page.wait_for_function(f"({TILES})() === 8")
    own.locator(tile(1)).click()
    before = len(store(comfyui).standing())
    own.route("**/otca/gallery/say", lambda route: route.fulfill(status=503, json={"error": "not now"}))
    for _ in range(4):
        own.keyboard.press("5")
        own.keyboard.press("j")
    own.wait_for_function("() => JSON.parse(sessionStorage.getItem('otca.gallery.waiting')).length === 4")
    own.unroute("**/otca/gallery/say")
    own.reload()
    own.wait_for_function(KEPT)
    assert len(store(comfyui).standing()) == before + 4
    other.wait_for_function(f"() => [...{SIGNS}].filter(each => each.textContent.includes('★★★★★')).length === 4")
    other.close()


def test_a_region_tags_and_a_pair_by_the_pointer(own, comfyui):
    own.get_by_label("Words of prompts").fill("gallery_ cat")
    own.wait_for_function(f"({TILES})() === 8")
    own.locator(tile(2)).click()
    image = own.locator(".otca-gallery-stage img")
    own.wait_for_function("() => document.querySelector('.otca-gallery-stage img').naturalWidth === 64")
    box = image.bounding_box()
    own.get_by_role("button", name="dislike it").click()
    own.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 0.5 * box["height"])
    own.mouse.down()
    own.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 0.99 * box["height"])
    own.mouse.up()
    own.get_by_label("Add a tag").fill("hands")
    own.keyboard.press("Enter")
    own.get_by_role("button", name="Compare").click()
    own.get_by_role("button", name="The left one is better").click()
    own.keyboard.press("Escape")
    own.wait_for_function(KEPT)
    said = {opinion.kind: opinion for opinion in store(comfyui).standing()}
    assert said["region"].value["like"] is False and said["tag"].other == "hands" and said["pair"].value is True
    assert said["region"].value["box"] == pytest.approx([0.25, 0.5, 0.75, 0.99], abs=0.02)


def test_strange_pictures_are_shown_as_text(own):
    own.get_by_label("Words of prompts").fill("hacked")
    own.wait_for_function(f"({TILES})() > 3")
    own.locator(".otca-gallery-prompt", has_text=SCRIPT).first.wait_for()
    own.get_by_label("Words of prompts").fill("")
    own.get_by_label("Group").select_option("graph")
    own.wait_for_function(f"({TILES})() > 10")
    for _ in range(20):
        own.keyboard.press("j")
    own.locator(".otca-gallery-list").focus()
    for _ in range(45):
        own.keyboard.press("j")
    own.wait_for_timeout(300)


SEEN_FIRST = """() => {
    const list = document.querySelector(".otca-gallery-list").getBoundingClientRect();
    const shown = [...document.querySelectorAll(".otca-gallery-tile:not([hidden])")];
    const tiles = shown.map(each => [each.dataset.id, each.getBoundingClientRect()]);
    const seen = tiles.filter(([, { bottom }]) => bottom > list.top).sort(([, a], [, b]) => a.top - b.top || a.left - b.left);
    return [seen[0][0], Math.round(seen[0][1].top)];
}"""


def test_a_new_picture_does_not_move_what_is_looked_at(own, comfyui):
    own.get_by_label("Words of prompts").fill("gallery_")
    own.wait_for_function("() => document.querySelector('.otca-gallery-status').textContent.startsWith('24 of')")
    own.evaluate("document.querySelector('.otca-gallery-list').scrollTop = 500")
    own.wait_for_timeout(300)
    before = own.evaluate(SEEN_FIRST)
    text = {"prompt": json.dumps(graph("a dog", 99))}
    (comfyui.base / "output" / "gallery_99.png").write_bytes(png(text, 99, 64))
    own.wait_for_function("() => document.querySelector('.otca-gallery-status').textContent.startsWith('25 of')")
    assert own.evaluate("document.querySelector('.otca-gallery-list').scrollTop") > 600  # the new row is above
    assert own.evaluate(SEEN_FIRST) == before
    (comfyui.base / "output" / "gallery_99.png").unlink()
    own.wait_for_function("() => document.querySelector('.otca-gallery-status').textContent.startsWith('24 of')")


def test_its_buttons_look_like_buttons(own):
    assert own.get_by_role("button", name="Opinions").evaluate("it => getComputedStyle(it).borderTopWidth") == "1px"


def test_its_own_tab_speaks_as_comfyui_does(own, comfyui):
    assert own.evaluate("document.documentElement.lang") == "en"
    comfyui.post("/api/settings", {"Comfy.Locale": "ja"})
    try:
        own.reload()
        own.wait_for_function(f"({TILES})() > 5")
        assert own.evaluate("document.documentElement.lang") == "ja"
        assert own.get_by_role("button", name="Compare").count() == 0
    finally:
        comfyui.post("/api/settings", {"Comfy.Locale": "en"})


def test_opinions_are_saved_and_taken_in(own, comfyui, tmp_path):
    own.get_by_label("Words of prompts").fill("gallery_ castle")
    own.wait_for_function(f"({TILES})() === 8")
    own.locator(tile(7)).click()
    own.keyboard.press("5")
    own.wait_for_function(KEPT)
    own.get_by_role("button", name="Opinions").click()
    with own.expect_download() as coming:
        own.get_by_role("link", name="Save as a file").click()
    file = tmp_path / coming.value.suggested_filename
    coming.value.save_as(file)
    count = len(store(comfyui).standing())
    assert file.name == "opinions.jsonl" and file.read_text(encoding="utf-8").count('{"opinion"') == count
    next(comfyui.base.rglob(FILE)).unlink()
    own.get_by_label("Take in a file").set_input_files(file)
    own.get_by_text(f"New: {count}. There already: 0.").wait_for()
    with own.expect_response("**/otca/gallery/votes") as answered:  # other tests may have voted
        own.get_by_role("button", name="Take in votes").click()
    assert answered.value.ok


def test_what_its_own_tab_hands_over_opens_in_a_new_tab_of_comfyui(browser, comfyui):
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(f"{comfyui.url}/otca/gallery")
    graph = {"1": {"class_type": "OTCA_PromptDataset", "inputs": {}, "_meta": {"title": "handed over"}}}
    left = json.dumps({"graph": {"prompt": graph}, "name": "handed"})
    page.evaluate("left => localStorage.setItem('otca.gallery.open', left)", left)
    page.goto(comfyui.url)
    page.wait_for_function("() => window.app?.graph?.nodes?.some(node => node.title === 'handed over')")
    page.wait_for_timeout(1500)  # what ComfyUI restores of its own does not take its place
    assert page.evaluate("app.graph.nodes.map(node => node.title)") == ["handed over"]
    assert page.evaluate("localStorage.getItem('otca.gallery.open')") is None
    page.close()


def test_in_the_sidebar(canvas, pictures):
    canvas.page.evaluate("app.extensionManager.sidebarTab.toggleSidebarTab('otca-gallery')")
    gallery = canvas.page.locator(".otca-gallery")
    gallery.wait_for()
    canvas.page.wait_for_function(f"({TILES})() > 2")
    gallery.locator(tile(1)).click()
    canvas.page.keyboard.press("3")
    canvas.page.wait_for_function(
        "() => document.querySelector('.otca-gallery-tile[aria-selected] .otca-gallery-signs')?.textContent.includes('★★★')"
    )
    canvas.page.keyboard.press("z")
    canvas.page.wait_for_function(KEPT)
    canvas.page.evaluate("app.extensionManager.sidebarTab.toggleSidebarTab('otca-gallery')")
    gallery.wait_for(state="detached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(own, scheme):
    if (script := axe_core()) is None:
        pytest.skip(f"axe-core is missing: {HOW}")
    own.emulate_media(color_scheme=scheme)
    own.evaluate(script.read_text(encoding="utf-8"))
    findings = own.evaluate(AXE, ".otca-gallery")
    assert not findings, json.dumps(findings, indent=1)


@pytest.mark.parametrize("palette", ["light", "dark"])
def test_everybody_can_use_it_in_the_sidebar(canvas, pictures, palette):
    if (script := axe_core()) is None:
        pytest.skip(f"axe-core is missing: {HOW}")
    choose = "palette => app.extensionManager.setting.set('Comfy.ColorPalette', palette)"
    canvas.page.evaluate(choose, palette)
    canvas.page.evaluate(script.read_text(encoding="utf-8"))
    canvas.page.evaluate("app.extensionManager.sidebarTab.toggleSidebarTab('otca-gallery')")
    canvas.page.wait_for_function(f"({TILES})() > 2")
    found = {"gallery": canvas.page.evaluate(AXE, ".otca-gallery")}
    made = {
        "items": 8,
        "held_out": 2,
        "forwards": 900,
        "memory": 10**9,
        "said": ["8 pairs"],
        "learn_from": "pairs",
        "models": [["my_pictures", "the tiny model"]],
        "prompt": {},
        "name": "my_pictures",
    }
    canvas.page.route("**/otca/gallery/workflow", lambda route: route.fulfill(json=made))
    for name in ("Opinions", "Train on these"):
        canvas.page.locator(".otca-gallery").get_by_role("button", name=name).click()
        canvas.page.locator("dialog.otca-dialog[open]").wait_for()
        found[name] = canvas.page.evaluate(AXE, "dialog.otca-dialog[open]")
        canvas.page.keyboard.press("Escape")
    canvas.page.unroute("**/otca/gallery/workflow")
    canvas.page.evaluate("app.extensionManager.sidebarTab.toggleSidebarTab('otca-gallery')")
    canvas.page.evaluate(choose, "dark")
    assert not any(found.values()), json.dumps(found, indent=1)


def test_train_on_these_shows_all_that_a_training_needs_at_first_sight(canvas, pictures):
    """Note, preview, a held-out reward, Training Run with its button: ComfyUI lays an API graph out in a row."""
    before = canvas.page.viewport_size
    canvas.page.set_viewport_size({"width": 1400, "height": 900})
    canvas.page.evaluate("""async () => {
        const list = async () => (await (await fetch("/otca/gallery/list?words=gallery_%20ca")).json()).ids;
        let ids = await list(); // of cats and castles
        while (ids.length < 16) ids = await list();
        for (const [number, picture] of ids.entries()) {
            const id = crypto.randomUUID().replaceAll("-", "");
            const body = JSON.stringify({ id, kind: "thumb", picture, value: number % 2 ? 1 : -1 });
            await fetch("/otca/gallery/say", { method: "POST", headers: { "Content-Type": "application/json" }, body });
        }
    }""")
    canvas.page.evaluate("app.extensionManager.sidebarTab.toggleSidebarTab('otca-gallery')")
    canvas.page.wait_for_function(f"({TILES})() > 2")
    canvas.page.locator(".otca-gallery").get_by_role("button", name="Train on these").click()
    canvas.page.get_by_role("button", name="Open on the canvas").click()
    canvas.wait("""() => {
        const { ds, canvas: screen } = app.canvas, { nodes } = app.graph, sides = [0, 1];
        const end = (node, side) => node.pos[side] + node.size[side];
        const isBefore = (one, other) => sides.some(side => end(one, side) <= other.pos[side]);
        const apart = (one, other) => one === other || isBefore(one, other) || isBefore(other, one);
        const page = [screen.clientWidth, screen.clientHeight];
        const isSeen = type => nodes.some(node => node.type === type && sides.every(side =>
            node.pos[side] >= -ds.offset[side] && (end(node, side) + ds.offset[side]) * ds.scale <= page[side]));
        return !document.querySelector(".otca-gallery") && nodes.every(one => nodes.every(other => apart(one, other)))
            && ["MarkdownNote", "PreviewImage", "OTCA_RewardColorfulness", "OTCA_TrainingRun"].every(isSeen);
    }""")
    canvas.page.set_viewport_size(before)
