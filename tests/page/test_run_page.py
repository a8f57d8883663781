"""A run's page: what it says is what the run's files say, it asks nothing of anybody, and no text of the run becomes markup."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from html.parser import HTMLParser

from PIL import Image

from comfyui_otca.__main__ import main
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.page import run_page as report
from comfyui_otca.trainer.pictures import figures

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """`tags`: (name, attributes) of all. `rows`: what stands in tables' cells, row by row."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.rows, self.text = [], [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} is closed where it is not open"

    def handle_data(self, data):
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def page(folder):
    html = report.page(folder, NODE_CLASS_MAPPINGS)
    return Page(html), html


def test_the_page_asks_nothing_of_anybody(finished_run):
    parsed, html = page(finished_run)
    assert not parsed.open, "every tag is closed"
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in parsed.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href"):
                assert value.startswith(("data:image/", "#")), (tag, value[:80])
    assert "default-src 'none'" in html and sum(tag == "svg" for tag, _ in parsed.tags) == 5, "four rewards, and credit"
    urls = set(re.findall(r"url\((?!#)[^)]*\)|https?://[^\s\"'<]+", html))
    assert urls <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_large_pictures_are_made_smaller_and_only_some_are_shown(copied):
    for iteration in range(1, 21):
        Image.new("RGB", (20, 10)).save(copied / "samples" / f"{100 * iteration:06d}.png")
    Image.new("RGB", (3200, 800)).save(copied / "samples.png")
    parsed, _ = page(copied)
    shown = [attributes for tag, attributes in parsed.tags if tag == "img"]
    with Image.open(io.BytesIO(base64.b64decode(shown[0]["src"].partition("base64,")[2]))) as picture:
        assert picture.size == (1600, 400) and picture.format == "JPEG"
    numbers = [int(re.search(r"\d+", attributes["alt"])[0]) for attributes in shown[1:]]
    assert len(numbers) == 6 and numbers[0] == 0 and numbers[-1] == 2000 and numbers == sorted(numbers)


HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> $title & \"'"


def test_no_text_becomes_markup(copied):
    """Names, prompts, rewards and errors are whatever somebody wrote."""
    folder = copied.rename(copied.with_name("<b>run & co"))
    graph = json.loads((folder / "workflow.json").read_text())
    graph["12"]["inputs"]["evaluation_prompts"] = HOSTILE
    graph["4"]["_meta"]["title"] = HOSTILE
    graph[HOSTILE] = {"class_type": HOSTILE, "inputs": {HOSTILE: HOSTILE}}
    (folder / "workflow.json").write_text(json.dumps(graph))
    for name in ("metrics.jsonl", "evaluation.jsonl"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("clip_t", json.dumps(HOSTILE)[1:-1]))
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "status": "failed", "error": HOSTILE, "reason": HOSTILE}))
    (folder / "best").mkdir()
    best = {"metric": HOSTILE, "value": 1.5, "iteration": 6, "before_training": 1.0}
    (folder / "best" / "best.json").write_text(json.dumps(best))
    parsed, html = page(folder)
    assert "<script" not in html and "onerror=alert(2)>" not in html
    assert all(tag not in ("script", "b>run") for tag, _ in parsed.tags)
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    assert parsed.text.count("<script>alert(1)</script>") >= 8, "all of it is shown as what it is"
    assert "<b>run & co" in parsed.text and "★ best by </pre>" in parsed.text


def test_a_run_that_has_nothing_yet_and_one_that_was_killed(copied):
    for name in ("metrics.jsonl", "evaluation.jsonl", "samples.png"):
        (copied / name).unlink()
    shutil.rmtree(copied / "samples")
    status = json.loads((copied / "status.json").read_text())
    (copied / "status.json").write_text(json.dumps({**status, "status": "running", "pid": 2**22 + 1}))
    parsed, _ = page(copied)
    assert "No iteration is on record yet." in parsed.text and "interrupted" in parsed.text
    assert "Workflow" in parsed.text and "Time" not in parsed.text


def test_the_command(copied, tmp_path, capsys):
    assert main(["report", str(copied)]) == 0
    assert capsys.readouterr().out.strip() == str(copied / "report.html")
    assert main(["report", str(copied), "--output", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert main(["report", str(tmp_path)]) == 2
    assert f"{tmp_path} holds no run. Fix: give the folder" in capsys.readouterr().err


# --- drawings ---------------------------------------------------------------------------------------------------------


def test_an_svg_has_the_pages_ink_and_its_text():
    from matplotlib.figure import Figure

    def draw():
        figure = Figure()
        figure.add_subplot().plot([0, 1], color="#000000", label="$a_b$ & <c>")
        figure.axes[0].legend()
        return figure

    code = figures.svg(draw)
    assert code.startswith("<svg") and "#000000" not in code and "currentColor" in code and "<metadata" not in code
    assert "$a_b$ &amp; &lt;c&gt;" in code
    used, given = set(re.findall(r"#([\w.]+)", code)), re.findall(r' id="([^"]*)"', code)
    assert set(given) <= used and len(given) == len(set(given))
