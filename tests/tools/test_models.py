"""The model of the scenes world is as docs say: it knows single objects, and is right in a third to a half of all."""

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from comfyui_otca.host.paths import ASSETS
from comfyui_otca.tools.models.__main__ import round_weights
from comfyui_otca.tools.models.worlds import WORLDS
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.rewards import scenes
from comfyui_otca.trainer.types import SamplerSettings


def test_scenes_flux_is_right_in_a_part_of_its_pictures():
    captions = [scene.caption for scene in WORLDS["scenes"].scenes]
    asked = captions[:12] + captions[12::8]  # all single objects, and some of the others
    how = SamplerSettings(kind="ode", steps=8, width=40, height=40, shift=0.0, guidance=3.5, batch_size=64)
    pictures = rollout.generate(
        load_flow_model(ASSETS / "scenes-flux", device="cpu"), asked, how, list(range(len(asked)))
    )
    right = np.array([scenes.judge(one, text) for one, text in zip(pictures.numpy(), asked, strict=True)])
    assert right[:12].mean() > 0.8
    assert 0.2 < right[12:].mean() < 0.6


def test_weights_are_rounded_row_by_row(tmp_path):
    """By hand: a row of root mean square 0.9 keeps multiples of 2 ** -4, one of 9 of a half; what is no matrix stays."""
    row = torch.tensor([1.0, -1.0, 0.97, -0.53])
    save_file({"matrix": torch.stack([row, 10 * row]).half(), "bias": row.half()}, tmp_path / "model.safetensors")
    round_weights(tmp_path)
    rounded = load_file(tmp_path / "model.safetensors")
    assert rounded["matrix"].tolist() == [[1, -1, 1, -0.5], [10, -10, 9.5, -5.5]]
    assert torch.equal(rounded["bias"], row.half()) and rounded["matrix"].dtype == torch.float16
