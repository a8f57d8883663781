"""Where models, weights and prompt files are found; nothing of it reaches for a network."""

import huggingface_hub
import huggingface_hub.constants
import pytest

from comfyui_otca.trainer import host

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
    listed = host.list_models(MARKER)
    assert listed[:2] == ["plain", "owner/name"] and "shapes-flux" in listed and len(listed) == 3
    assert host.find_model("owner/name", MARKER) == folder / "owner" / "name"
    assert host.find_model(str(folder / "plain"), MARKER) == folder / "plain"


def test_a_hub_id_is_found_in_the_local_cache_alone(folder, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("socket.create_connection", lambda *args, **kwargs: asked.append(args))
    with pytest.raises(FileNotFoundError, match="model 'owner/name' was not found .*Fix: "):
        host.find_model("owner/name", MARKER)
    repository = tmp_path / "cache" / "models--owner--name"
    snapshot = put(repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert host.find_model("owner/name", MARKER) == snapshot
    assert asked == []


def test_a_download_is_asked_for_by_name(monkeypatch):
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *name, **how: asked.append((*name, how)) or "/there"
    )
    assert str(host.download_model("owner/name", without=["vae"])) == "/there"
    ((name, how),) = asked
    assert name == "owner/name" and how["ignore_patterns"] == ["vae/*.safetensors"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("owner/name", True), ("name", False), ("a/b/c", False), ("/abs/path", False), ("./rel", False), ("~/x", False)],
)
def test_what_a_hub_id_looks_like(name, expected):
    assert host.is_hub_id(name) is expected


def test_weights_by_name_and_by_path(folder):
    file = put(folder / "vae" / "sub", "ae.safetensors") / "ae.safetensors"
    assert host.find_weights("sub/ae.safetensors", "vae") == file == host.find_weights(str(file), "text_encoders")
    assert host.find_weights("vae/sub/ae.safetensors", "diffusion_models") == file
    assert host.list_weights("vae") == ["sub/ae.safetensors"] and host.list_weights("text_encoders") == []
    with pytest.raises(FileNotFoundError, match="weights 'sub/ae.safetensors' were not found.*Fix: put the file there"):
        host.find_weights("sub/ae.safetensors", "text_encoders")


def test_prompt_files_of_comfyuis_input_folder(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="mine.txt"):
        host.find_file("mine.txt")
    monkeypatch.setenv("OTCA_INPUT", str(tmp_path))
    (tmp_path / "mine.txt").write_text("a prompt\n")
    assert host.find_file("mine.txt") == tmp_path / "mine.txt"


def test_in_comfyui_its_folders_are_searched(comfyui, tmp_path, monkeypatch):
    import sys

    known = sys.modules["folder_paths"].folder_names_and_paths
    put(tmp_path / "diffusers" / "one"), put(tmp_path / "diffusion_models" / "two")
    for kind in ("diffusers", "diffusion_models", "loras"):
        known[kind] = ([], set())
    assert host.list_models(MARKER)[:2] == ["one", "two"]
    put(tmp_path / "diffusion_models" / "flux", "dev.safetensors")
    assert host.find_weights("flux/dev.safetensors", "diffusion_models").is_file()
    assert host.list_weights("diffusion_models") == ["flux/dev.safetensors"]
