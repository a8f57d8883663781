"""VBench's results by hand: what each dimension's bounds give, and that nothing is made up for a missing one."""

from __future__ import annotations

import csv
import json

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.study.vbench import DIMENSIONS, QUALITY, SEMANTIC, columns, markdown, read, sheet

LOWEST = {  # of VBench's scripts/constant.py, in its order
    "subject_consistency": 0.1462,
    "background_consistency": 0.2615,
    "temporal_flickering": 0.6293,
    "motion_smoothness": 0.706,
    "dynamic_degree": 0.0,
    "aesthetic_quality": 0.0,
    "imaging_quality": 0.0,
    "object_class": 0.0,
    "multiple_objects": 0.0,
    "human_action": 0.0,
    "color": 0.0,
    "spatial_relationship": 0.0,
    "scene": 0.0,
    "appearance_style": 0.0009,
    "temporal_style": 0.0,
    "overall_consistency": 0.0,
}
HIGHEST = dict.fromkeys(LOWEST, 1.0) | {
    "motion_smoothness": 0.9975,
    "scene": 0.8222,
    "appearance_style": 0.2855,
    "temporal_style": 0.364,
    "overall_consistency": 0.364,
}


def write(folder, scores, name="run"):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}_eval_results.json"
    content = {own: [score, [{"video_path": "a.mp4", "video_results": score}]] for own, score in scores.items()}
    file.write_text(json.dumps(content))
    return file


def totals(folder, scores):
    found = columns(read(write(folder, scores)))
    return [found[name] for name in ("quality", "semantic", "total")]


def test_totals_by_hand(tmp_path):
    assert totals(tmp_path, LOWEST) == [0, 0, 0]
    assert totals(tmp_path, HIGHEST) == pytest.approx([1, 1, 1])
    some = LOWEST | {"dynamic_degree": 0.8, "aesthetic_quality": 0.6, "scene": 0.4111, "color": 0.9}
    quality, semantic = (0.5 * 0.8 + 0.6) / 6.5, (0.5 + 0.9) / 9  # dynamic degree counts half
    assert totals(tmp_path, some) == pytest.approx([quality, semantic, (4 * quality + semantic) / 5])
    between = LOWEST | {"motion_smoothness": 0.85175, "appearance_style": 0.1432}  # half way between their bounds
    assert totals(tmp_path, between)[:2] == pytest.approx([0.5 / 6.5, 0.5 / 9])


def test_without_a_dimension_there_is_no_total(tmp_path):
    assert set(DIMENSIONS) == set(HIGHEST)
    for missing in DIMENSIONS:
        found = columns({name: score for name, score in HIGHEST.items() if name != missing})
        told = found["total"], found["quality"] is None, found["semantic"] is None, found[missing]
        assert told == (None, missing in QUALITY, missing in SEMANTIC, None), missing


def test_a_folder_of_files_is_one_evaluation(tmp_path):
    for number, (dimension, score) in enumerate(HIGHEST.items()):
        write(tmp_path / "wan", {dimension: score}, f"results_{number}")
    (tmp_path / "wan" / "run_full_info.json").write_text("[]")  # VBench writes that too
    assert read(tmp_path / "wan") == HIGHEST


def test_tables(tmp_path):
    whole = "OTCA", read(write(tmp_path / "a", HIGHEST | {"scene": 0.4111}))
    part = "custom, own prompts", read(write(tmp_path / "b", {"dynamic_degree": 0.25}))
    head, rule, first, second = markdown([whole, part]).splitlines()
    assert head.startswith("| model | total | quality | semantic | subject consistency | background consistency |")
    assert rule.count("---") == 20
    # Semantic is (8 + 0.5) / 9
    assert (
        first.startswith("| OTCA | 98.89 | 100.00 | 94.44 | 100.00 |") and "| 41.11 | 28.55 | 36.40 | 36.40 |" in first
    )
    assert second.startswith("| custom, own prompts | – | – | – | – |") and second.count("25.00") == 1
    rows = list(csv.DictReader(sheet([whole, part]).splitlines()))
    assert float(rows[0]["semantic"]) == pytest.approx(8.5 / 9) and float(rows[0]["scene"]) == 0.4111
    assert rows[1]["model"] == "custom, own prompts" and rows[1]["dynamic_degree"] == "0.25"
    assert rows[1]["total"] == rows[1]["scene"] == ""


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "holds no results of VBench"),
        ("[]", "holds no results of VBench"),
        ('{"scene": 0.5}', "holds no results of VBench"),
        ('{"scene": []}', "holds no results of VBench"),
        ('{"i2v_subject": [0.5, []]}', "i2v_subject, which is not a dimension of VBench"),
        ('{"imaging_quality": [63.2, []]}', "imaging_quality = 63.2, outside 0 to 1"),
        ('{"scene": [NaN, []]}', "scene = nan, outside 0 to 1"),
    ],
)
def test_what_is_no_result_is_named(tmp_path, content, told):
    file = tmp_path / "a_eval_results.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=rf"a_eval_results.json.*{told}.*Fix: "):
        read(tmp_path)


def test_too_many_results_or_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file that ends in _eval_results.json.*Fix: "):
        read(tmp_path)
    write(tmp_path, {"scene": 0.5}, "a")
    write(tmp_path, {"scene": 0.6}, "b")
    with pytest.raises(ValueError, match="scene twice, again in b_eval_results.json.*Fix: "):
        read(tmp_path)


def test_the_command(tmp_path, capsys):
    write(tmp_path / "wan", HIGHEST)
    write(tmp_path / "other", LOWEST | {"dynamic_degree": 1.0})
    target = tmp_path / "table.csv"
    assert main(["vbench", str(tmp_path / "other"), f"OTCA={tmp_path / 'wan'}", "--csv", str(target)]) == 0
    rows = capsys.readouterr().out.splitlines()
    # Quality is 0.5 / 6.5, and four fifths of that the total
    assert rows[2].startswith("| other | 6.15 | 7.69 | 0.00 |") and rows[3].startswith("| OTCA | 100.00 | 100.00 |")
    assert [row["model"] for row in csv.DictReader(target.read_text().splitlines())] == ["other", "OTCA"]
    assert main(["vbench", str(tmp_path / "nowhere")]) == 2
    assert "nowhere has no file that ends in _eval_results.json" in capsys.readouterr().err
