"""What an update gets of pairs: latents of the pictures, points on a straight line, and advantages of 1 and -1."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from comfyui_otca.host import distributed
from comfyui_otca.trainer.credit.gains import rewards_along
from comfyui_otca.trainer.credit.steps import tcd
from comfyui_otca.trainer.opinions import learning
from comfyui_otca.trainer.opinions.latents import Kept, Latents
from comfyui_otca.trainer.opinions.plan import of_pairs, plan
from comfyui_otca.trainer.opinions.reading import PairError, read_folder
from comfyui_otca.trainer.rewards.base import RewardError
from comfyui_otca.trainer.rewards.pixels import Colorfulness
from comfyui_otca.trainer.types import SamplerSettings

pytestmark = pytest.mark.anywhere

INPUTS = {"width": 40, "height": 40, "levels": 4, "shift": 0.0, "guidance": 3.5}
SETTINGS = SamplerSettings.of_pairs(INPUTS)


HOW = {"form": "pairs", "count": 2, "index": 0, "shuffle": False, "seed": 3}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OTCA_OPINIONS", str(tmp_path / "opinions"))
    learning._latents.clear()


@pytest.fixture
def take(still_model):
    def of(folder, settings=SETTINGS, **options):
        return learning.take(
            plan(of_pairs(read_folder(str(folder))), "pairs", 0.0), still_model, settings, **HOW | options
        )

    return of


def pixels(folder, name):
    return torch.from_numpy(np.array(Image.open(folder / name).convert("RGB"))).float() / 255


def test_settings_are_those_of_a_deterministic_sampler_of_as_many_steps(still_model, small_settings):
    assert (SETTINGS.kind, SETTINGS.steps, SETTINGS.shared_noise, SETTINGS.transitions) == ("ode", 4, False, 4)
    assert still_model.sigmas(SETTINGS) == still_model.sigmas(small_settings())


def test_a_pair_is_a_group_of_two_with_the_chosen_one_first(take, folder_of, still_model):
    folder = folder_of()
    taken, advantages = take(folder)
    names = ["0a.png", "more/0b.png", "1a.png", "more/1b.png"]
    images = torch.stack([pixels(folder, name) for name in names])
    assert torch.equal(taken.images, images)
    torch.testing.assert_close(taken.final, still_model.encode(images), rtol=0, atol=1e-5)
    assert taken.groups.tolist() == [0, 0, 1, 1] and taken.prompts == ("a red circle", "a blue square")
    assert taken.texts == ["a red circle"] * 2 + ["a blue square"] * 2 and taken.positions == (0, 1)
    assert taken.trained == (0, 1, 2, 3) and taken.stds == (0.0,) * 4 and taken.log_probs.shape == (4, 0)
    assert taken.sigmas == still_model.sigmas(SETTINGS) and taken.policy_version == still_model.policy.version
    assert advantages.scores.values.tolist() == [[1.0], [0.0], [1.0], [0.0]] and advantages.scores.names == (
        "preference",
    )
    assert advantages.fused.advantage.tolist() == [1.0, -1.0, 1.0, -1.0] and advantages.valid.all()
    assert advantages.step_advantage.tolist() == [[1.0] * 4, [-1.0] * 4] * 2
    assert torch.equal(advantages.credit.weights, torch.ones(4, 4)) and advantages.per_objective.shape == (4, 1)
    assert advantages.scores.held_out.shape == (4, 0) and advantages.metrics["credit/step/3"] == 1.0


def test_points_lie_on_the_straight_line_from_one_noise_to_both_pictures(take, folder_of):
    taken, _ = take(folder_of())
    assert taken.latents.shape == (4, 5, *taken.final.shape[1:])
    noise = taken.latents[:, 0]
    assert torch.equal(noise[0], noise[1]) and torch.equal(noise[2], noise[3]) and not torch.equal(noise[1], noise[2])
    assert abs(noise.mean()) < 0.1 and abs(noise.std() - 1) < 0.1
    assert torch.equal(taken.latents[:, -1], taken.final)
    for j, sigma in enumerate(taken.sigmas):
        torch.testing.assert_close(taken.latents[:, j], (1 - sigma) * taken.final + sigma * noise)
    # so that credit by similarity is that of the line, whose cosine to its end rises towards 1
    similarity = tcd(taken.latents, taken.final, taken.trained).similarity
    assert (similarity.diff(dim=1) > 0).all() and torch.allclose(similarity[:, -1], torch.ones(4))


def test_which_pairs_and_which_noise_depend_on_the_index_and_the_seed_alone(take, folder_of):
    folder = folder_of()
    first, _ = take(folder, index=5)
    again, _ = take(folder, index=5)
    assert torch.equal(first.latents, again.latents) and first.positions == (10, 11)
    assert first.prompts == ("a blue square", "a green square"), "10 and 11 of three without end"
    later, _ = take(folder, index=8)  # 16 and 17, the same pairs
    assert later.prompts == first.prompts and torch.equal(later.final, first.final)
    assert not torch.equal(later.latents[:, 0], first.latents[:, 0])
    passes = [
        [take(folder, index=i, count=3, shuffle=True, seed=seed)[0].prompts for i in range(4)] for seed in (0, 0, 1)
    ]
    assert passes[0] == passes[1] != passes[2] and len(set(passes[0])) > 1
    assert all(len(set(prompts)) == 3 for prompts in passes[0]), "a pass has each pair once"


def test_a_file_is_encoded_once(take, folder_of, load_model, monkeypatch):
    model, folder, encoded = load_model(), folder_of(["a", "b"]), []
    (folder / "more" / "1b.png").write_bytes((folder / "0a.png").read_bytes())
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda images, size=0: encoded.append(len(images)) or encode(images, size))

    def again(width=40):
        settings = SamplerSettings.of_pairs({**INPUTS, "width": width})
        return learning.take(plan(of_pairs(read_folder(str(folder))), "pairs", 0.0), model, settings, **HOW)[0].final

    first = again()
    assert encoded == [1, 3], "one to know the autoencoder by, and four files, of which two have the same content"
    assert torch.equal(first[0], first[3])
    assert torch.equal(again(), first) and encoded == [1, 3]
    assert again(width=48).shape[-1] == first.shape[-1] * 48 // 40 and encoded == [1, 3, 1, 3]
    (folder / "0a.png").write_bytes((folder / "1a.png").read_bytes())
    assert torch.equal(again()[0], first[2]) and encoded == [1, 3, 1, 3], (
        "what is known by its content, whatever its name"
    )


def test_the_longest_unused_latents_leave_main_memory(still_model, monkeypatch):
    monkeypatch.setattr("comfyui_otca.trainer.opinions.latents.MOST_MEMORY", 3 * 16)  # three latents of four numbers
    held, encoded = Latents(still_model, (40, 40)), []
    monkeypatch.setattr(Kept, "read", lambda self, name: None)  # as a disk that is full

    def of(*names):
        def encode(rows):
            encoded.extend(names[row] for row in rows)
            return torch.tensor([[float(ord(names[row]))] * 4 for row in rows])

        return held.of(names, encode)[:, 0].tolist()

    assert of("a", "b", "a") == [97.0, 98.0, 97.0]
    of("c"), of("a"), of("d"), of("b")
    assert encoded == ["a", "b", "c", "d", "b"], "b was used longest ago"
    encoded.clear()
    assert of("a", "d", "b") == [97.0, 100.0, 98.0] and encoded == []
    assert of(*"pqrst") == [float(ord(name)) for name in "pqrst"], "an iteration that needs more has more"


def test_several_processes_take_their_rows_of_the_same_batch(take, folder_of, monkeypatch):
    folder = folder_of()
    whole, _ = take(folder)
    monkeypatch.setattr(learning, "share_of", lambda model, total: distributed.Share(range(1, 3), total))
    monkeypatch.setattr(learning.distributed, "whole", lambda value: value)
    part, advantages = take(folder)
    assert part.groups.tolist() == [0, 1] and part.prompts == whole.prompts
    torch.testing.assert_close(part.latents, whole.latents[1:3])
    assert advantages.scores.values.tolist() == [[0.0], [1.0]]


def test_what_is_refused(take, folder_of):
    folder = folder_of()
    with pytest.raises(ValueError, match="multiples of 8.*Fix: "):
        take(folder, SamplerSettings.of_pairs({**INPUTS, "width": 42}))
    with pytest.raises(RewardError, match="'colorfulness': pairs are learned from.*Fix: switch on held_out"):
        take(folder, rewards=[Colorfulness()])
    (folder / "more" / "1b.png").write_bytes(b"GIF89a")
    with pytest.raises(PairError, match=r"pairs\.jsonl, line 2: file 'more/1b.png' is not one of PNG.*Fix: "):
        take(folder)


def test_held_out_rewards_judge_evaluations_alone(take, folder_of, still_model):
    taken, advantages = take(folder_of(), rewards=[Colorfulness(held_out=True)])
    assert [reward.name for reward in advantages.scores.rewards] == ["colorfulness"]
    assert advantages.scores.held_out_names == (), "the folder's own pictures are not judged"
    with pytest.raises(RewardError, match="'preference' come from no reward.*Fix: "):
        rewards_along(still_model, taken, advantages.scores, range(5))


def test_a_stop_comes_between_two_pictures(take, folder_of):
    steps = iter([0, 0, 1])
    with pytest.raises(ZeroDivisionError):
        take(folder_of(), on_step=lambda: 1 / (1 - next(steps)))
    assert next(steps, None) is None


def test_metadata_go_with_the_prompt(take, folder_of):
    taken, _ = take(folder_of([{"prompt": "a sign", "text": "OPEN"}]), count=1)
    assert json.dumps(taken.prompts[0].metadata) == '{"text": "OPEN"}'
