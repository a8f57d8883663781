"""`--check`: what is missing, of another size or another content is said, and a stranger's manifest reads nothing else."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from comfyui_otca.__main__ import main
from comfyui_otca.bundle import checking
from comfyui_otca.host import extras, paths
from comfyui_otca.host.files import Damaged
from comfyui_otca.tests.bundle.conftest import read_json


@pytest.fixture
def model(places):
    shutil.copytree(paths.ASSETS / "shapes-clip", places.models / "judge")
    return places.models / "judge"


@pytest.fixture
def bundle(places, model, small_graph, bundled):
    return bundled(small_graph({"OTCA_RewardClipT": {"model": "judge"}}))


def errors(folder, **options):
    return [finding.text for finding in checking.check(folder, **options) if finding.severity == "error"]


def test_a_whole_bundle_has_no_error(bundle, capsys):
    assert errors(bundle) == []
    assert main(["bundle", "--check", str(bundle)]) == 0
    printed = capsys.readouterr().out
    assert "model files are there (size and SHA-256)" in printed and "of the disk are free" in printed
    assert "time: unknown" in printed


def test_a_model_that_is_not_the_same(bundle, model):
    weights = model / "model.safetensors"
    content = weights.read_bytes()
    changes = {"SHA-256": bytes([content[0] ^ 1]) + content[1:], "should have": content + b"x", "is missing": None}
    for told, changed in changes.items():
        weights.unlink() if changed is None else weights.write_bytes(changed)
        (said,) = errors(bundle)
        assert told in said and str(weights) in said
        assert main(["bundle", "--check", str(bundle)]) == 1
        assert len(errors(bundle, with_hashes=False)) == (told != "SHA-256")


def test_models_may_lie_elsewhere_there(bundle, model, places, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OTCA_MODELS")
    assert "is missing" in errors(bundle)[0]
    assert main(["bundle", "--check", str(bundle), "--models", str(places.models)]) == 0
    shutil.copytree(model, bundle / "models" / "judge")
    assert errors(bundle) == []


def test_a_changed_file_of_the_bundle(bundle):
    script = bundle / "run.sh"
    script.write_text(script.read_text() + "\n")
    (said,) = errors(bundle)
    assert said.startswith("run.sh of the bundle has") and "copy the bundle again" in said
    script.unlink()
    script.symlink_to("/etc/hostname")
    assert "not a plain file" in errors(bundle)[0]


def test_packages_that_are_missing_or_of_another_version(bundle):
    content = read_json(bundle / "manifest.json")
    content["packages"] |= {"no-such-package": "1.0", "numpy": "0.1"}
    (bundle / "manifest.json").write_text(json.dumps(content))
    findings = checking.check(bundle)
    assert any("packages are missing: no-such-package" in one.text and one.severity == "error" for one in findings)
    assert any("instead of 0.1" in one.text and one.severity == "warning" for one in findings)


def test_what_joins_processes_is_asked_for_where_there_are_several(bundle, monkeypatch):
    installed = extras.installed
    monkeypatch.setattr(extras, "installed", lambda name: None if name == "accelerate" else installed(name))
    assert errors(bundle) == []
    (told,) = errors(bundle, processes=2)
    assert told.startswith("Training by 2 processes needs accelerate>=1.8 (none is here)") and "pip install" in told


def test_the_memory_of_the_gpus_is_compared_with_the_estimate(bundle, monkeypatch):
    content = read_json(bundle / "manifest.json")
    said = "memory: about 40.0 GB on each GPU, in update (an estimate by arithmetic)"
    content |= {"memory_bytes": 40 * 10**9, "estimate": [said]}
    (bundle / "manifest.json").write_text(json.dumps(content))
    cards = [SimpleNamespace(name=name, total_memory=size * 10**9) for name, size in (("Large", 80), ("Small", 24))]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    assert {one.text: one.severity for one in checking.check(bundle) if one.text.startswith(("GPU", "memory"))} == {
        "GPU 0: Large, 80.0 GB": "ok",
        "GPU 1: Small, 24.0 GB, less than the estimate": "warning",
        said: "ok",
    }


HOSTILE = [
    ("models", [{"path": "../../etc/passwd", "bytes": 1, "sha256": None, "where": "OTCA_MODELS"}]),
    ("models", [{"path": "x", "bytes": 1, "sha256": None, "where": "../vae"}]),
    ("files", [{"path": "/etc/passwd", "bytes": 1, "sha256": None, "where": ""}]),
    ("files", [{"path": "a", "bytes": -1, "sha256": None, "where": ""}]),
    ("files", [{"path": "a", "bytes": 1, "sha256": "x" * 64, "where": ""}]),
    ("files", {"a": 1}),
    ("format", 2),
    ("packages", {"a": 1}),
    ("memory_bytes", [1]),
]


def test_a_hostile_manifest_is_refused(bundle, tmp_path, capsys):
    content = read_json(bundle / "manifest.json")
    for field, value in HOSTILE:
        (bundle / "manifest.json").write_text(json.dumps(content | {field: value}))
        with pytest.raises(Damaged, match=f"is not a manifest: {field}.*make the bundle again"):
            checking.check(bundle)
    assert main(["bundle", "--check", str(tmp_path)]) == 2
    assert "it is not a bundle" in capsys.readouterr().err
