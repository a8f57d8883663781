"""Where models, weights and prompt files are found; nothing of it reaches for a network."""

import os
import sys
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest

from comfyui_otca.host import paths, search
from comfyui_otca.host.access import permissions
from comfyui_otca.host.access.addresses import is_hub_id
from comfyui_otca.trainer.prompts import PromptError, read_prompts

MARKER = "model_index.json"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that $OTCA_MODELS names, beside an empty hub cache."""
    place, cache = tmp_path / "models", tmp_path / "cache"
    place.mkdir()
    monkeypatch.setenv("OTCA_MODELS", str(place))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    return place


def put(folder, name=MARKER):
    folder.mkdir(parents=True)
    (folder / name).write_text("{}")
    return folder


def test_models_lie_up_to_two_levels_deep(folder):
    put(folder / "plain"), put(folder / "owner" / "name"), put(folder / "a" / "b" / "too_deep")
    listed = paths.list_models(MARKER)
    assert listed[:2] == ["plain", "owner/name"] and listed[2:5] == ["edit-flux", "scenes-flux", "shapes-flux"]
    assert search.model("owner/name", MARKER) == folder / "owner" / "name"
    assert search.model(str(folder / "plain"), MARKER) == folder / "plain"


@pytest.mark.parametrize("name", ["flux1-dev.safetensors", "unet/flux1-dev-Q8_0.gguf"])
def test_a_single_file_is_refused_with_what_to_use_instead(folder, name):
    with pytest.raises(FileNotFoundError, match=f"model '{name}' is a single file, .* Fix: .* connect Make Trainable"):
        search.model(name, MARKER)


def test_a_hub_id_is_found_in_the_local_cache_alone(folder, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("socket.create_connection", lambda *args, **kwargs: asked.append(args))
    with pytest.raises(FileNotFoundError, match="model 'owner/name' was not found .*Fix: "):
        search.model("owner/name", MARKER)
    repository = tmp_path / "cache" / "models--owner--name"
    snapshot = put(repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert search.model("owner/name", MARKER) == snapshot
    assert asked == []


def test_a_download_is_asked_for_by_name(monkeypatch):
    asked = []
    permissions.user_allows(download=True)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *name, **how: asked.extend([*name, how]) or "/there"
    )
    assert str(search.download("owner/name")) == "/there"
    assert asked[0] == "owner/name" and "*/*.safetensors" in asked[1]["allow_patterns"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("owner/name", True), ("name", False), ("a/b/c", False), ("/abs/path", False), ("./rel", False), ("~/x", False)],
)
def test_what_a_hub_id_looks_like(name, expected):
    assert is_hub_id(name) is expected


def test_weights_by_name_and_by_path(folder):
    file = put(folder / "vae" / "sub", "ae.safetensors") / "ae.safetensors"
    assert search.weights("sub/ae.safetensors", "vae") == file == search.weights(str(file), "text_encoders")
    assert search.weights("vae/sub/ae.safetensors", "diffusion_models") == file
    assert paths.list_weights("vae") == ["sub/ae.safetensors"] and paths.list_weights("text_encoders") == []
    told = "weights 'sub/ae.safetensors' were not found.*into ComfyUI's models/text_encoders"
    with pytest.raises(FileNotFoundError, match=told):
        search.weights("sub/ae.safetensors", "text_encoders")


def test_prompt_files_of_comfyuis_input_folder(tmp_path, monkeypatch):
    with pytest.raises(PromptError, match="mine.txt"):
        read_prompts("", "mine.txt")
    monkeypatch.setenv("OTCA_INPUT", str(tmp_path))
    (tmp_path / "mine.txt").write_text("a prompt\n")
    assert read_prompts("", "mine.txt") == ["a prompt"]


def test_in_comfyui_its_folders_are_searched(comfyui, tmp_path):
    known = sys.modules["folder_paths"].folder_names_and_paths
    put(tmp_path / "diffusers" / "one"), put(tmp_path / "diffusion_models" / "two")
    for kind in ("diffusers", "diffusion_models", "loras"):
        known[kind] = ([], set())
    assert paths.list_models(MARKER)[:2] == ["one", "two"]
    put(tmp_path / "diffusion_models" / "flux", "dev.safetensors")
    assert search.weights("flux/dev.safetensors", "diffusion_models").is_file()
    assert paths.list_weights("diffusion_models") == ["flux/dev.safetensors"]
    (tmp_path / "diffusion_models" / "flux" / "dev.ckpt").write_text("")
    assert paths.list_weights("diffusion_models") == ["flux/dev.safetensors"]


def test_in_comfyui_its_own_lists_are_asked(comfyui, monkeypatch, tmp_path):
    """They are kept until a folder changes: the folders are not walked through at every validation."""
    listed = {"loras": ["a.safetensors", os.path.join("b", "C.SAFETENSORS"), "d.pt"]}
    monkeypatch.setattr(sys.modules["folder_paths"], "get_filename_list", listed.__getitem__)
    put(tmp_path / "loras", "not_in_the_list.safetensors")
    put(tmp_path / "named" / "loras", "e.safetensors")
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path / "named"))
    assert paths.list_weights("loras") == ["e.safetensors", "a.safetensors", "b/C.SAFETENSORS"]


def test_a_run_that_is_removed_while_runs_are_listed(comfyui, monkeypatch, tmp_path):
    (tmp_path / "here" / "checkpoints").mkdir(parents=True)
    found = [tmp_path / name / "checkpoints" for name in ("gone", "here")]
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: iter(found))
    assert paths.list_runs() == ["here", "gone"]
