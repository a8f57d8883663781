"""Folders that only describe a published model: for single files, with ComfyUI's tokenizers."""

from __future__ import annotations

import ast
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from comfyui_otca.host import comfyui, paths
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tools import configurations
from comfyui_otca.trainer.families import tokenizers
from comfyui_otca.trainer.families.folder import library_class, read_index
from comfyui_otca.trainer.flow import FlowModelError, check_model_folder, load_flow_model

COMFYUI = [Path(os.environ.get("COMFYUI_PATH", "~/comfy/ComfyUI")).expanduser()]
MODELS = list(configurations.MODELS)
# Parameters in millions, as their makers and the sizes of their published files say.
SIZES = {
    "FLUX.1-dev": {"transformer": 11901, "text_encoder": 123, "text_encoder_2": 4762, "vae": 84},
    "FLUX.1-schnell": {"transformer": 11891, "text_encoder": 123, "text_encoder_2": 4762, "vae": 84},
    "SD3.5-large": {"transformer": 8057, "text_encoder": 124, "text_encoder_2": 695, "text_encoder_3": 4762, "vae": 84},
    "SD3.5-medium": {
        "transformer": 2243,
        "text_encoder": 124,
        "text_encoder_2": 695,
        "text_encoder_3": 4762,
        "vae": 84,
    },
    "Z-Image": {"transformer": 6155, "text_encoder": 4022, "vae": 84},
    "Z-Image-Turbo": {"transformer": 6155, "text_encoder": 4022, "vae": 84},
    # without the head that would give words, 152064 x 3584
    "Qwen-Image": {"transformer": 20430, "text_encoder": 7747, "vae": 127},
}


@pytest.fixture
def own_comfyui(monkeypatch):
    if not (COMFYUI[0] / "comfy").is_dir():
        pytest.skip("there is no ComfyUI here")
    monkeypatch.setenv("COMFYUI_PATH", str(COMFYUI[0]))
    return COMFYUI[0]


@pytest.mark.parametrize("name", MODELS)
def test_the_folders_are_those_that_the_script_makes(name):
    folder = configurations.FOLDER / name
    written = {file.relative_to(folder).as_posix(): json.loads(file.read_text()) for file in folder.rglob("*.json")}
    assert written == configurations.contents(name)
    assert f"configurations/{name}" in paths.list_models("model_index.json")


@pytest.mark.parametrize("name", MODELS)
def test_every_network_is_as_large_as_the_published_one(name):
    folder = configurations.FOLDER / name
    found = {}
    for component, (library, kind) in list(read_index(folder).items())[1:]:
        if component in SIZES[name]:
            network = library_class(folder / component, library, kind)
            with torch.device("meta"):
                if library == "diffusers":
                    built = network.from_config(network.load_config(folder / component))
                else:
                    built = network(network.config_class.from_pretrained(folder / component))
            found[component] = round(sum(parameter.numel() for parameter in built.parameters()) / 1e6)
    assert found == SIZES[name]


def test_the_encoders_are_those_that_comfyui_knows(own_comfyui):
    """ComfyUI describes the same networks in files of its own."""
    for file, ours in (
        ("sd1_clip_config.json", "text_encoder"),
        ("text_encoders/t5_config_xxl.json", "text_encoder_2"),
    ):
        theirs = json.loads((own_comfyui / "comfy" / file).read_text())
        mine = json.loads((configurations.FOLDER / "FLUX.1-dev" / ours / "config.json").read_text())
        shared = mine.keys() & theirs.keys() - {"model_type", "architectures", "bos_token_id", "eos_token_id"}
        assert len(shared) >= 6
        assert {name: mine[name] for name in shared} == {name: theirs[name] for name in shared}


def test_tokens_of_comfyuis_tokenizers(own_comfyui):
    """Ids that OpenAI's and Google's own tokenizers give."""
    folder = configurations.FOLDER / "SD3.5-large"
    clip, clip_g, t5 = (tokenizers.load(folder / name) for name in ("tokenizer", "tokenizer_2", "tokenizer_3"))
    assert clip("a photo of a cat").input_ids == [49406, 320, 1125, 539, 320, 2368, 49407]
    padded = [of("cat", padding="max_length").input_ids for of in (clip, clip_g)]
    assert padded == [[49406, 2368, 49407] + [49407] * 74, [49406, 2368, 49407] + [0] * 74]
    assert t5("Hello world").input_ids == [8774, 296, 1]
    assert (clip.model_max_length, t5.model_max_length) == (77, 512)


def test_tokens_of_a_chat(own_comfyui):
    """As ComfyUI asks Z-Image's encoder: <|im_start|>user\\n…<|im_end|>\\n<|im_start|>assistant\\n, with no system prompt."""
    tokenizer = tokenizers.load(configurations.FOLDER / "Z-Image-Turbo" / "tokenizer")
    chat = [{"role": "user", "content": "a cat"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=True)
    assert tokenizer(text).input_ids == [151644, 872, 198, 64, 8251, 151645, 198, 151644, 77091, 198]
    assert tokenizer.pad_token_id == 151643


def test_the_language_model_is_the_one_that_comfyui_knows():
    newest = (
        Path(os.environ.get("COMFYUI_PATH", "~/comfy/ComfyUI-0.33")).expanduser()
        / "comfy"
        / "text_encoders"
        / "llama.py"
    )
    if not newest.is_file():
        pytest.skip("there is no ComfyUI 0.33 here")
    tree = ast.parse(newest.read_text(encoding="utf-8"))
    for kind, name in (("Qwen3_4BConfig", "Z-Image"), ("Qwen25_7BVLI_Config", "Qwen-Image")):
        (theirs,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
        said = {
            (line.target.id if isinstance(line, ast.AnnAssign) else line.targets[0].id): ast.literal_eval(line.value)
            for line in theirs.body
        }
        mine = json.loads((configurations.FOLDER / name / "text_encoder" / "config.json").read_text())
        mine = mine.get("text_config", mine)
        shared = {key for key in mine.keys() & said.keys() if isinstance(mine[key], int | float)}
        assert len(shared) >= 6
        assert {key: mine[key] for key in shared} == {key: said[key] for key in shared}


def test_without_a_comfyui(monkeypatch, tmp_path):
    monkeypatch.setattr(comfyui, "folder", lambda: None)
    wanted = "FLUX.1-dev takes its tokenizer from ComfyUI, and no ComfyUI was found. Fix: set COMFYUI_PATH"
    with pytest.raises(FlowModelError, match=wanted):
        check_model_folder(configurations.FOLDER / "FLUX.1-dev", None)
    monkeypatch.setattr(comfyui, "folder", lambda: tmp_path)
    with pytest.raises(FlowModelError, match="sd1_tokenizer lacks vocab.json. Fix: "):
        check_model_folder(configurations.FOLDER / "FLUX.1-dev", None)


def test_a_note_names_a_kind_and_no_folder(tmp_path):
    """A stranger's folder cannot have a tokenizer read from elsewhere."""
    (tmp_path / tokenizers.NOTE).write_text('{"kind": "../../secrets"}')
    with pytest.raises(FlowModelError, match="names none of clip_l, clip_g, t5, qwen. Fix: "):
        tokenizers.find(tmp_path)


def test_without_files_it_says_where_they_belong(own_comfyui):
    wanted = (
        "transformer has no .safetensors weights. Fix: .*ComfyUI's models/diffusion_models and choose it in Model Files"
    )
    with pytest.raises(FlowModelError, match=wanted):
        check_model_folder(configurations.FOLDER / "FLUX.1-dev", {})


def test_a_model_of_nothing_but_files(own_comfyui, tmp_path):
    """SD3 with ComfyUI's tokenizers and a CLIP file without projection, as it is published: that of SD3 is the identity."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    torch.manual_seed(3)
    folder = tiny.make("sd3", tmp_path / "sd3")
    for name, content in configurations.contents("SD3.5-large").items():
        if name.startswith("tokenizer"):
            shutil.rmtree(folder / Path(name).parent)
            (folder / name).parent.mkdir()
            (folder / name).write_text(json.dumps(content))
    small = json.loads((folder / "text_encoder_2" / "config.json").read_text())
    for part in ("text_encoder", "text_encoder_2"):
        config = CLIPTextConfig(**(small | {"vocab_size": 49408, "projection_dim": 16 if part[-1] == "2" else 32}))
        if part == "text_encoder":
            config.hidden_size = 32
        CLIPTextModelWithProjection(config).save_pretrained(folder / part)
    files = {file.parent.name: file for file in folder.glob("*/*.safetensors")}
    clip = load_file(files["text_encoder"])
    assert clip.pop("text_projection.weight").shape == (32, 32)
    save_file(clip, tmp_path / "clip_l.safetensors")
    files["text_encoder"] = tmp_path / "clip_l.safetensors"
    model = load_flow_model(folder, device="cpu", files=files)
    assert torch.equal(model.pipeline.text_encoder.text_projection.weight, torch.eye(32))
    assert model.pipeline.tokenizer_3("Hello world").input_ids == [8774, 296, 1]
