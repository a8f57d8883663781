"""`otca eval`: the same prompts and seeds for every method, intervals over prompts, and going on with what is there."""

from __future__ import annotations

import csv
import json
import math
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from comfyui_otca.__main__ import main
from comfyui_otca.host import stopping
from comfyui_otca.study import evaluate, plots
from comfyui_otca.study.evaluate import compare, markdown, parse_guides, parse_lora
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.policy import lora

PROMPTS = ["a red circle on a blue background", "a green square on a white background"]
REWARDS = ["--reward", "python:file=red.py", "--reward", "accuracy"]


@pytest.fixture(autouse=True)
def red(tmp_path_factory, monkeypatch):
    """The reward red.py: mean of the red channel."""
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "red.py").write_text("def score(images, prompts):\n    return images[..., 0].mean((1, 2))\n")
    monkeypatch.setenv("OTCA_ALLOW_PYTHON_REWARDS", str(folder))
    return folder / "red.py"


@pytest.fixture
def adapter(load_model, perturb, tmp_path):
    """A LoRA of rank 3 that is seen."""
    model = perturb(load_model(lora_rank=3), scale=0.3)
    return lora.save(model, tmp_path / "loud.safetensors", {})[0]


@pytest.fixture
def asked(tmp_path):
    """asked("eval", …): its exit code, on two prompts with two seeds each, into tmp_path / "out"."""
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    common = ["--prompts", tmp_path / "prompts.txt", "--seeds", 2, "--output", tmp_path / "out"]

    def run(*arguments, steps=3):
        return main([str(part) for part in ["eval", *arguments, *common, "--steps", steps]])

    return run


@pytest.fixture
def sampled(monkeypatch):
    """What was sampled: a list of (prompts, seeds)."""
    calls, real = [], rollout.generate

    def generate(model, texts, settings, seeds, *rest):
        calls.append((texts, seeds))
        return real(model, texts, settings, seeds, *rest)

    monkeypatch.setattr(rollout, "generate", generate)
    return calls


def lines(folder):
    return [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]


# --- statistics -----------------------------------------------------------------------------------------------------


def test_differences_are_taken_picture_by_picture():
    base = np.random.default_rng(1).normal(0, 100, (20, 3, 1))
    [cell] = compare(base + 2, base)
    assert cell.mean.high - cell.mean.low > 30
    assert (cell.difference.mean, cell.difference.low, cell.difference.high) == pytest.approx((2, 2, 2))
    [none] = compare(base, base, is_base=True)
    assert none.difference is None


def test_what_has_no_score_is_left_out_of_both():
    own, base = np.array([[[3.0], [5.0]], [[1.0], [9.0]]]), np.array([[[1.0], [math.nan]], [[0.0], [math.nan]]])
    [cell] = compare(own, base)
    assert (cell.mean.mean, cell.mean.count) == (4.5, 4)
    assert (cell.difference.mean, cell.difference.count) == (1.5, 2)


def test_the_tables():
    base = np.array([[[1.0, math.nan]], [[3.0, 0.0]], [[5.0, 4.0]]])
    cells = {"base": compare(base, base, True), "mine": compare(base + [1.0, 0.0], base)}
    text = markdown(cells, ["a", "b"], 3, 1)
    head, rule, first, second = text.splitlines()[:4]
    assert (head, rule) == ("| method | a | b |", "|---|---|---|")
    assert first.startswith("| base | 3 (-1.968 … 7.968) |") and second.startswith("| mine | 4 (-0.9683 … 8.968) |")
    assert "3 pictures a method (prompts: 3, seeds of each: 1)" in text and "base: b could score 2 of 3." in text
    assert text.splitlines()[-1] == "| mine | **+1 (+1 … +1)** | +0 (+0 … +0) |"
    rows = list(csv.DictReader(evaluate.sheet(cells, ["a", "b"], 3).splitlines()))
    assert [(row["method"], row["reward"]) for row in rows] == [
        ("base", "a"),
        ("base", "b"),
        ("mine", "a"),
        ("mine", "b"),
    ]
    assert rows[0]["difference"] == "" and (rows[1]["mean"], rows[1]["scored"], rows[1]["pictures"]) == (
        "2.0",
        "2",
        "3",
    )
    assert float(rows[2]["difference"]) == float(rows[2]["difference_low"]) == 1.0


@pytest.mark.painted
def test_a_comparison_has_a_mark_for_every_mean_that_there_is():
    def shows(picture, color):
        return (picture == np.array(color)).all(-1).any()

    orange = (0xE6, 0x9F, 0x00)  # of the second method
    base, own = np.zeros((3, 2, 2)), np.ones((3, 2, 2))
    cells = {"base": compare(base, base, True), "mine": compare(own, base)}
    both = plots.evaluation({name: {method: row[k] for method, row in cells.items()} for k, name in enumerate("ab")})
    left, right = np.array_split(both, 2, axis=1)
    marks = (left == np.array(orange)).all(-1)
    assert marks.sum() > 20 and shows(right, orange)
    blue = (left == np.array((0x00, 0x72, 0xB2))).all(-1)
    assert np.argwhere(marks).mean(0)[1] > np.argwhere(blue).mean(0)[1], "what is better is further to the right"
    own[:, :, 1] = np.nan
    cells["mine"] = compare(own, base)
    none = plots.evaluation({"b": {method: row[1] for method, row in cells.items()}})
    assert not shows(none, orange)


# --- methods --------------------------------------------------------------------------------------------------------


def test_names_of_methods(tmp_path):
    assert parse_lora("b=/x/a.safetensors") == evaluate.Method("b", Path("/x/a.safetensors"))
    assert parse_lora("/x/a.safetensors").name == "a"
    (tmp_path / "run").mkdir()
    assert parse_lora(str(tmp_path / "run")) == evaluate.Method("run", tmp_path / "run" / "lora.safetensors")
    with pytest.raises(ValueError, match="--lora 'a/b=c': the name 'a/b' must be a plain name.*NAME=FILE"):
        parse_lora("a/b=c")
    methods = parse_guides(["runs/a=1", "b=runs/b=2", "runs/c=0:1,2:3", "b=x.safetensors=0.5"])
    told = {method.name: [(guide.source, guide.gammas) for guide in method.guides] for method in methods}
    assert told == {
        "guided": [("runs/a", ((0, 1.0),)), ("runs/c", ((0, 1.0), (2, 3.0)))],
        "b": [("runs/b", ((0, 2.0),)), ("x.safetensors", ((0, 0.5),))],
    }
    with pytest.raises(ValueError, match="--guide 'a/b=runs/c=1': the name 'a/b' must be"):
        parse_guides(["a/b=runs/c=1"])


@pytest.mark.painted
def test_a_model_and_its_adapters(asked, adapter, tmp_path, capsys, sampled):
    assert asked("shapes-flux", "--lora", adapter, "--lora", f"again={adapter}", *REWARDS) == 0
    pairs = [(prompt, seed) for prompt in PROMPTS for seed in (0, 1)]
    assert [list(zip(*call, strict=True)) for call in sampled] == [pairs] * 3
    out = tmp_path / "out"
    rows = lines(out)
    assert [row["method"] for row in rows] == ["base"] * 4 + ["loud"] * 4 + ["again"] * 4
    assert [(row["prompt"], row["seed"]) for row in rows[:4]] == pairs
    for row in rows:
        picture = np.asarray(Image.open(out / "pictures" / row["method"] / row["file"]))
        assert row["scores"]["red"] == pytest.approx(picture[..., 0].mean() / 255, abs=1e-6)
        assert row["scores"]["accuracy"] in (0.0, 1.0)
    red = np.array([row["scores"]["red"] for row in rows]).reshape(3, 4)
    assert np.abs(red[1] - red[0]).max() > 0.01 and (red[2] == red[1]).all()
    printed = capsys.readouterr().out
    assert printed == (out / "table.md").read_text() + f"\n{out}\n"
    assert f"| loud | {red[1].mean():.4g} (" in printed and f"| again | {(red[1] - red[0]).mean():+.3g} (" in printed
    table = list(csv.DictReader((out / "table.csv").read_text().splitlines()))
    assert float(table[2]["mean"]) == pytest.approx(red[1].mean())
    with Image.open(out / "plot.png") as plot:
        assert plot.width > 600
    assert main(["score", str(out / "pictures" / "loud"), *REWARDS]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    assert row.startswith(f"| red | {red[1].mean():.4g} |") and row.endswith("| 4 of 4 |"), "otca score says the same"


def test_a_run_against_what_it_started_from(asked, finished_run, tmp_path, load_toy, small_settings):
    folder = shutil.copytree(finished_run, tmp_path / "mine")
    assert asked(folder, "--lora", f"other={folder}", "--size", "40x40", *REWARDS) == 0
    rows = {(row["method"], row["prompt"], row["seed"]): row["scores"]["red"] for row in lines(tmp_path / "out")}
    model = load_toy()
    settings = small_settings(steps=3, guidance=3.5)
    for method in ("base", "mine", "other"):
        if method == "mine":
            lora.load(model, folder / "lora.safetensors")
        pictures = rollout.generate(model, PROMPTS, settings, [1, 1])
        reds = [rows[method, prompt, 1] for prompt in PROMPTS]
        assert reds == pytest.approx(pictures[..., 0].mean((1, 2)).tolist(), abs=2e-3)
    assert any(rows["base", p, s] != rows["mine", p, s] for p in PROMPTS for s in (0, 1))


# --- guides ---------------------------------------------------------------------------------------------------------


def test_guides_of_one_name_are_composed(asked, adapter, tmp_path, load_model, perturb, sampled, capsys):
    quiet = lora.save(perturb(load_model(), seed=5), tmp_path / "quiet.safetensors", {})[0]
    guides = [f"alone={adapter}=1", f"both={adapter}=0.5", f"both={quiet}=0:1,2:0"]
    arguments = [part for guide in guides for part in ("--guide", guide)]
    assert asked("shapes-flux", "--lora", adapter, *arguments, *REWARDS) == 0
    rows = lines(tmp_path / "out")
    red = {name: [row["scores"]["red"] for row in rows if row["method"] == name] for name in ("loud", "alone", "both")}
    assert red["loud"] == red["alone"] and all(a != b for a, b in zip(red["loud"], red["both"], strict=True))
    sampled.clear()
    assert asked("shapes-flux", "--guide", f"alone={adapter}=1", *REWARDS) == 0 and sampled == []
    assert asked("shapes-flux", "--guide", f"alone={adapter}=2", *REWARDS) == 2
    assert "whose method.alone is" in capsys.readouterr().err


# --- going on -------------------------------------------------------------------------------------------------------


def test_what_is_scored_is_not_sampled_again(asked, adapter, tmp_path, sampled):
    assert asked("shapes-flux", *REWARDS) == 0
    before = (tmp_path / "out" / "scores.jsonl").read_bytes()
    table = (tmp_path / "out" / "table.md").read_bytes()
    sampled.clear()
    assert asked("shapes-flux", *REWARDS) == 0 and sampled == []
    assert (tmp_path / "out" / "scores.jsonl").read_bytes() == before
    assert (tmp_path / "out" / "table.md").read_bytes() == table
    assert asked("shapes-flux", "--lora", adapter, *REWARDS) == 0
    assert len(sampled) == 1 and len(lines(tmp_path / "out")) == 8, "only the new method"
    sampled.clear()
    assert asked("shapes-flux", *REWARDS, "--reward", "sharpness") == 0
    assert len(sampled) == 1 and "sharpness" in lines(tmp_path / "out")[-1]["scores"], "a new reward needs the pictures"
    assert asked("shapes-flux", "--reward", "colorfulness") == 0 and len(sampled) == 2
    assert asked("shapes-flux", *REWARDS, "--reward", "sharpness") == 0 and len(sampled) == 2, "no score was forgotten"


def test_a_stop_leaves_what_is_done(asked, adapter, tmp_path, monkeypatch, capsys, sampled):
    arguments = ["shapes-flux", "--lora", adapter, "--batch-size", 1, *REWARDS]
    real = stopping.check_stop

    def check():
        if len(sampled) == 6:
            signal.raise_signal(signal.SIGINT)
        real()

    monkeypatch.setattr(stopping, "check_stop", check)
    assert asked(*arguments) == 130
    assert "the same command continues from there" in capsys.readouterr().err
    assert len(lines(tmp_path / "out")) == 5 and not (tmp_path / "out" / "table.md").exists()
    scores = tmp_path / "out" / "scores.jsonl"
    scores.write_text(scores.read_text() + '{"method": "loud", "pro')  # as a kill would leave it
    monkeypatch.setattr(stopping, "check_stop", real)
    sampled.clear()
    assert asked(*arguments) == 0
    assert len(sampled) == 3 and len(lines(tmp_path / "out")) == 8
    whole = (tmp_path / "out" / "table.md").read_text()
    shutil.rmtree(tmp_path / "out")
    assert asked(*arguments) == 0 and (tmp_path / "out" / "table.md").read_text() == whole


def test_another_evaluation_is_left_alone(asked, red, adapter, load_model, perturb, tmp_path, capsys):
    """Of other settings, another reward, a reward whose file has changed, and an adapter that has."""
    own = ["--reward", "python:file=red.py"]

    def refused(arguments, told, steps=3):
        before = (tmp_path / "out" / "scores.jsonl").read_bytes()
        assert asked("shapes-flux", "--lora", adapter, *arguments, steps=steps) == 2
        assert told in (error := capsys.readouterr().err) and "Fix: choose another --output" in error
        assert (tmp_path / "out" / "scores.jsonl").read_bytes() == before

    assert asked("shapes-flux", "--lora", adapter, *own) == 0
    refused(own, "whose sampler.steps is 3, and now it is 4", steps=4)
    refused(["--reward", "python:file=red.py,clip=0, 1"], "whose reward.red is")
    written = red.read_text()
    red.write_text("def score(images, prompts):\n    return images[..., 1].mean((1, 2))\n")
    refused(own, "whose reward.red is")
    red.write_text(written)
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert settings.pop("noise") == "seed and prompt"
    (tmp_path / "out" / "settings.json").write_text(json.dumps(settings))
    refused(own, "whose noise is seed, and now it is seed and prompt")
    (tmp_path / "out" / "settings.json").write_text(json.dumps(settings | {"noise": "seed and prompt"}))
    lora.save(perturb(load_model(), seed=9), adapter, {})
    refused(own, "whose method.loud is")


def test_what_a_prompt_says_beside_its_text_reaches_the_rewards_and_stays_beside_the_pictures(tmp_path, red, capsys):
    red.write_text("def score(images, prompts):\n    return [prompt.metadata['worth'] for prompt in prompts]\n")
    prompts = tmp_path / "prompts.jsonl"
    common = [
        "eval",
        "shapes-flux",
        "--seeds",
        "1",
        "--steps",
        "2",
        "--output",
        str(tmp_path / "out"),
        "--prompts",
        str(prompts),
        "--reward",
        "python:file=red.py",
    ]

    def score(*rows):
        prompts.write_text("\n".join(map(json.dumps, rows)))
        return main(common), capsys.readouterr().err

    row = {"prompt": "a red circle", "worth": 3.0}
    for own in (row, row, {"prompt": "a blue square", "worth": 4.0}):  # the later calls continue the first
        assert score(own)[0] == 0
    assert [row["scores"]["red"] for row in lines(tmp_path / "out")] == [3.0, 4.0]
    beside = (tmp_path / "out" / "pictures" / "base" / "metadata.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["worth"] for line in beside) == [3.0, 4.0]
    # Scores of other metadata are not kept.
    for other in ({**row, "worth": 4.0}, {"prompt": "a red circle"}):
        code, told = score(other)
        assert code == 2 and "scores of 'a red circle' with other metadata. Fix: " in told
    assert len(lines(tmp_path / "out")) == 2
    code, told = score(row, {**row, "worth": 4.0})
    assert code == 2 and "twice with different metadata: 'a red circle'" in told


def test_equal_texts_about_different_pictures_are_prompts_of_their_own(tmp_path, tiny_folder, capsys, monkeypatch):
    monkeypatch.setenv("OTCA_INPUT", str(tmp_path))
    for name, light in (("a.png", 40), ("b.png", 200)):
        Image.new("RGB", (32, 32), (light,) * 3).save(tmp_path / name)
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "make it blue", "image": name} for name in ("a.png", "b.png")]
    command = [
        "eval",
        str(tiny_folder("flux-kontext")),
        "--prompts",
        str(prompts),
        "--reward",
        "kept",
        "--seeds",
        "1",
        "--steps",
        "2",
        "--size",
        "32x32",
        "--output",
        str(tmp_path / "out"),
    ]

    def evaluate(*some):
        prompts.write_text("\n".join(map(json.dumps, some)))
        code, said = main(command), capsys.readouterr()
        return code, said.out + said.err

    assert evaluate(rows[0])[0] == 0 == evaluate(*rows)[0], "the second call goes on with the first"
    found = lines(tmp_path / "out")
    assert [(row["prompt"], row["images"], row["file"]) for row in found] == [
        ("make it blue", ["a.png"], "0001-0.png"),
        ("make it blue", ["b.png"], "0002-0.png"),
    ]
    assert found[0]["scores"] != found[1]["scores"], "each beside its own source"
    assert "prompts: 2, seeds of each: 1" in (tmp_path / "out" / "table.md").read_text()
    beside = (tmp_path / "out" / "pictures" / "base" / "metadata.jsonl").read_text().splitlines()
    assert [json.loads(line)["image"] for line in beside] == ["a.png", "b.png"]
    Image.new("RGB", (32, 32), "red").save(tmp_path / "b.png")
    code, told = evaluate(*rows)
    assert code != 0 and "an evaluation whose picture.b.png is " in told, "another picture of that name"


REFUSED = [
    (["shapes-flux", "--lora", "nowhere.safetensors"], "nowhere.safetensors: no such adapter. Fix: "),
    (["shapes-flux", "--lora", "base=nowhere.safetensors"], "two methods share a name: base, base. Fix: "),
    (["nowhere"], "model 'nowhere' was not found"),
    (["shapes-flux", "--size", "big"], "--size 'big'"),
    (["shapes-flux", "--reward", "accuracy:name=red"], "two rewards share a name: red, red, accuracy. Fix: "),
]


def test_refusals(asked, tmp_path, capsys, sampled):
    for arguments, told in REFUSED:
        assert asked(*arguments, *REWARDS) == 2
        assert told in capsys.readouterr().err and sampled == [] and not (tmp_path / "out").exists()


def test_a_run_that_trained_all_weights(asked, small_graph, tmp_path, capsys, caplog, adapter):
    graph = small_graph({"OTCA_LoadFlowModel": {"training": "full"}, "OTCA_TrainingRun": {"iterations": 2}})
    (tmp_path / "workflow.json").write_text(json.dumps(graph))
    assert main(["train", str(tmp_path / "workflow.json"), "--output", str(tmp_path / "whole")]) == 0
    assert "Save LoRA writes nothing, since all weights were trained without an adapter. otca export" in caplog.text
    assert not list(tmp_path.rglob("*lora*"))
    assert asked(tmp_path / "whole", *REWARDS) == 0
    rows = lines(tmp_path / "out")
    red = np.array([row["scores"]["red"] for row in rows]).reshape(2, 4)
    assert [row["method"] for row in rows[::4]] == ["base", "whole"] and (red[0] != red[1]).all()
    assert asked(tmp_path / "whole", "--lora", adapter, *REWARDS) == 2
    assert "all weights of this run were trained. Fix: give the model instead" in capsys.readouterr().err
