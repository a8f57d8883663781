"""Files of lines that no training wrote: gigabytes without a line's end, too many figures. What is read of them is bounded."""

from __future__ import annotations

import json
import threading
import tracemalloc

import pytest

from comfyui_otca.host import json_lines
from comfyui_otca.host.files import Damaged
from comfyui_otca.page import reading
from comfyui_otca.trainer import keys
from comfyui_otca.trainer.run import verdicts
from comfyui_otca.trainer.run.folder import read_lines

GB = 1024**3
LINES = {
    "metrics.jsonl": {"iteration": 1, "reward/a/mean": 0.5},
    "evaluation.jsonl": {"iteration": 0, "rewards": {}},
    "changes.jsonl": {"iteration": 1, "changes": [{"node": "a", "input": "b", "before": 1, "now": 2}]},
}
ASKED = ("", "/metrics", "/columns?name=reward/a/mean", "/state", "/samples")


def hollow(path, row, size=2 * GB):
    """One row, and then a hole, which takes no room on the disk."""
    path.write_text(json.dumps(row) + "\n")
    with open(path, "r+b") as file:
        file.truncate(size)


def test_two_gigabytes_cost_little_and_are_said(site, made):
    """Seen before: 2.6 to 3.9 GB of memory for one GET of the run."""
    folder = made()
    for name, row in LINES.items():
        hollow(folder / name, row)
    tracemalloc.start()
    try:
        answers = {asked: site.get(f"/otca/runs/first{asked}") for asked in (*ASKED, *ASKED)}
        site.get("/otca/runs")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {answer.status for answer in answers.values()} == {200} and most < 100 * 1024**2, most
    told = answers["/metrics"].json
    assert [len(told[part]) for part in ("rows", "evaluations", "changes")] == [1, 1, 1]
    warning = answers[""].json["warning"]
    for name in LINES:
        assert f"{name} is shown up to line 1: the next one is longer than" in warning and "Fix: " in warning


def test_of_all_evaluations_the_list_reads_the_first_and_the_last(tmp_path, monkeypatch):
    figures = {"std": 1.0, "standard_error": 0.1, "held_out": False, "values": [1.0]}
    rows = [{"iteration": n, "rewards": {"a": {"mean": float(n), **figures}}} for n in range(9)]
    path, read = tmp_path / "evaluation.jsonl", []
    path.write_text("no row\n" + "".join(json.dumps(row) + "\n" for row in rows) + '{"iteration": 9, "rew')
    real = reading.parsed
    monkeypatch.setattr(reading, "parsed", lambda *line: read.append(line) or real(*line))
    value = reading.score(path)
    assert value == verdicts.metric_value(rows[:1], rows[-1], keys.EVALUATION_SUM) and value > 0 and len(read) == 4
    path.write_text(json.dumps(rows[0]) + "\n")
    assert reading.score(path) is None and reading.score(None) is None


def test_rows_may_be_let_go_while_they_are_read(site, made, monkeypatch):
    """As of twenty runs that are compared at once. Seen before: the rows of all later answers began amid a line."""
    path, reader, real = made(rows=9) / "metrics.jsonl", site.runs.run("first").reader, reading.parsed
    rival = threading.Thread(target=reader.let_go)

    def parsed(line):
        if rival.ident is None and b'"iteration": 5' in line:
            rival.start()
            rival.join(0.2)
        return real(line)

    monkeypatch.setattr(reading, "parsed", parsed)
    first, then = (reader.texts(path, 0)[0] for _ in range(2))
    assert first == then == path.read_bytes().splitlines()


def test_what_comes_after_a_line_that_is_too_long_is_the_last_row_and_no_rewrite(site, made):
    folder = made(rows=2)
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b"x" * (reading.MOST_LINE + 1) + b"\n" + made.row(7).encode())
    for _ in range(3):
        assert len(site.get("/otca/runs/first/metrics").json["rows"]) == 2
        state = site.get("/otca/runs/first").json
        assert (state["iteration"], state["rewrites"]) == (7, 0) and "up to line 2" in state["warning"]
    (folder / "metrics.jsonl").write_text("".join(map(made.row, range(1, 8))))
    assert len(site.get("/otca/runs/first/metrics").json["rows"]) == 7
    assert site.get("/otca/runs/first").json["warning"] is None


def test_figures_beyond_any_memory_are_left_out(site, made, monkeypatch):
    monkeypatch.setattr(reading, "MOST_CELLS", 1000)
    folder = made(rows=0)
    rows = [{"iteration": number, **{f"{number}/{k}": 1.0 for k in range(8)}} for number in range(1, 40)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for _ in range(2):
        told = site.get("/otca/runs/first/columns").json
        assert 2 < len(told["iterations"]) < 6 and told["iterations"] == [*range(1, len(told["iterations"]) + 1)]
    assert "has more figures than are kept" in site.get("/otca/runs/first").json["warning"]


def test_one_answer_has_a_bounded_number_of_bytes(site, made, monkeypatch):
    monkeypatch.setattr(reading, "MOST_ANSWER", 400)
    made(rows=9)
    seen, more = [], True
    while more:
        told = site.get(f"/otca/runs/first/metrics?after={seen[-1] if seen else 0}").json
        seen, more = seen + [row["iteration"] for row in told["rows"]], told["more"]
        assert 0 < len(told["rows"]) < 4
    assert seen == [*range(1, 10)]


def test_a_figure_that_no_float_can_hold_is_left_out(site, made):
    """Seen before: 500, by an OverflowError."""
    folder = made(rows=0)
    (folder / "metrics.jsonl").write_text('{"iteration": 1, "a": 1' + "0" * 400 + ', "b": 2}\n')
    assert site.get("/otca/runs/first/columns?name=a&name=b").json["columns"] == {"b": [2.0]}


@pytest.mark.parametrize("name", LINES)
def test_the_trainer_refuses_such_a_file_by_its_line(tmp_path, name):
    hollow(tmp_path / name, LINES[name])
    tracemalloc.start()
    with pytest.raises(Damaged, match=r"line 2 is longer than the 67,108,864 bytes that are read\. Fix: "):
        read_lines(tmp_path / name)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 * json_lines.MOST_LINE
