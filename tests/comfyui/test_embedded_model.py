"""The node Embedded Model in a real ComfyUI: stock nodes on it give the numbers and the picture of the diffusers route."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from comfyui_otca.tests.comfyui.conftest import need_diffusers
from comfyui_otca.tests.comfyui.server import ComfyUI


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("embedded")


@pytest.fixture(scope="module")
def report(installation, folder):
    """What embedded_in_comfyui.py found in ComfyUI's own interpreter."""
    need_diffusers(installation)
    done = subprocess.run(
        [installation.python, Path(__file__).with_name("embedded_in_comfyui.py"), folder],
        cwd=installation.folder,
        env=ComfyUI.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_they_are_comfyuis_own_objects(report):
    assert report["classes"][:3] == ["ModelPatcher", "CLIP", "VAE"]
    assert report["classes"][3] == report["classes"][6] == "Flux"
    assert report["inference tensors"] == 0, "made outside of the inference mode that nodes run in"


def test_embeddings_are_those_of_the_diffusers_route(report):
    found = report["embeddings"]
    assert max(found["tokens"] + found["pooled"]) <= 1e-6 and len(found["tokens"]) == 4
    assert found["CLIPTextEncodeFlux"] == found["clone"] == 0 and found["guidance"] == 2


def test_velocities_are_those_of_the_diffusers_route(report):
    assert max(report["velocities"]) <= 1e-5 and len(report["velocities"]) == 16


def test_noise_levels_are_those_that_the_scheduler_asks_for(report):
    assert report["noise levels"] <= 1e-6


def test_the_autoencoder_is_the_diffusers_routes(report):
    assert max(report["autoencoder"].values()) <= 3e-6


def test_a_stock_ksampler_makes_our_picture(report, folder):
    assert max(report["pictures"].values()) <= 1e-4
    picture = np.asarray(Image.open(folder / "ksampler.png")).astype(int)
    assert picture.shape == (40, 40, 3)
    red, blue = picture[18:22, 14:18].mean((0, 1)), picture[:4, :4].mean((0, 1))
    assert red.argmax() == 0 and blue.argmax() == 2, "a red circle on a blue background"


def test_an_empty_latent_is_of_the_right_size_where_comfyui_can_tell(report, installation):
    old = installation.version.startswith("0.3.")
    assert report["empty latents"] == ([20, 20] if old else [40, 40])


def test_an_adapter_goes_on_by_the_stock_loader(report):
    found = report["adapter"]
    assert found["patches"] == found["modules"] == 2 * 12 + 4 * 5 + 1 and found["patches of clip"] == 0
    assert found["change"] > 0.1 and found["with"] <= 1e-5 and found["without"] == 0
