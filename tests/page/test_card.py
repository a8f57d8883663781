"""`otca card`: what its folder holds, that its LoRA is the run's, and what is said of the base's licence."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from comfyui_otca.__main__ import main
from comfyui_otca.bundle.contents import Contents
from comfyui_otca.bundle.found import Model
from comfyui_otca.page import card
from comfyui_otca.tests.training import assert_same_tensors, rows
from comfyui_otca.trainer.policy.files import read_metadata


def head_of(text):
    _, head, body = text.split("---\n", 2)
    return head.splitlines(), body


def test_the_folder_is_ready_to_upload(copied, tmp_path):
    target = tmp_path / "card"
    assert main(["card", str(copied), "--output", str(target)]) == 0
    [adapter] = target.glob("*.safetensors")
    graph = json.loads((target / "workflow.json").read_text())
    name = "run"  # of its folder; the graph's own run name is otca
    assert adapter.stem == name
    assert_same_tensors(adapter, copied / "lora.safetensors")
    header = read_metadata(adapter)
    assert json.loads(header["prompt"]) == graph and header["modelspec.title"] == name
    own = {key for key in header if not key.startswith(("modelspec.", "ss_"))}
    assert own == {"format", "prompt", "otca_iteration", "otca_base"}
    head, body = head_of((target / "README.md").read_text())
    assert head[0].startswith("# license: choose one") and "library_name: diffusers" in head and "- lora" in head
    last = rows(copied, "evaluation.jsonl")[-1]["rewards"]["sharpness"]["mean"]
    assert f"| {last:.3g} |" in body and f"| iterations | {len(rows(copied))} |" in body
    assert f"# {card.cell_of(name)}\n" in body and "coefficient" in body
    pictures = sorted((target / "pictures").iterdir())
    assert 1 < len(pictures) <= 6
    for picture in pictures:
        assert f"({picture.parent.name}/{picture.name})" in body
        with Image.open(picture) as image:
            assert image.width == 2 * (image.height + 4) and not image.getexif()
    for file in target.rglob("*"):
        if file.is_file():
            assert str(tmp_path).encode() not in file.read_bytes(), file


def test_bad_input_names_the_fix_and_leaves_nothing(copied, tmp_path, capsys):
    def refused(*arguments):
        assert main(["card", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    assert "holds no run. Fix: give the folder that has its workflow.json" in refused(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert "is not an empty folder. Fix: choose another" in refused(copied, "--output", tmp_path / "full")
    (copied / "lora.safetensors").unlink()
    assert "has no adapter: nothing was saved yet" in refused(copied, "--output", tmp_path / "card")
    assert not (tmp_path / "card").exists() and not list(tmp_path.glob(".otca*"))


def test_a_key_in_the_graph_is_refused(copied, tmp_path, capsys):
    graph = json.loads((copied / "workflow.json").read_text())
    graph["extra"] = {"class_type": "OTCA_RewardHTTP", "inputs": {"url": "http://127.0.0.1:1/score?key=abc"}}
    stack = next(e for e in graph.values() if e["class_type"] == "OTCA_RewardStack")
    stack["inputs"]["reward_8"] = ["extra", 0]
    (copied / "workflow.json").write_text(json.dumps(graph))
    assert main(["card", str(copied), "--output", str(tmp_path / "card")]) == 2
    assert "carries a query, which may hold a key" in capsys.readouterr().err and not (tmp_path / "card").exists()


@pytest.mark.parametrize(
    ("name", "hub", "said"),
    [
        ("flux1-dev.safetensors", "black-forest-labs/FLUX.1-dev", "non-commercial"),
        ("flux1-krea-dev_fp8.safetensors", "black-forest-labs/FLUX.1-Krea-dev", "non-commercial"),
        ("flux1-schnell.safetensors", "black-forest-labs/FLUX.1-schnell", ""),
        ("flux-2-klein-base-4b.safetensors", "black-forest-labs/FLUX.2-klein-base-4B", ""),
        ("flux-2-klein-9b-fp8.safetensors", "black-forest-labs/FLUX.2-klein-9B", "non-commercial"),
        ("z_image_turbo_bf16.safetensors", "Tongyi-MAI/Z-Image-Turbo", ""),
        ("sd3.5_medium.safetensors", "", "yearly revenue"),
        ("my_own.safetensors", "", ""),
    ],
)
def test_what_the_base_forbids_is_said(name, hub, said):
    [(found, id_, limits)] = card.bases(Contents({}, "x", models=[Model(name, "diffusion_models", None)]))
    assert (found, id_) == (name, hub) and (said in limits if said else not limits)
    graph = {"1": {"class_type": "OTCA_LoadFlowModel", "inputs": {"model": "someone/her-model"}}}
    assert card.bases(Contents(graph, "x")) == [("someone/her-model", "someone/her-model", "")]


def test_a_strangers_names_are_no_html(copied, tmp_path):
    """Seen before: that of a reward was, in the verdict's line."""
    for file in (copied / "evaluation.jsonl", copied / "metrics.jsonl"):
        file.write_text(file.read_text().replace("sharpness", "<i onclick=x>"))
    assert main(["card", str(copied), "--output", str(tmp_path / "card")]) == 0
    body = (tmp_path / "card" / "README.md").read_text()
    assert body.count("\\<i onclick=x\\>") > 1 and "<i" not in body.replace("\\<i", "")


def test_keys_of_comfyui_are_not_called_those_of_diffusers(copied, tmp_path):
    tensors = load_file(copied / "lora.safetensors")
    other = {key.replace("transformer.", "diffusion_model."): value for key, value in tensors.items()}
    said = {"modelspec.implementation": "comfyui"}
    save_file({key: torch.clone(value) for key, value in other.items()}, copied / "lora.safetensors", said)
    assert main(["card", str(copied), "--output", str(tmp_path / "card")]) == 0
    head, body = head_of((tmp_path / "card" / "README.md").read_text())
    assert "library_name: comfyui" in head and "Its keys are ComfyUI's" in body
