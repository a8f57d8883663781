"""A run's page: what it says is what the run's files say, it asks nothing of anybody, and no text of the run becomes markup."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import shutil
from html.parser import HTMLParser

import pytest
from PIL import Image

from comfyui_otca.__main__ import main
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.page import run_page as report
from comfyui_otca.trainer.pictures import figures

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """`tags`: (name, attributes) of all. `texts`: what stands in tables' cells, bold or not, row by row."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.rows, self.bold, self.text = [], [], [], [], ""
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
        if "b" in self.open:
            self.bold.append((self.rows[-1][0], data))


def page(folder):
    html = report.page(folder, NODE_CLASS_MAPPINGS)
    return Page(html), html


@pytest.fixture
def run(finished_run, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(finished_run, tmp_path / "run")


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
    assert "default-src 'none'" in html
    urls = set(re.findall(r"url\((?!#)[^)]*\)|https?://[^\s\"'<]+", html))
    assert urls <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_the_pictures_are_in_it(finished_run):
    parsed, _ = page(finished_run)
    shown = [attributes for tag, attributes in parsed.tags if tag == "img"]
    assert [a["alt"] for a in shown] == [
        "Before training and at the last evaluation: the same prompts and seeds.",
        "Evaluation at iteration 0.",
        "Evaluation at iteration 6.",
    ]
    for attributes, name in zip(shown, ("samples.png", "samples/000000.png", "samples/000006.png"), strict=True):
        content = io.BytesIO(base64.b64decode(attributes["src"].partition("base64,")[2]))
        with Image.open(content) as picture, Image.open(finished_run / name) as original:
            assert picture.format == "JPEG" and picture.size == original.size
    assert sum(tag == "svg" for tag, _ in parsed.tags) == 4 + 1, "curves of four rewards, credit"


def test_large_pictures_are_made_smaller_and_only_some_are_shown(run):
    for iteration in range(1, 21):
        Image.new("RGB", (20, 10)).save(run / "samples" / f"{100 * iteration:06d}.png")
    Image.new("RGB", (3200, 800)).save(run / "samples.png")
    parsed, _ = page(run)
    shown = [attributes for tag, attributes in parsed.tags if tag == "img"]
    with Image.open(io.BytesIO(base64.b64decode(shown[0]["src"].partition("base64,")[2]))) as picture:
        assert picture.size == (1600, 400)
    numbers = [int(re.search(r"\d+", attributes["alt"])[0]) for attributes in shown[1:]]
    assert len(numbers) == 6 and numbers[0] == 0 and numbers[-1] == 2000 and numbers == sorted(numbers)


def test_the_figures_are_those_of_the_run(finished_run):
    parsed, _ = page(finished_run)
    first, last = (json.loads(line)["rewards"] for line in (finished_run / "evaluation.jsonl").read_text().splitlines())
    rows = {row[0]: row[1:] for row in parsed.rows}
    assert rows["iteration"] == ["clip_t", "colorfulness", "sharpness", "accuracy (held out)"]
    for cell, name in zip(rows["6"], first, strict=True):
        mean, error, change = map(float, re.fullmatch(r"(\S+) ± (\S+?)([+-]\S+)?", cell).groups(default="nan"))
        assert mean == pytest.approx(last[name]["mean"], abs=last[name]["standard_error"] / 10 + 1e-4)
        assert error == pytest.approx(last[name]["standard_error"], rel=0.05, abs=1e-4)
        if first[name]["std"]:
            assert change == pytest.approx((last[name]["mean"] - first[name]["mean"]) / first[name]["std"], abs=0.006)
        else:
            assert math.isnan(change)
    lines = [json.loads(line) for line in (finished_run / "metrics.jsonl").read_text().splitlines()]
    for phase in ("rollout", "update"):
        share = sum(line[f"seconds/{phase}"] for line in lines) / sum(line["seconds/iteration"] for line in lines)
        assert rows[phase][1] == f"{100 * share:.1f}%"
    assert "reward: clip_t" in rows and "finished" in parsed.text and "iteration 6 of 6" in parsed.text


def test_bold_is_what_is_not_the_default(finished_run, small_graph):
    parsed, _ = page(finished_run)
    assert all(entry["_meta"]["title"] in parsed.text for entry in small_graph().values())
    expected = []
    for entry in small_graph().values():
        declared = NODE_CLASS_MAPPINGS[entry["class_type"]].INPUT_TYPES()
        declared = {**declared["required"], **declared.get("optional", {})}
        for name, value in entry["inputs"].items():
            if isinstance(value, list):
                continue
            kind, *options = declared[name]
            default = (options or [{}])[0].get("default", kind[0] if isinstance(kind, list) else None)
            if default is not None and value != default:
                expected.append((name, value if isinstance(value, str) else json.dumps(value)))
    assert parsed.bold == expected
    assert ("lora_rank", "4") in expected and "dtype" not in dict(expected)


HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> $title & \"'"


def test_no_text_becomes_markup(run):
    """Names, prompts, rewards and errors are whatever somebody wrote."""
    folder = run.rename(run.with_name("<b>run & co"))
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


def test_a_run_that_has_nothing_yet_and_one_that_was_killed(run):
    for name in ("metrics.jsonl", "evaluation.jsonl", "samples.png"):
        (run / name).unlink()
    shutil.rmtree(run / "samples")
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**status, "status": "running", "pid": 2**22 + 1}))
    parsed, _ = page(run)
    assert "No iteration is on record yet." in parsed.text and "interrupted" in parsed.text
    assert "Workflow" in parsed.text and "Time" not in parsed.text


def test_the_command(run, tmp_path, capsys):
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert main(["report", str(run), "--output", str(tmp_path / "page.html")]) == 0
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
