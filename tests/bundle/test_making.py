"""A bundle as it is written: whole or not at all, never over something else, and nothing in it leads out of it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shlex
import shutil
import subprocess
import zipfile

import numpy as np
import pytest
from packaging.requirements import Requirement
from PIL import Image

from comfyui_otca.__main__ import parser
from comfyui_otca.bundle import making, manifest, packages
from comfyui_otca.host import extras, paths
from comfyui_otca.tests.bundle.conftest import COMFYUI_LACKS, inputs_of, read_json
from comfyui_otca.tests.test_registry import archived, tracked
from comfyui_otca.trainer.opinions import plan
from comfyui_otca.trainer.opinions.identity import pixels_id
from comfyui_otca.trainer.opinions.store import Store
from comfyui_otca.trainer.workflow.foreign import Needs

__all__ = ["archived", "tracked"]

HOSTILE = [
    "my run's",
    "$(touch owned)",
    "`touch owned`",
    "a; touch owned",
    "#SBATCH x",
    "'; touch owned; '",
    "output=x y",
]


@pytest.mark.rehearsed
def test_all_of_it_is_in_the_manifest_with_size_and_sha_256(places, small_graph, bundled):
    folder = bundled(small_graph())
    content = read_json(folder / "manifest.json")
    listed = {entry["path"]: entry for entry in content["files"]}
    assert content["memory_bytes"] > 1e6 and "memory: about " in (folder / "README.md").read_text()
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there == {*listed, "manifest.json"}
    for name in ("workflow.json", "ComfyUI-OTCA/trainer/sde.py"):
        content = (folder / name).read_bytes()
        assert listed[name]["bytes"] == len(content) and listed[name]["sha256"] == hashlib.sha256(content).hexdigest()
    written = "run.sh pod.sh Dockerfile .dockerignore train.sbatch sky.yaml README.md constraints.txt"
    assert there >= set(written.split())


def test_the_pack_is_what_the_registry_hands_out(archived):
    """But for what is not yet tracked by git."""
    names = {name for name, _ in packages.pack_files()}
    assert archived <= names, "nothing that the registry has is left out"
    folders = {name.split("/")[0] for name in archived if "/" in name}
    assert set(packages.FOLDERS) == folders and {name for name in names if "/" not in name} <= archived
    assert not [name for name in names if name.startswith(packages.LEFT_OUT)]


def test_models_are_hashed_with_progress_or_not_at_all(places, small_graph, bundled):
    weights = places.models / "taste" / "config.json"
    shutil.copytree(paths.ASSETS / "shapes-clip", weights.parent)
    graph = small_graph({"OTCA_RewardClipT": {"model": "taste"}})
    read = []
    folder = bundled(graph, progress=read.append)
    models = {entry.path: entry for entry in manifest.read(folder).models}
    assert models["taste/config.json"].sha256 == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert sum(read) == sum(entry.bytes for entry in models.values())
    folder = bundled(graph, target="without", with_hashes=False)
    entries = manifest.read(folder).models
    assert {(one.path, one.bytes) for one in entries} == {(one.path, one.bytes) for one in models.values()}
    assert {one.sha256 for one in entries} == {None}


TEMPLATES = sorted((paths.ASSETS.parent / "workflows" / "api").glob("*.json"))


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.stem)
def test_what_it_lists_follows_from_the_graph_and_not_from_what_is_here(file, monkeypatch):
    """In a Python that has ComfyUI's packages alone, as in one that has them all; there with the bounds of the pack."""
    graph = read_json(file)
    kinds = {entry["class_type"] for entry in graph.values()}
    names = {"accelerate", "matplotlib", "tensorboard"}
    names |= {"diffusers", "peft"} if "OTCA_LoadFlowModel" in kinds else set()
    names |= {"ftfy"} if "OTCA_RewardHPSv2" in kinds else set()
    everything = {Requirement(line).name for line in packages.needed(graph)[0]}
    installed = extras.installed
    monkeypatch.setattr(extras, "installed", lambda name: None if name in COMFYUI_LACKS else installed(name))
    lines = {Requirement(line).name: line for line in packages.needed(graph)[0]}
    assert lines.keys() == everything and {name for name, line in lines.items() if "==" not in line} == names
    assert lines["accelerate"] == "accelerate>=1.8" and lines["matplotlib"] == "matplotlib>=3.8"


def test_a_hostile_name_stays_a_name(places, small_graph, collected, bundled, bash, tmp_path):
    def printed(held, words):
        (tmp_path / "settings.sh").write_text(making.settings_text(held))
        answer = bash("-c", f'. ./settings.sh; printf "%s|" {words}', cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    for name in HOSTILE:
        held = collected(small_graph(), name)
        assert printed(held, '"$RUN_NAME"') == f"{name}|"
    held.hosts, held.comfyui = ["$(touch owned)"], Needs(("A",), (), ("a b", "x\ntouch owned"))
    packs_and_hosts = printed(held, '"${CUSTOM_NODES[@]}" "${ALLOW_HOSTS[@]}"')
    assert packs_and_hosts == "a b|x\ntouch owned|$(touch owned)|"
    folder = bundled(small_graph(), HOSTILE[0])
    assert not list(tmp_path.rglob("owned"))
    for script in ("run.sh", "train.sbatch", "Dockerfile", "sky.yaml"):
        same = (folder / script).read_bytes() == (making.SCRIPTS / script).read_bytes()
        assert same, f"{script}: no name of the user's is in it"


def test_what_is_there_is_left_alone_and_a_failure_leaves_nothing(places, small_graph, bundled, tmp_path, monkeypatch):
    (tmp_path / "bundle").mkdir()
    bundled(small_graph())  # an empty folder is taken
    before = (tmp_path / "bundle" / "manifest.json").read_bytes()
    with pytest.raises(ValueError, match="is not empty. Fix: choose another --output"):
        bundled(small_graph(), "other")
    assert (tmp_path / "bundle" / "manifest.json").read_bytes() == before
    (tmp_path / "a.zip").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("a.zip", "file", "link"):
        with pytest.raises(ValueError, match="Fix"):
            bundled(small_graph(), target=name)

    def full(*_):
        raise OSError("no space left on the disk")

    monkeypatch.setattr(making, "_fill", full)
    with pytest.raises(OSError, match="no space"):
        bundled(small_graph(), target="full")
    assert not (tmp_path / "full").exists() and not list(tmp_path.glob(".otca-bundle-*"))


def test_a_zip_unpacks_into_one_folder_to_the_same_files(places, small_graph, bundled, tmp_path):
    folder, packed = bundled(small_graph(), "mine"), bundled(small_graph(), "mine", target="mine.zip")
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
        assert all(name.startswith("mine/") and ".." not in name.split("/") for name in names)
        script = archive.getinfo("mine/run.sh")
        assert script.external_attr >> 16 & 0o111, "it can be executed"
        archive.extractall(tmp_path / "unpacked")
    unpacked = tmp_path / "unpacked" / "mine"
    for entry in manifest.read(folder).files:
        assert (unpacked / entry.path).read_bytes() == (folder / entry.path).read_bytes()
    assert (unpacked / "inputs").is_dir()


def test_names_that_lead_out(places, small_graph, collected, tmp_path):
    held = collected(small_graph())
    for name in ("../x", "/x", "a/../../x", "a//x", "C:x", "a\nb", "~/x", "..\\x"):
        assert not manifest.is_below(name)
        held.copied = {name: b""}
        with pytest.raises(ValueError, match="outside of the bundle"):
            making.make(held, tmp_path / "bundle")


def test_packages_are_those_that_are_installed_and_lines_of_the_readme_commands(places, small_graph, bundled):
    folder = bundled(small_graph(), "my run's")
    lines = (folder / "requirements.txt").read_text().splitlines()
    assert f"diffusers=={importlib.metadata.version('diffusers')}" in lines and "torch>=2.7" in lines
    assert f"av=={importlib.metadata.version('av')}" in lines
    constraints, text = (folder / "constraints.txt").read_text(), (folder / "README.md").read_text()
    assert f"multidict=={importlib.metadata.version('multidict')}\n" in constraints
    assert "torch==" not in constraints and "triton" not in constraints
    assert packages.version() in text
    (line,) = [line for line in text.splitlines() if "accelerate launch" in line and line.startswith("    ")]
    words = shlex.split(line)
    options = parser().parse_args(words[words.index("train") :])
    assert str(options.output) == "runs/$RUN_NAME" and "@" not in text
    subprocess.run(["bash", "-n"], input=line, text=True, check=True)


def test_own_pictures_are_listed_and_copied_only_if_a_person_agrees(
    places, small_graph, collected, tmp_path, monkeypatch
):
    """What was said of a picture that is gone goes along, and says nothing there."""
    monkeypatch.setenv("OTCA_OPINIONS", str(tmp_path))
    store, ids = Store(tmp_path / "opinions.sqlite"), []
    for number in range(10):
        pixels = np.full((8, 8, 3), 20 * number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"private {number}.png")
        ids.append(pixels_id(pixels))
        store.give([], [{"id": ids[-1], "prompt": "a cat", "path": str(tmp_path / f"private {number}.png")}])
    store.give(
        [{"kind": "pair", "picture": a, "other": b, "value": True} for a, b in zip(ids[::2], ids[1::2], strict=True)]
    )
    (tmp_path / "private 9.png").unlink()
    graph = small_graph(source="my_pictures.json")
    inputs_of(graph, "OTCA_MyPictures")["folder"] = ""
    held = collected(graph)
    assert inputs_of(held.graph, "OTCA_MyPictures")["folder"] == "my_pictures"
    copied = {f"inputs/my_pictures/{name}.png" for name in ids[:9]}
    assert set(held.copied) == {*copied, "inputs/my_pictures/opinions.jsonl"}
    assert str(tmp_path).encode() not in held.copied["inputs/my_pictures/opinions.jsonl"]
    with pytest.raises(ValueError, match=r"(?s)would contain 9 of your own pictures.*private 0\.png.*--with-pictures"):
        making.make(held, tmp_path / "bundle", with_hashes=False)
    assert not (tmp_path / "bundle").exists()
    making.make(held, tmp_path / "bundle", with_hashes=False, with_pictures=True)
    monkeypatch.setenv("OTCA_INPUT", str(tmp_path / "bundle" / "inputs"))
    monkeypatch.setenv("OTCA_OPINIONS", str(tmp_path / "elsewhere"))
    assert len(plan.plan(plan.read_source("my_pictures"), "pairs", 0.0).groups) == 4


def test_the_packs_own_opinions_need_no_agreement(places, small_graph, collected):
    held = collected(small_graph(source="my_pictures.json"))
    assert not held.pictures and inputs_of(held.graph, "OTCA_MyPictures")["folder"] == "shapes_pairs"
