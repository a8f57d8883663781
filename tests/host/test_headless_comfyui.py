"""ComfyUI imported from its folder without its server, here from a folder that has no more than its outline."""

from __future__ import annotations

import importlib
import logging
import os
import sys

import pytest

from comfyui_otca.host import comfyui, devices, headless_comfyui, paths
from comfyui_otca.tests.host.fake_comfyui import make


def test_its_classes_come_without_its_server(fake_comfyui, caplog):
    folder = fake_comfyui()
    arguments = list(sys.argv)
    loaded = headless_comfyui.load(folder, "cpu")
    assert {"UNETLoader", "PrimitiveInt"} <= loaded.classes.keys() and "Three" not in loaded.classes
    assert loaded.titles["UNETLoader"] == "Load Diffusion Model"
    assert comfyui.comfy_loaded() and "server" in sys.modules and not comfyui.in_comfyui()
    assert sys.argv == arguments and importlib.import_module("nodes").argv == ["main.py"], "our arguments are not its"
    assert importlib.import_module("comfy.model_management").cpu_at_import, "its options come before its other modules"
    assert "IMPORT FAILED" not in caplog.text
    logging.getLogger().warning("heard again")
    assert "heard again" in caplog.text
    assert headless_comfyui.load(folder).classes is loaded.classes, "once in a process"


def test_what_is_read_is_found_in_its_folders_and_what_is_written_stays_here(fake_comfyui, monkeypatch):
    monkeypatch.delenv(paths.RUNS, raising=False)
    folder = fake_comfyui()
    headless_comfyui.load(folder, "cpu")
    (folder / "models" / "loras").mkdir()
    (folder / "models" / "loras" / "mine.safetensors").touch()
    assert "mine.safetensors" in paths.list_weights("loras")
    assert folder / "input" in paths.input_folders()
    assert folder / "models" / "otca_rewards" in paths.model_folders()
    assert str(paths.runs_folder()) == "runs" and str(paths.lora_folder()) == "runs" and paths.list_runs() == []
    assert devices.default_device().type == "cpu"


def test_its_own_options_and_paths_are_taken(fake_comfyui, monkeypatch, tmp_path):
    monkeypatch.setenv(headless_comfyui.ARGUMENTS, f"--lowvram --output-directory '{tmp_path}/my output' --cpu")
    folder = fake_comfyui({"extra_model_paths.yaml": ""})
    headless_comfyui.load(folder)
    options = importlib.import_module("comfy.cli_args").args
    assert options.lowvram and options.cpu
    assert importlib.import_module("utils.extra_config").loaded == [str(folder / "extra_model_paths.yaml")]
    folders = importlib.import_module("folder_paths")
    assert folders.get_folder_paths("checkpoints")[-1] == f"{tmp_path}/my output/checkpoints", "what nodes have saved"


def test_options_that_it_does_not_know(fake_comfyui, monkeypatch):
    monkeypatch.setenv(headless_comfyui.ARGUMENTS, "--no-such-thing")
    with pytest.raises(ValueError, match="COMFYUI_ARGUMENTS = '--no-such-thing' is not what ComfyUI's main.* Fix:"):
        headless_comfyui.load(fake_comfyui())


@pytest.mark.parametrize(
    ("changes", "at", "message"),
    [
        ({}, "elsewhere", "elsewhere: that folder is missing. Fix: give the folder of ComfyUI"),
        ({}, "models", "holds no ComfyUI .no nodes.py beside a folder comfy.. Fix: give the folder"),
        ({}, "..", r"holds no ComfyUI .*Fix: --comfyui .*/ComfyUI$"),
        ({"comfyui_version.py": '__version__ = "0.3.63"\n'}, "", r"too old \(0.3.63\). Fix: update it to 0.3.64"),
        ({"comfyui_version.py": None}, "", r"too old \(of unknown version, older than 0.3\). Fix: update"),
    ],
)
def test_a_folder_that_is_not_it(fake_comfyui, changes, at, message):
    folder = fake_comfyui(changes)
    with pytest.raises(ValueError, match=message):
        headless_comfyui.load(folder / at)
    assert "nodes" not in sys.modules


BROKEN = {
    "import lacking_package": "lacking_package, which ComfyUI in {} needs: No module named 'lacking_package'. Fix: ",
    "from xml import lacking": "xml, which ComfyUI in {} needs: cannot import name 'lacking' from 'xml' ",
    "raise ImportError('libav.so.7: cannot open')": "a package, which ComfyUI in {} needs: libav.so.7: cannot open. Fix: ",
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("its_python", ["another", "this one", "not known"])
def test_a_package_that_cannot_be_imported(fake_comfyui, broken, its_python, monkeypatch):
    """It is named, with the reason; and nobody is sent to the Python that runs already."""
    imports = f"import comfy.model_management\n{broken}\n"
    python = None if its_python == "not known" else ""
    folder = fake_comfyui({"nodes.py": imports, ".venv/bin/python": python})
    if its_python == "this one":
        monkeypatch.setattr(sys, "prefix", str(folder / ".venv"))
    with pytest.raises(ValueError) as error:
        headless_comfyui.load(folder, "cpu")
    assert f"{sys.executable} cannot import {BROKEN[broken].format(folder)}" in str(error.value)
    other = (
        f"Fix: run otca by the Python that starts ComfyUI: {folder}/.venv/bin/python {headless_comfyui.PACK} train …"
    )
    here = f"Fix: {sys.executable} -m pip install -r {folder}/requirements.txt"
    ends = {"another": other, "this one": here, "not known": f"{here}, or run otca by the Python that starts ComfyUI"}
    assert str(error.value).endswith(ends[its_python])


def test_only_packs_that_are_named_are_loaded_and_no_second_comfyui(fake_comfyui, tmp_path):
    folder = fake_comfyui()
    assert "Three" in headless_comfyui.load(folder, "cpu", ["good"]).classes
    headless_comfyui.load(folder, "cpu", ["good"])
    with pytest.raises(ValueError, match="--custom-nodes other: that pack is missing in .*/custom_nodes. Fix:"):
        headless_comfyui.load(folder, "cpu", ["other"])
    with pytest.raises(ValueError, match="must be a plain name"):
        headless_comfyui.load(folder, "cpu", ["../custom_nodes/good"])
    with pytest.raises(ValueError, match="is loaded already"):
        headless_comfyui.load(make(tmp_path / "another"), "cpu")


def test_a_pack_that_needs_the_server_says_so(fake_comfyui):
    with pytest.raises(ValueError) as error:
        headless_comfyui.load(fake_comfyui(), "cpu", ["routes"])
    assert "--custom-nodes routes cannot be loaded" in str(error.value)
    assert "it asks for ComfyUI's server, which is not here. Fix:" in str(error.value)


def test_children_take_the_same_one(fake_comfyui, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    headless_comfyui.say_to_children("ComfyUI", ["good", "good"])
    assert os.environ["COMFYUI_PATH"] == str(tmp_path / "ComfyUI")
    assert headless_comfyui.named_packs() == ["good"]


@pytest.mark.parametrize(
    ("named", "environment", "chosen"),
    [
        ("cuda:2", {}, [2]),
        (None, {"WORLD_SIZE": "4", "LOCAL_RANK": "3"}, [3]),
        (None, {"WORLD_SIZE": "1", "LOCAL_RANK": "0"}, []),
        ("cpu", {"WORLD_SIZE": "4", "LOCAL_RANK": "3"}, []),
        ("cuda", {}, []),
        ("cuda", {"WORLD_SIZE": "4", "LOCAL_RANK": "3"}, [3]),
    ],
)
def test_each_process_has_its_own_accelerator(monkeypatch, named, environment, chosen):
    import torch

    set_to = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "set_device_index", set_to.append)
    for name in ("WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    headless_comfyui.choose_accelerator(named)
    assert set_to == chosen
