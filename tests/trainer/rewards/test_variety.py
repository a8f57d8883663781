"""Variety: distances within groups, against CLIP's features compared pair by pair; in evaluations too."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from comfyui_otca.host import distributed
from comfyui_otca.study.compare import pairwise_distance
from comfyui_otca.tests.processes import together
from comfyui_otca.trainer.families.base import Forwards
from comfyui_otca.trainer.rewards.base import RewardError, refuse_groups_only, score_stack, score_with_gradient
from comfyui_otca.trainer.rewards.clip import ClipT
from comfyui_otca.trainer.rewards.pixels import Colorfulness
from comfyui_otca.trainer.rewards.variety import Variety
from comfyui_otca.trainer.run import evaluation
from comfyui_otca.trainer.types import Prompt, RunSettings, SamplerSettings

GROUPS = [0, 1, 0, 2, 0, 1]


@pytest.fixture
def grain():
    return torch.rand(6, 40, 48, 3, generator=torch.Generator().manual_seed(0))


def by_pairs(points, groups):
    """[B] by definition; None for a point that is alone."""
    distances = []
    for own, group in enumerate(groups):
        others = [other for other, its in enumerate(groups) if its == group and other != own]
        apart = [1 - torch.cosine_similarity(points[own], points[other], dim=0).item() for other in others]
        distances.append(sum(apart) / len(apart) if apart else None)
    return distances


def test_scores_are_mean_distances_to_the_others_of_the_group(tiny, grain):
    judge = Variety(model=str(tiny / "clip"))
    scores = judge.score_groups(grain, [""] * 6, GROUPS)
    with torch.no_grad():
        expected = by_pairs(judge.network.pictures(grain), GROUPS)
    assert scores[3] is None and expected[3] is None
    pairs = [pair for pair in zip(scores, expected, strict=True) if None not in pair]
    assert len(pairs) == 5 and all(own == pytest.approx(other, abs=1e-5) and own > 1e-3 for own, other in pairs)


def test_its_mean_is_the_diversity_of_otca_compare(tiny, grain):
    judge = Variety(model=str(tiny / "clip"))
    scores = judge.score_groups(grain, [""] * 6, [0, 0, 0, 1, 1, 1])
    points = judge.network.pictures(grain).reshape(2, 3, -1)
    assert sum(scores) / 6 == pytest.approx(pairwise_distance(points), abs=1e-6)


@pytest.mark.parametrize("size", [0, 4])
def test_a_stack_knows_the_diversity_of_pictures_that_a_reward_has_encoded(tiny, grain, monkeypatch, size):
    """By the points that CLIP-T has computed: none is computed for it."""
    first, judge = ClipT(model=str(tiny / "clip")), Variety(model=str(tiny / "clip"))
    own = [math.nan if score is None else score for score in judge.score_groups(grain, [""] * 6, GROUPS)]
    encode, pictures = judge.network.pictures, []
    monkeypatch.setattr(judge.network, "pictures", lambda images: pictures.append(len(images)) or encode(images))
    scores = score_stack([first], grain.clone(), ["a", "b", "c"], torch.tensor(GROUPS), batch_size=size)
    assert scores.distance is not None and scores.distance.tolist() == pytest.approx(own, abs=1e-6, nan_ok=True)
    assert sum(pictures) == 6
    unknown = score_stack([Colorfulness()], grain, ["a", "b", "c"], torch.tensor(GROUPS)).distance
    assert unknown is not None and len(unknown) == 6 and unknown.isnan().all(), (
        "never None, which processes could not gather"
    )


def test_of_two_encoders_the_first_is_asked_and_where_it_has_not_seen_all_nothing_is_known(tiny, grain):
    """Seen before: parts of one batch with points of two encoders, which fit nowhere together."""
    first, second = ClipT("a", model=str(tiny / "clip")), ClipT("b")
    prompts = [Prompt("x", {"judged_by": ["a"]}), Prompt("y", {"judged_by": ["b"]})]
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    scores = score_stack([first, second], grain, prompts, groups, batch_size=3)
    assert scores.distance is not None and scores.distance.isnan().all() and scores.usable.all()


def _share_that_one_process_has_seen():
    own, pictures = distributed.rows(4), torch.rand(4, 40, 40, 3, generator=torch.Generator().manual_seed(0))
    prompts = ["x", Prompt("y", {"judged_by": ["colorfulness"]})]
    scores = score_stack([ClipT(), Colorfulness()], pictures[own], prompts, torch.tensor([0, 0, 1, 1])[own])
    return distributed.whole(scores).distance.isnan().tolist()


def test_processes_gather_it_also_where_only_one_knows_it():
    """Seen before: a training of several processes ended there."""
    assert together(2, _share_that_one_process_has_seen) == [[False, False, True, True]] * 2


def test_of_videos_it_is_by_the_frames_that_the_reward_has_seen(tiny, grain):
    first, judge = ClipT(model=str(tiny / "clip")), Variety(model=str(tiny / "clip"))
    videos, groups = grain.reshape(3, 2, *grain.shape[1:]), torch.zeros(3).long()
    distance = score_stack([first], videos, ["a"], groups).distance
    assert distance is not None and distance.tolist() == pytest.approx(judge.score_groups(videos, [""] * 3, [0] * 3))


def test_of_videos_frames_of_the_same_time_are_compared(tiny, grain):
    judge = Variety(model=str(tiny / "clip"))
    videos = grain.reshape(3, 2, *grain.shape[1:])
    first, second = (judge.score_groups(videos[:, frame].clone(), [""] * 3, [0, 0, 0]) for frame in (0, 1))
    expected = [sum(pair) / 2 for pair in zip(first, second, strict=True)]
    assert judge.score_groups(videos, [""] * 3, [0, 0, 0]) == pytest.approx(expected, abs=1e-5)
    followed = score_with_gradient(judge, videos, [""] * 3, [0, 0, 0])
    assert followed.tolist() == pytest.approx(expected, abs=1e-5)


def test_its_gradient_goes_through_the_whole_group_and_leaves_one_alone_as_it_is(tiny, grain):
    judge, seen = Variety(model=str(tiny / "clip"), batch_size=4), grain.clone().requires_grad_()
    scores = score_with_gradient(judge, seen, [""] * 6, GROUPS)
    assert scores[3] == 0
    scores[0].backward()
    moved = (seen.grad.flatten(1).norm(dim=1) > 1e-9).tolist()
    assert moved == [group == 0 for group in GROUPS]


def test_in_a_stack_it_shares_the_network_of_clip_t(tiny, grain):
    stack = [ClipT(model=str(tiny / "clip")), Variety(model=str(tiny / "clip"))]
    assert stack[0].network is stack[1].network
    scores = score_stack(stack, grain, ["a", "b", "c"], torch.tensor(GROUPS))
    assert scores.names == ("clip_t", "variety")
    assert scores.values[:, 1].isfinite().tolist() == [True, True, True, False, True, True]


def test_what_asks_about_pictures_without_groups_refuses_it(tiny):
    with pytest.raises(RewardError, match="the credit learned asks every reward.*'variety' may not.*Fix: "):
        refuse_groups_only([Variety(model=str(tiny / "clip"))], "the credit learned")


def evaluated(seeds):
    """The values of an evaluation of two prompts, whose pictures follow from their seeds and prompts."""

    def pictures(model, texts, settings, chosen, on_step):
        numbers = [1000 * seed + len(text) for text, seed in zip(texts, chosen, strict=True)]
        made = [torch.rand(40, 40, 3, generator=torch.Generator().manual_seed(number)) for number in numbers]
        return torch.stack(made)

    evaluation.rollout.generate, generate = pictures, evaluation.rollout.generate
    try:
        rewards = (Variety(held_out=True, device="cpu"), ClipT(model="shapes-clip", device="cpu"))
        report = SimpleNamespace(
            trajectories=SimpleNamespace(settings=SamplerSettings()),
            advantages=SimpleNamespace(scores=SimpleNamespace(rewards=rewards)),
        )
        model = SimpleNamespace(forwards=Forwards())
        row, images, _ = evaluation.evaluate(
            model, report, 3, ["one", "other"], RunSettings(evaluation_seeds=seeds), lambda calls: lambda: None
        )
    finally:
        evaluation.rollout.generate = generate
    return row["rewards"], images


def test_an_evaluation_compares_the_seeds_of_a_prompt():
    rewards, images = evaluated(3)
    points = ClipT(model="shapes-clip", device="cpu").network.pictures(images)
    expected = by_pairs(points, [0, 1] * 3)
    assert rewards["variety"]["values"] == pytest.approx(expected, abs=1e-5) and rewards["variety"]["held_out"]
    assert [*rewards] == ["variety", "clip_t"] and len(rewards["clip_t"]["values"]) == 6


def test_an_evaluation_of_one_seed_has_none():
    rewards, _ = evaluated(1)
    assert all(value != value for value in rewards["variety"]["values"])


def test_several_processes_evaluate_the_same():
    alone = evaluated(3)[0]
    for rewards, _ in together(2, lambda: evaluated(3)):
        for name, figures in alone.items():
            assert rewards[name]["values"] == pytest.approx(figures["values"], abs=1e-5) and len(alone) == 2
