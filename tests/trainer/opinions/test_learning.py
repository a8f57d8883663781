"""Opinions as trajectories and advantages; latents on disk; and the agreement with held-out opinions."""

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from comfyui_otca.host.paths import ASSETS
from comfyui_otca.trainer import matching
from comfyui_otca.trainer.opinions import latents, learning
from comfyui_otca.trainer.opinions.identity import read_picture
from comfyui_otca.trainer.opinions.plan import Group, Item, Plan, Source
from comfyui_otca.trainer.types import MatchingSettings, SamplerSettings

SETTINGS = SamplerSettings(
    kind="ode", eta=0.0, steps=4, width=40, height=40, shift=0.0, guidance=3.5, shared_noise=False
)
TOP = ({"like": True, "box": [0, 0, 1, 0.5]},)


@pytest.fixture
def model(load_model):
    return load_model(ASSETS / "shapes-flux")


@pytest.fixture
def planned(gallery):
    """Three pairs, one of them with a region, and one that is held out."""
    random = np.random.default_rng(0)
    prompts = ("a red circle", "a blue square", "a green square", "a red square")
    of_each = [prompt for prompt in prompts for _ in range(2)]
    ids = gallery(8, of_each, lambda number: random.integers(0, 256, (40, 40, 3), np.uint8))
    groups = [
        Group(prompt, (Item(better, 1.0, TOP if prompt == "a blue square" else ()), Item(worse, -1.0)))
        for prompt, better, worse in zip(prompts, ids[::2], ids[1::2], strict=True)
    ]
    source = Source("test", (), gallery.store.pictures(), read_picture)
    return Plan(source, tuple(groups[:3]), tuple(groups[3:]))


HOW = {"form": "pairs", "count": 3, "index": 1, "shuffle": False, "seed": 5}


def test_pairs_become_groups_of_two_with_the_places_of_their_regions(model, planned):
    trajectories, advantages = learning.take(planned, model, SETTINGS, **HOW)
    assert trajectories.groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert advantages.fused.advantage.tolist() == [1, -1, 1, -1, 1, -1]
    grid = trajectories.final.shape[2:]
    spatial = advantages.credit.spatial
    assert spatial.shape == (6, *grid)
    assert (spatial[[0, 1, 3, 4, 5]] == 1).all() and spatial[2].mean().item() == pytest.approx(1, abs=1e-5)
    assert spatial[2, : grid[0] // 2].mean().item() == pytest.approx(2, abs=0.1) and spatial[2, -1].max() == 0


def test_pictures_become_groups_of_one_with_their_values(model, planned):
    items = [Item(item.picture, value) for item, value in zip(planned.groups[0].items, (0.5, -1.0), strict=True)]
    alone = replace(planned, groups=tuple(Group("a red circle", (item,)) for item in items))
    trajectories, advantages = learning.take(alone, model, SETTINGS, **HOW | {"form": "pictures", "count": 1})
    assert trajectories.groups.tolist() == [0, 1] and advantages.fused.advantage.tolist() == [0.5, -1.0]
    assert advantages.credit.spatial is None
    noise = trajectories.latents[:, 0]
    assert not torch.equal(noise[0], noise[1])  # each has its own


def test_each_picture_is_encoded_once_for_all_processes_and_what_is_damaged_is_made_again(model, planned, monkeypatch):
    encoded = []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda images, size=0: (encoded.append(len(images)), encode(images, size))[1])
    first, _ = learning.take(planned, model, SETTINGS, **HOW)
    learning.take(planned, model, SETTINGS, **HOW | {"index": 2})
    assert encoded == [1, 6]  # the picture by which the autoencoder is known, and ours
    learning._latents.clear()  # as another process
    again, _ = learning.take(planned, model, SETTINGS, **HOW)
    assert encoded == [1, 6, 1] and torch.equal(again.final, first.final)
    (folder,) = latents.paths.opinions_cache("latents").iterdir()
    files = sorted(folder.iterdir())
    assert len(files) == 6
    first_picture = planned.source.read(planned.source.pictures[planned.groups[0].items[0].picture])
    digest = hashlib.sha256(first_picture).hexdigest()
    torch.testing.assert_close(load_file(folder / f"{digest}.safetensors")["latent"], first.final[0])
    files[0].write_bytes(files[0].read_bytes()[:50])
    learning._latents.clear()
    learning.take(planned, model, SETTINGS, **HOW)
    assert encoded == [1, 6, 1, 1, 1]


def test_where_no_folder_is_named_latents_are_in_the_gallery_s_and_not_in_whatever_folder_one_stands(
    model, planned, tmp_path, monkeypatch
):
    monkeypatch.delenv("OTCA_OPINIONS")
    (standing := tmp_path / "standing").mkdir()
    monkeypatch.chdir(standing)
    learning._latents.clear()
    learning.take(planned, model, SETTINGS, **HOW)
    assert [path.name for path in standing.iterdir()] == ["otca_gallery"]
    assert len(list((standing / "otca_gallery" / "latents").glob("*/*"))) == 6


def test_nobody_agrees_more_than_by_chance_before_training_and_it_rises_with_it(model, planned):
    """The held-out pair is trained on here, which shows that the measure moves as it should."""
    before = learning.agreement(model, planned, SETTINGS, 0)
    assert before == {"opinions/agreement": 0.5, "opinions/held_out": 1.0}  # one prompt alone has no error
    told = replace(planned, groups=planned.held_out)
    for index in range(6):
        taken = learning.take(told, model, SETTINGS, **HOW | {"index": index, "count": 1})
        matching.update(
            model, *taken, MatchingSettings(3e-3, loss="dpo", old_policy="on_policy", sampled_steps=0, keep_winner=0.5)
        )
    assert learning.agreement(model, planned, SETTINGS, 0)["opinions/agreement"] == 1.0


def test_agreement_is_measured_every_ten_iterations(model, planned):
    measured = [
        "opinions/agreement" in learning.take(planned, model, SETTINGS, **HOW | {"index": index})[1].metrics
        for index in (0, 1, 10)
    ]
    assert measured == [True, False, True]
    assert math.isfinite(
        learning.agreement(model, replace(planned, held_out=planned.groups), SETTINGS, 0)["opinions/agreement"]
    )
