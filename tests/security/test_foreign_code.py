"""F3: a model's folder brings numbers and settings, and no code."""

from __future__ import annotations

import itertools
import json
import shutil
import sys

import pytest

from comfyui_otca.host import extras
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.families import folder
from comfyui_otca.trainer.flow import FOLDERS, FlowModelError, check_model_folder, load_flow_model

RAN = "raise RuntimeError('foreign code ran')\n"


@pytest.fixture
def hostile(tmp_path, flux_folder, monkeypatch):
    """hostile(component=source): a copy of the embedded model with another index, and modules that must not be imported."""
    for name in ("evil_module", "pipeline", "transformer"):
        (tmp_path / f"{name}.py").write_text(RAN)
    monkeypatch.syspath_prepend(tmp_path)

    def make(**changes):
        folder = tmp_path / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(flux_folder, folder)
        for place in (folder, folder / "transformer", folder / "vae"):
            (place / "evil_module.py").write_text(RAN)
        index = json.loads((folder / "model_index.json").read_text())
        (folder / "model_index.json").write_text(json.dumps(index | changes))
        return folder

    yield make
    assert "evil_module" not in sys.modules


SOURCES = [
    ["evil_module", "Net"],
    ["diffusers.models", "AutoModel"],
    ["diffusers_modules.local.evil", "Net"],
    ["os", "system"],
    ["diffusers", "utils.export"],
    ["diffusers", "__class__.x"],
    ["diffusers", 7],
    ["diffusers"],
    ["diffusers", "a", "b"],
    [["diffusers"], "a"],
]


def test_other_libraries_are_refused_before_anything_is_loaded(hostile):
    for component, source in itertools.product(["transformer", "vae", "tokenizer", "scheduler", "extra"], SOURCES):
        folder = hostile(**{component: source})
        for check in (check_model_folder, lambda path: load_flow_model(path, device="cpu")):
            with pytest.raises(FlowModelError, match=f"wants {component} to be .*Fix: "):
                check(folder)
        told = NODE_CLASS_MAPPINGS["OTCA_LoadFlowModel"].VALIDATE_INPUTS("shapes-flux", str(folder))
        assert told.startswith("path: ") and "only classes of diffusers and transformers" in told, (component, source)


NAMES = ("pipeline", "utils", "AutoencoderNoSuch", "is_torch_available", "__doc__")
NOT_SETTINGS = ([2, "evil_module"], ["evil_module", 2], [True, False], [[2], [5]])
WRONG = [("vae", ["diffusers", name]) for name in NAMES]  # not networks of theirs
WRONG += [("_class_name", family) for family in (["evil_module", "Pipeline"], {}, None, 7)]  # pipelines of its own
WRONG += [("layers", values) for values in NOT_SETTINGS]


def test_an_index_with_something_else_is_refused(hostile):
    for name, value in WRONG:
        with pytest.raises(FlowModelError, match=f"wants {name} to be .*Fix: "):
            load_flow_model(hostile(**{name: value}), device="cpu")
    for component in ("../../x", "a/b", "..", ""):
        with pytest.raises(FlowModelError, match="Fix: "):
            folder.read_index(hostile(**{component: ["diffusers", "AutoencoderKL"]}))
    for nothing in ([], [None, None]):  # FLUX's optional encoders and feature extractor are written so
        assert check_model_folder(hostile(feature_extractor=nothing)) == "FluxPipeline"
    # Krea 2's index lists layers of its encoder, Qwen-Image 2.1's noise levels.
    assert folder.read_index(hostile(layers=[2, 5.5]))["layers"] == (2, 5.5)


def test_an_index_that_is_none(tmp_path):
    for content in ("[" * 100_000, "[]", "7", "\udcff", '{"_class_name": '):
        (tmp_path / "model_index.json").write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(FlowModelError, match="cannot be read .*Fix: |_class_name to be "):
            check_model_folder(tmp_path)


def test_a_configuration_that_brings_code_is_not_asked_about(hostile, monkeypatch):
    """transformers would ask in a terminal whether to run it."""
    folder = hostile()
    config = folder / "text_encoder" / "config.json"
    config.write_text(
        json.dumps(
            json.loads(config.read_text())
            | {"auto_map": {"AutoModel": "evil_module.Net", "AutoConfig": "evil_module.C"}}
        )
    )
    shutil.copy(folder / "evil_module.py", folder / "text_encoder")
    monkeypatch.setattr("builtins.input", lambda *a: pytest.fail("nobody is asked"))
    load_flow_model(folder, device="cpu")  # by diffusers' and transformers' own classes
    index = json.loads((folder / "model_index.json").read_text())
    index["text_encoder"] = ["transformers", "AutoModel"]
    (folder / "model_index.json").write_text(json.dumps(index))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "evil"}))
    with pytest.raises(FlowModelError, match="Fix: "):
        load_flow_model(folder, device="cpu")


def test_an_encoder_that_brings_code(tmp_path, monkeypatch):
    from comfyui_otca.trainer.networks import features
    from comfyui_otca.trainer.rewards.base import RewardError

    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "evil", "auto_map": {"AutoModel": "evil.Net", "AutoConfig": "evil.C"}})
    )
    (tmp_path / "preprocessor_config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")
    (tmp_path / "evil.py").write_text(RAN)
    monkeypatch.setattr("builtins.input", lambda *a: pytest.fail("nobody is asked"))
    with pytest.raises(RewardError, match="cannot be loaded .*Fix: "):
        features.load(str(tmp_path))


def test_a_diffusers_that_runs_foreign_code_loads_nothing(monkeypatch, flux_folder):
    for version in ("0.38.0", "1.0", "0.37.1", "0.36.0.dev0"):
        monkeypatch.setattr(extras, "installed", lambda name, version=version: version if name == "diffusers" else "99")
        if not version.startswith("0.3") or version == "0.38.0":
            extras.check(FOLDERS, "diffusers")
            continue
        with pytest.raises(
            extras.MissingPackage, match=f"needs diffusers>=0.38 \\({version} is here.*raises diffusers from"
        ):
            load_flow_model(flux_folder, device="cpu")
