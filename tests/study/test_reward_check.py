"""`otca rewards check` on the small CLIP, which was trained, and on random checkpoints in the published layouts."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys

import pytest
import torch

from comfyui_otca.__main__ import main
from comfyui_otca.host import paths
from comfyui_otca.host.access.permissions import user_named
from comfyui_otca.study import reward_check
from comfyui_otca.study.reward_check import RIGHT, UNKNOWN, WRONG, check, recognised
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.trainer.rewards import hps, reward_class

SHAPES_CLIP = paths.ASSETS / "shapes-clip"
TEXT, SHARP, SECOND = "right prompt above wrong", "sharp above blurred", "second implementation"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    tiny_rewards.clip(folder / "clip")
    tiny_rewards.aesthetic(folder / "head.pth")
    tiny_rewards.clip(folder / "PickScore_v1", projection=64)
    tiny_rewards.hps(folder / "hps.pt")
    tiny_rewards.image_reward(folder)
    return folder


@pytest.fixture(autouse=True)
def _named(files, tmp_path, monkeypatch):
    """As if typed, and no reference contributed yet."""
    user_named(files)
    user_named(tmp_path)
    monkeypatch.setattr(reward_check, "REFERENCES", tmp_path / "references")


def options(files, kind):
    return {
        "aesthetic": {"model": str(files / "clip")},
        "hpsv2": {"tokenizer": str(files / "clip")},
        "image_reward": {"config": str(files / "med_config.json"), "tokenizer": str(files / "bert-base-uncased")},
    }.get(kind, {})


PLACES = {
    "clip_t": "clip",
    "aesthetic": "head.pth",
    "pickscore": "PickScore_v1",
    "hpsv2": "hps.pt",
    "image_reward": "ImageReward.pt",
}


def verdicts(checked):
    return {finding.what: finding.verdict for finding in checked.findings}


def text(checked, what):
    return next(finding.text for finding in checked.findings if finding.what == what)


def test_the_pictures_show_what_their_prompts_say():
    """By the exact judge of the shapes world, which knows nothing of how they were drawn."""
    sharp, blurred = (reward_check._tensor(each) for each in reward_check.pictures())
    prompts = [scene.caption for scene in reward_check.SCENES]
    judge = reward_class("accuracy")()
    assert len(set(prompts)) == 5 and list(judge.score(sharp, prompts)) == [1.0] * 5
    assert sum(judge.score(blurred, prompts)) < 5


def test_a_model_that_was_trained_is_right():
    checked = check(SHAPES_CLIP)
    assert checked.kind == "clip_t" and not checked.wrong
    assert {what for what, verdict in verdicts(checked).items() if verdict == RIGHT} == {
        *("layout", "sizes", TEXT, SHARP, SECOND)
    }
    assert "5 of 5 pictures" in text(checked, TEXT) and "20 of 20 single" in text(checked, TEXT)
    assert "nobody has contributed one of clip_t yet" in text(checked, "reference")
    assert checked.record["scores"]["own"][0] > 0.9 > checked.record["scores"]["other 1"][0]


@pytest.mark.parametrize("kind", PLACES)
def test_a_random_model_is_caught_though_both_implementations_agree(files, kind):
    path = files / PLACES[kind]
    assert recognised(path) == kind
    checked = check(path, options=options(files, kind))
    found = verdicts(checked)
    assert (found["layout"], found[SECOND]) == (RIGHT, RIGHT) and checked.wrong
    if kind != "clip_t":
        assert found["sizes"] == WRONG and "where the published model has vision 1" in text(checked, "sizes")
    assert (TEXT in found) == (kind != "aesthetic")
    if kind == "clip_t":
        assert found["sizes"] == RIGHT and found[TEXT] == WRONG
    digest = hashlib.sha256((path if path.is_file() else path / "model.safetensors").read_bytes()).hexdigest()
    assert next(iter(checked.record["files"].values()))["sha256"] == digest


def test_the_orders_are_those_of_the_scores():
    """By hand: four of five by the mean of the wrong ones, though more single comparisons are lost."""
    own = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    others = [torch.tensor([0.0, 0.0, 0.0, wrong, 1.0]) for wrong in (2.0, 0.0, 0.0, 0.0)]
    scores = {"own": own, "blurred": own + 0.5} | {f"other {k}": column for k, column in enumerate(others, 1)}
    prompt, sharp = reward_check._orders("clip_t", scores)
    assert prompt.verdict == WRONG and "4 of 5" in prompt.text and "15 of 20" in prompt.text
    assert sharp.verdict == WRONG and "-0.5" in sharp.text
    (only,) = reward_check._orders("aesthetic", scores | {"blurred": own - 1})
    assert only.what == SHARP and only.verdict == RIGHT


def test_implementations_that_differ_are_told(files, monkeypatch):
    ours = hps.HPSv2.score
    monkeypatch.setattr(hps.HPSv2, "score", lambda self, images, prompts: ours(self, images, prompts) + 0.0015)
    checked = check(files / "hps.pt", options=options(files, "hpsv2"))
    assert verdicts(checked)[SECOND] == WRONG and "is 1.5e-03, allowed are 0.001" in text(checked, SECOND)


def test_the_authors_package_of_hps(files, monkeypatch):
    asked = check(files / "hps.pt", options=options(files, "hpsv2"))
    assert verdicts(asked)["authors' package"] == UNKNOWN and "not installed" in text(asked, "authors' package")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "hpsv2" or find(name))
    for name in ("hpsv2", "hpsv2.src", "hpsv2.src.open_clip"):
        monkeypatch.setitem(sys.modules, name, None)
    broken = check(files / "hps.pt", options=options(files, "hpsv2"))
    assert verdicts(broken)["authors' package"] == UNKNOWN and "cannot be used" in text(broken, "authors' package")

    class Package(hps.HPSv2Clip):
        def __init__(self, path, device, dtype):
            super().__init__(path, device, dtype, files / "clip")

    monkeypatch.setattr(hps, "HPSv2Package", Package)
    both = [
        finding
        for finding in check(files / "hps.pt", options=options(files, "hpsv2")).findings
        if finding.what == SECOND
    ]
    assert [finding.verdict for finding in both] == [RIGHT, RIGHT] and "package hpsv2" in both[1].text


def test_a_public_hash(files, monkeypatch):
    wanted = options(files, "aesthetic")
    other = check(files / "head.pth", options=wanted)
    assert verdicts(other)["hash"] == WRONG and "the published file has 21dd590f3ccd…" in text(other, "hash")
    digest = hashlib.sha256((files / "head.pth").read_bytes()).hexdigest()
    monkeypatch.setitem(reward_check.HASHES, "aesthetic", digest)
    assert verdicts(check(files / "head.pth", options=wanted))["hash"] == RIGHT


def test_a_contributed_reference(tmp_path):
    references = tmp_path / "references"
    written = reward_check.write_reference(check(SHAPES_CLIP), references)
    again = check(SHAPES_CLIP)
    assert verdicts(again)["reference"] == RIGHT and "is 0.0e+00" in text(again, "reference")
    content = json.loads(written.read_text())
    content["scores"]["other 2"][3] += 0.002
    written.write_text(json.dumps(content))
    apart = check(SHAPES_CLIP)
    assert verdicts(apart)["reference"] == WRONG and apart.wrong and "is 2.0e-03" in text(apart, "reference")
    content["scores"]["other 2"][3] -= 0.002
    content["files"] = {f"renamed-{name}": file for name, file in content["files"].items()}
    written.write_text(json.dumps(content))
    assert verdicts(check(SHAPES_CLIP))["reference"] == RIGHT
    content["files"]["renamed-model.safetensors"]["sha256"] = "0"
    written.write_text(json.dumps(content))
    assert f"of other files: {written.name}" in text(check(SHAPES_CLIP), "reference")


def test_the_command(tmp_path, files, capsys):
    assert main(["rewards", "check", str(SHAPES_CLIP), "--output", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "| layout | right |" in told and "nothing is wrong" in told
    (written,) = tmp_path.glob("clip_t-*.json")
    record = json.loads(written.read_text())
    assert record["kind"] == "clip_t" and record["made_with"]["torch"] == torch.__version__
    assert {finding["verdict"] for finding in record["findings"]} == {RIGHT, UNKNOWN}
    tokenizer = f"tokenizer={files / 'clip'}"
    assert main(["rewards", "check", str(files / "hps.pt"), "--option", tokenizer, "--output", str(tmp_path)]) == 1
    assert "something is wrong" in capsys.readouterr().out


def test_what_is_no_reward(tmp_path, files, capsys):
    torch.save({"state_dict": {"conv.weight": torch.ones(2)}}, tmp_path / "other.pt")
    (tmp_path / "cut.pt").write_bytes((files / "hps.pt").read_bytes()[:5000])
    for arguments, code, said in (
        ([str(tmp_path / "other.pt")], 2, "is no known reward: its tensors begin conv.weight. Fix: --kind"),
        ([str(tmp_path / "nowhere.pt")], 2, "is not there. Fix: "),
        ([str(tmp_path)], 2, "is no folder of a CLIP model. Fix: "),
        ([str(tmp_path / "cut.pt")], 1, "it cannot be read"),
        ([str(SHAPES_CLIP), "--kind", "sharpness"], 2, "--kind 'sharpness' cannot be checked. Fix: one of clip_t"),
        ([str(SHAPES_CLIP), "--option", "tokenizer"], 2, "--option 'tokenizer' has no value. Fix: "),
        ([str(SHAPES_CLIP), "--option", "config=x"], 2, "is no option of it"),
    ):
        assert main(["rewards", "check", *arguments, "--output", str(tmp_path)]) == code
        assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("*.json"))


def test_weights_of_another_layout(files):
    checked = check(files / "hps.pt", "image_reward", options(files, "image_reward"))
    (layout,) = checked.findings
    assert (layout.verdict, checked.record) == (WRONG, None) and "is not ImageReward: it has no" in layout.text
