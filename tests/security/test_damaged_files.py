"""Every small file of a run, damaged: the run goes on and says what it lost, or one line names the file and the fix.

The same with real trainings, and every file by every damage: bench/reliability.py.
"""

from __future__ import annotations

import json
import os
import shutil

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.bench.reliability import DAMAGES
from comfyui_otca.host import files, json_files, own_folders
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.page import run_page as report
from comfyui_otca.trainer.run import checkpoint, evaluation, held, record, verdicts
from comfyui_otca.trainer.run import loop as run
from comfyui_otca.trainer.run.folder import read_lines, read_own

STOPPED = verdicts.Brake("stop_after_decline", 3, "enough was seen", "evaluation/sum")
JSON = ("status.json", "workflow.json", "metrics.jsonl", "evaluation.jsonl", "checkpoints/000006/state.json")


@pytest.fixture
def resume(finished_run, tmp_path, monkeypatch, load_toy, capfd, caplog):
    """resume(name, damage): (exit code, all that was said, folder) of going on with a finished run one of whose files is damaged.

    The model is loaded once for all, and no iteration is trained: what is read before is what may be damaged.
    """
    model = load_toy()
    monkeypatch.setattr(run, "trained_model", lambda workflow, begins: model)
    monkeypatch.setattr("comfyui_otca.trainer.workflow.running.Workflow.run", lambda *_, **__: {})
    monkeypatch.setattr(record.Run, "brake", lambda run, settings=None: STOPPED)

    def go_on(name, damage):
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(finished_run, folder)
        damage(folder / name)
        record.open_runs.clear(), caplog.clear(), capfd.readouterr()
        code = main(["train", str(folder), "--resume"])
        return code, "".join(capfd.readouterr()) + caplog.text, folder

    return go_on


@pytest.mark.parametrize("name", JSON)
def test_no_damage_is_a_traceback(resume, name):
    """Seen before: 26 tracebacks and 20 messages without file or fix; an empty status.json ended every resume."""
    for damage, work in DAMAGES.items():
        code, told, folder = resume(name, work)
        assert code in (0, 2) and "Traceback" not in told, (damage, told)
        named = f"{folder / name}" in told
        if code == 2:
            assert named and told.count("Fix: ") == 1, (damage, told)
        elif damage != "missing" or name != "status.json":
            assert named or damage in ("eight bytes flipped", "NaN"), (damage, told)
        if name == "status.json":
            assert code == 0 or damage == "a folder", (damage, told)
        if name.endswith("state.json"):
            assert code == 0 and "continuing from iteration 4 instead" in told, (damage, told)
        if name == "workflow.json":
            assert code == 2 or damage == "eight bytes flipped", (damage, told)


@pytest.mark.parametrize("name", ["adapter", "optimizer", "ema", "rng"])
def test_a_damaged_tensor_file_is_replaced_by_the_checkpoint_before(resume, name):
    for damage in ("empty", "eight bytes flipped", "missing", "a folder", "a pipe"):
        file = f"checkpoints/000006/{name}.safetensors"
        code, told, _ = resume(file, DAMAGES[damage])
        assert code == 0 and file in told and "continuing from iteration 4 instead" in told, (damage, told)


def test_what_a_state_may_not_say(model, tmp_path):
    """Each of valid JSON, which is no reason to believe it."""
    place = checkpoint.save(model, tmp_path, 1)
    whole = json.loads((place / "state.json").read_text())
    changes = [{key: value} for key in whole for value in (None, "x", -1, [], {"a": 1}, 1e400)]
    changes += [{"iteration": 2}, {"iteration": 10**9}, {"loss_scale": [1.0]}, {"ema": {"step": 1}}, {"sha256": {}}]
    for change in changes:
        (place / "state.json").write_text(json.dumps({**whole, **change}))
        with pytest.raises(ValueError, match=r"state\.json|safetensors") as told:
            checkpoint.restore(model, tmp_path)
        assert "Fix: " in str(told.value), change
    for key in whole.keys() - {"base", "lora_alpha", "memos", "environment"}:  # which a run of before 0.2 has not
        (place / "state.json").write_text(json.dumps({name: value for name, value in whole.items() if name != key}))
        with pytest.raises(ValueError, match=r"state\.json has no"):
            checkpoint.restore(model, tmp_path)


# --- what a run goes on without ---------------------------------------------------------------------------------------


def test_a_status_that_cannot_be_read(tmp_path):
    said, file = [], tmp_path / "status.json"
    for status in ({"status": "running", "pid": "7"}, {"status": "x" * 10**7}):
        file.write_text(json.dumps(status))
        assert read_own(tmp_path, "status.json", said.append) is None
    assert said[0].startswith(f'{file} has pid = "7", and not the number of a process or null; the run continues')
    assert len(said[1]) < 500 + len(str(tmp_path)), "ten million bytes in one value make a short line"


def test_a_best_that_cannot_be_read_begins_anew(tmp_path):
    place = tmp_path / "best"
    place.mkdir()
    own_folders.mark_own(place)
    (place / "best.json").write_text('{"metric": "evaluation/sum", "value": "high", "iteration": 4}')
    opened = record.Run(held.read(tmp_path, None, True), record.RunSettings(1, 1), {})
    opened.begin(0)
    assert opened.best is None
    opened.close()


def test_a_picture_from_before_training_that_cannot_be_read(tmp_path, caplog):
    import torch

    like = torch.zeros(2, 4, 4, 3)
    for content in (b"", b"{}", b"\xff" * 100):
        (tmp_path / "before.safetensors").write_bytes(content)
        assert evaluation.pictures_before(tmp_path / "before.safetensors", like) is None
    (tmp_path / "before.safetensors").unlink()
    os.mkfifo(tmp_path / "before.safetensors")
    assert evaluation.pictures_before(tmp_path / "before.safetensors", like) is None
    assert caplog.text.count("samples.png, which shows before and after, stays as it is") == 4


# --- lines ------------------------------------------------------------------------------------------------------------


def lines(path, *rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def test_a_torn_last_line_is_left_out_and_said(tmp_path):
    said, path = [], lines(tmp_path / "metrics.jsonl", {"iteration": 1}, '{"iteration": 2, "rew')
    assert read_lines(path, say=said.append) == [{"iteration": 1}]
    assert said == [f"{path}, line 2: the last line was cut short, and is left out"]
    lines(path, {"iteration": 1}, "\0" * 100)
    assert len(read_lines(path, say=said.append)) == 1 and len(said) == 2


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ([1], "holds a list, and not an object"),
        ({}, "has no 'iteration'"),
        ({"iteration": 2.5}, "has iteration = 2.5, and not a whole number"),
        ({"iteration": True}, "has iteration = true"),
        ({"iteration": 1}, "is of iteration 1, and the one before of 1"),
        ({"iteration": 2, "reward/a/mean": "x"}, "and not a number or null"),
        ("[" * 5000 + "]" * 5000 + "\n", "is nested deeper than 100 levels"),
        ('{"iteration": 1e999}\n', "holds an invalid number"),
        ("nonsense\n", "is not JSON"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path, row, told):
    path = lines(tmp_path / "metrics.jsonl", {"iteration": 1}, row, {"iteration": 3})
    with pytest.raises(files.Damaged, match="line 2") as error:
        read_lines(path)
    assert told in str(error.value) and str(error.value).endswith("Fix: remove that line, and resume")
    assert len(str(error.value)) < 500 + len(str(path))


@pytest.mark.parametrize("kind", ["cut", "longer", "exchanged", "gone", "a link"])
def test_metrics_that_somebody_changes_during_a_run_are_mended(tmp_path, caplog, kind):
    """Seen before: a file cut during a run stayed so, and its next lines were of iterations that it did not say."""
    opened = record.Run(held.read(tmp_path, None, True), record.RunSettings(1, 1), {})
    opened.begin(0)
    path, victim = tmp_path / "metrics.jsonl", tmp_path / "victim"
    victim.write_text("theirs")
    for number in (1, 2):
        opened.append_line("metrics.jsonl", {"iteration": number})
    assert not caplog.text
    content = path.read_text()
    if kind in ("cut", "longer"):
        path.write_text(content[:5] if kind == "cut" else content + "more\n")
    else:
        path.rename(tmp_path / "old")
        if kind == "exchanged":
            path.write_text(content)
        elif kind == "a link":
            path.symlink_to(victim)
    opened.append_line("metrics.jsonl", {"iteration": 3})
    assert path.read_text() == content + '{"iteration": 3}\n' and not path.is_symlink()
    assert victim.read_text() == "theirs" and "is written again from memory" in caplog.text
    opened.close()


def test_the_evaluation_before_training_that_was_lost_takes_its_place(tmp_path):
    opened = record.Run(held.read(tmp_path, None, True), record.RunSettings(1, 1), {})
    opened.begin(0)
    for iteration in (4, 0, 6):
        opened.append_line("evaluation.jsonl", {"iteration": iteration, "rewards": {}})
    assert [row["iteration"] for row in read_lines(tmp_path / "evaluation.jsonl")] == [0, 4, 6]
    opened.close()


def test_iterations_that_were_lost_leave_a_gap(finished_run, tmp_path, monkeypatch):
    """In every place where rows are looked at: the page of a run, its curves, and its warnings."""
    folder = shutil.copytree(finished_run, tmp_path / "run")
    rows = [
        {"iteration": row["iteration"]} if row["iteration"] in (1, 3, 6) else row
        for row in map(json.loads, open(folder / "metrics.jsonl", encoding="utf-8"))
    ]
    lines(folder / "metrics.jsonl", *rows)
    page = report.page(folder, NODE_CLASS_MAPPINGS)
    assert "in 3 iterations" in page, "only those that are known have a time"
    read = record.Run(held.read(folder, None, True), record.RunSettings(1, 1), {})
    assert read.warnings() == {} and read.curves() is not None


def test_a_page_leaves_out_a_picture_that_is_none(finished_run, tmp_path, caplog):
    folder = shutil.copytree(finished_run, tmp_path / "run")
    (folder / "samples.png").write_bytes(b"no picture")
    os.remove(folder / "samples" / "000000.png")
    os.mkfifo(folder / "samples" / "000000.png")
    assert "<html" in report.page(folder, NODE_CLASS_MAPPINGS)
    assert caplog.text.count("cannot be shown, and is left out") == 2


# --- the reader -------------------------------------------------------------------------------------------------------


def test_brackets_within_texts_are_not_deep():
    deep = '{"a": "' + "[" * 500 + '\\"' + "{" * 500 + '", "b": [[1]]}'
    assert json_files.parse(deep)["b"] == [[1]]
    assert json_files.parse("[" * 100 + "]" * 100) is not None
    for text in ("[" * 101 + "]" * 101, "[" * 10**6, '{"a":' * 10**5):
        with pytest.raises(ValueError, match="nested deeper than 100"):
            json_files.parse(text)


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path, monkeypatch):
    (tmp_path / "big.json").write_text("[" + "1," * 1000 + "1]")
    with pytest.raises(files.Damaged, match="big.json is larger than 0 MB. Fix: "):
        json_files.read_json(tmp_path / "big.json", list, most_bytes=100)
    assert len(json_files.read_json(tmp_path / "big.json", list)) == 1001
    assert json_files.read_json(tmp_path / "none.json") is None


def test_a_runs_workflow_is_read_once(tmp_path, small_graph, monkeypatch, capsys):
    """What was judged is what is trained, though another file may have taken its place in between."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "workflow.json").write_text(json.dumps(small_graph()))
    read, real = [], os.open
    monkeypatch.setattr(os, "open", lambda path, *a, **k: (read.append(str(path)), real(path, *a, **k))[1])
    assert main(["validate", str(tmp_path / "run")]) == 0, capsys.readouterr().err
    assert read.count(str(tmp_path / "run" / "workflow.json")) == 1
