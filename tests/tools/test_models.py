"""The model of the scenes world is as docs say: it knows single objects, and is right in a third to a half of all."""

import numpy as np

from comfyui_otca.host.paths import ASSETS
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.rewards import scenes
from comfyui_otca.trainer.types import SamplerSettings


def test_scenes_flux_is_right_in_a_part_of_its_pictures():
    captions = [scene.caption for scene in scenes.scenes()]
    asked = captions[:12] + captions[12::8]  # all single objects, and some of the others
    how = SamplerSettings(kind="ode", steps=8, width=40, height=40, shift=0.0, guidance=3.5, batch_size=64)
    pictures = rollout.generate(
        load_flow_model(ASSETS / "scenes-flux", device="cpu"), asked, how, list(range(len(asked)))
    )
    right = np.array([scenes.judge(one, text) for one, text in zip(pictures.numpy(), asked, strict=True)])
    assert right[:12].mean() > 0.8
    assert 0.2 < right[12:].mean() < 0.6
