"""Optional packages: what is said where one is missing or too old, and that nothing imports one before it is used."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from comfyui_otca.host import extras


@pytest.fixture
def here(monkeypatch):
    """here(package=version, …): what is installed, and nothing else."""
    return lambda **versions: monkeypatch.setattr(extras, "installed", versions.get)


def command_in(message: str) -> list[str]:
    """The packages that the message's command installs, as a shell reads it."""
    words = shlex.split(message.partition("Fix: ")[2].partition(", and start again")[0])
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    return words[4:]


def test_what_is_missing_is_named_and_what_is_here_stays(here):
    here(transformers="4.50.3", peft="0.19.0")
    told = str(extras.wrong("Load Flow Model", "diffusers"))
    assert told.startswith("Load Flow Model needs diffusers>=0.38 (none is here), accelerate>=1.8 (none is here).")
    assert command_in(told) == ["diffusers>=0.38", "accelerate>=1.8", "peft==0.19.0", "transformers==4.50.3"]
    assert "It keeps what is here" in told
    with pytest.raises(extras.MissingPackage, match="Load Flow Model needs "):
        extras.check("Load Flow Model", "diffusers")


def test_what_is_too_old_is_named_with_what_is_needed_and_what_raising_it_means(here):
    here(transformers="4.50.3", ftfy="6.3")
    told = str(extras.wrong("Reward: VideoAlign", "rewards", "transformers"))
    assert told.startswith("Reward: VideoAlign needs transformers>=5.5 (4.50.3 is here). All else goes on working.")
    assert "raises transformers from 4.50.3 to >=5.5, which other packs may not take" in told
    assert command_in(told) == ["transformers>=5.5"]
    assert extras.wrong("Reward: HPSv2.1", "rewards", "ftfy") is None


@pytest.mark.parametrize("version", ["5.5", "5.5.1", "5.23.0+local", "6.0.0.dev0"])
def test_what_is_new_enough_is_not_asked_for(here, version):
    here(transformers=version)
    assert extras.wrong("Reward: VideoAlign", "rewards", "transformers") is None
    extras.check("Reward: VideoAlign", "rewards", "transformers")


def test_a_python_in_a_folder_with_spaces_is_one_word(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/opt/my comfy/python")
    assert shlex.split(extras.command("wandb")) == ["/opt/my comfy/python", "-m", "pip", "install", "wandb"]


BLOCKED = "diffusers peft accelerate matplotlib tensorboard ftfy bitsandbytes rapidocr onnxruntime wandb imageio"
SCRIPT = f"""
import importlib, pathlib, sys
import transformers  # which looks for some of them itself

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED.split()}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
import comfyui_otca

root = pathlib.Path(comfyui_otca.__file__).parent
for room in ("host", "trainer", "nodes", "canvas", "inference", "page", "bundle", "commands", "study"):
    for file in sorted((root / room).rglob("*.py")):
        if file != root / "trainer" / "native" / "embedded.py":  # which is imported within ComfyUI alone
            importlib.import_module(".".join(("comfyui_otca", *file.relative_to(root).with_suffix("").parts)))
for node in comfyui_otca.NODE_CLASS_MAPPINGS.values():
    node.INPUT_TYPES()
print(len(comfyui_otca.NODE_CLASS_MAPPINGS))
"""


def test_every_module_and_node_is_imported_without_any_of_them():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 40
