"""A learner against a voter whose utility is known, and its head's file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from comfyui_otca.trainer.networks import RewardError, features
from comfyui_otca.trainer.opinions.fit import Encoder
from comfyui_otca.trainer.opinions.learner import LEAST_VOTES, Accuracy, Learner
from comfyui_otca.trainer.rewards.taste import Head, Scaling

WIDTH = 8


@pytest.fixture
def learner():
    return Learner(Encoder("shapes-clip", "cpu"), Path())


def groups(count, seed=0, size=6):
    return list(np.random.default_rng(seed).standard_normal((count, size, WIDTH)))


def taught(learner, count=40):
    """Picks of a voter who likes the first feature."""
    for rows in groups(count):
        shown = learner.most_telling(rows, 3)
        best = max(shown, key=lambda number: rows[number, 0])
        learner.add(rows, [(best, other) for other in shown if other != best])
    return learner


def test_wilsons_interval():
    # Wilson (1927) for 8 of 10, as in every table of it: 0.490 to 0.943.
    found = Accuracy.of([1.0] * 8 + [0.0] * 2)
    assert (found.mean, found.votes) == (0.8, 10)
    assert (found.low, found.high) == pytest.approx((0.490, 0.943), abs=5e-4)
    assert np.isnan(Accuracy.of([]).mean)


def test_it_learns_what_the_voter_likes(learner):
    taught(learner)
    unseen = np.concatenate(groups(30, seed=1))
    ours, true = learner.head().scores(unseen), unseen[:, 0]
    first, second = np.triu_indices(len(unseen), 1)
    assert ((ours[first] > ours[second]) == (true[first] > true[second])).mean() > 0.85
    assert learner.accuracy.votes == 39 and learner.accuracy.low > 0.6
    clear, close = np.zeros((4, WIDTH)), np.zeros((4, WIDTH))
    clear[:, 0], close[:, 3] = [-30, -10, 10, 30], [-1, -0.5, 0.5, 1]
    assert learner.judgement(clear).sure and not learner.judgement(close).sure, "of pictures far apart alone"
    assert sorted(learner.most_telling(close, 2)) == [0, 3], "the two of which it knows least"
    # Its certainty is Φ(|mean| / deviation) of the difference of two pictures, by the error function.
    rows = groups(1, seed=2)[0][:2]
    scaling, utility = learner._fit().scaling, learner._fit().utility
    difference = scaling(rows)[0] - scaling(rows)[1]
    covariance = utility.basis @ utility.covariance @ utility.basis.T
    covariance += utility.strength * (np.eye(WIDTH) - utility.basis @ utility.basis.T)
    ratio = abs(difference @ learner.head().weights) / (difference @ covariance @ difference) ** 0.5
    assert learner.judgement(rows).certainty == pytest.approx((1 + math.erf(ratio / 2**0.5)) / 2)


def test_each_vote_is_predicted_before_it_is_learned(learner):
    rows = np.eye(2, WIDTH)
    learner.add(rows, [(0, 1)])
    assert learner.accuracy.votes == 0  # nothing was there to predict it by
    learner.add(rows, [(1, 0)])  # the contrary
    assert learner.accuracy.mean == 0
    learner.add(rows, [])  # alike: no choice
    assert learner.votes == 2


def test_it_is_sure_only_after_votes(learner):
    rows = groups(1, seed=2)[0]
    before = learner.judgement(rows)
    assert before.scores == [0] * 6 and not before.sure and before.certainty == pytest.approx(0.5)
    with pytest.raises(ValueError, match="nothing is learned before the first vote"):
        learner.head()
    for _ in range(LEAST_VOTES - 1):
        learner.add(100 * np.eye(2, WIDTH), [(0, 1)])
    assert not learner.judgement(np.eye(2, WIDTH)).sure, "by few votes of nothing"
    learner.forget()
    assert taught(learner, 60).judgement(rows).certainty > 0.75


# --- its file ---------------------------------------------------------------------------------------------------------


def test_pictures_of_a_group_are_one_apart_from_its_mean():
    made = [group + 100 * number for number, group in enumerate(groups(20))]
    made = [np.c_[group, np.full(len(group), 7.0)] for group in made]  # what never varies plays no part
    scaled = [Scaling.of(made)(group) for group in made]
    spread = np.concatenate([group - group.mean(0) for group in scaled])
    assert (spread**2).sum(1).mean() == pytest.approx(1) and not scaled[0][:, -1].any()


def test_a_saved_head_scores_the_same(learner, tmp_path, tiny):
    learned = taught(learner).head()
    learned.save(tmp_path / "taste.safetensors")
    loaded = Head.load(tmp_path / "taste.safetensors")
    rows = np.concatenate(groups(3, seed=3))
    assert loaded.scores(rows) == pytest.approx(learned.scores(rows), abs=1e-4)
    assert (loaded.encoder, loaded.about) == ("shapes-clip", {"votes": 40, "pairs": 80})
    loaded.check(features.find("shapes-clip"))
    with pytest.raises(RewardError, match=r"encoder 'shapes-clip' .*clip holds another one.*Fix: set encoder to"):
        loaded.check(tiny / "clip")


def test_a_head_of_an_earlier_version_scores_as_then(learner, tmp_path):
    """Its file had a covariance too, which no score needs."""
    rows, path = groups(1)[0], tmp_path / "taste.safetensors"
    tensors = {"centre": torch.ones(WIDTH), "scale": torch.full((WIDTH,), 2.0), "mean": torch.arange(WIDTH * 1.0)}
    more = {"basis": torch.eye(WIDTH)[:, :2].contiguous(), "covariance": torch.eye(2)}
    about = {"format": "otca-taste", "version": "1", "encoder": "x", "encoder_sha256": "y", "strength": "1.0"}
    save_file({**tensors, **more}, path, about)
    assert Head.load(path).scores(rows) == pytest.approx((rows - 1) / 2 @ np.arange(WIDTH))


def test_damaged_files_are_refused(learner, tmp_path):
    path = tmp_path / "taste.safetensors"
    taught(learner, 3).head().save(path)
    tensors, about = load_file(path), {"format": "otca-taste", "version": "1", "encoder": "x", "encoder_sha256": "y"}
    mean = tensors["mean"]
    for wrong, metadata, says in (
        ({}, {}, "its metadata have no format"),
        ({}, {**about, "version": "2"}, "of version 2, and this version reads 1"),
        ({"mean": torch.full_like(mean, torch.nan)}, about, r"'mean' of shape \(8,\) that is damaged"),
        ({"scale": tensors["scale"][:-1].clone()}, about, "'scale' of shape .* that is damaged"),
        ({"mean": torch.full_like(mean, torch.inf)}, about, "'mean' of shape .* that is damaged"),
        ({"mean": torch.tensor(1.0)}, about, "that is damaged"),
        ({"mean": mean.bfloat16()}, about, "cannot be read as a taste"),
        ({}, {**about, "votes": "many"}, "damaged metadata"),
        ({}, {**about, "votes": "[" * 200000}, "damaged metadata"),
        ({"centre": None}, about, "has no 'centre'"),
        (None, None, "cannot be read as a taste"),
    ):
        if wrong is None:
            path.write_bytes(b"no tensors")
        else:
            save_file({name: value for name, value in (tensors | wrong).items() if value is not None}, path, metadata)
        with pytest.raises(RewardError, match=says):
            Head.load(path)
