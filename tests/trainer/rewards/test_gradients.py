"""Every reward with a gradient: the same scores as without, and the slope of those scores."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from comfyui_otca.host import devices
from comfyui_otca.tests.documents import OF_ONE_FILE
from comfyui_otca.trainer.families.loading import DTYPES
from comfyui_otca.trainer.networks import RewardError, preprocess
from comfyui_otca.trainer.rewards import REWARDS, reward_class
from comfyui_otca.trainer.rewards.base import check_paths, score_with_gradient
from comfyui_otca.trainer.rewards.clip import Aesthetic, ClipT, PickScore
from comfyui_otca.trainer.rewards.hps import HPSv2
from comfyui_otca.trainer.rewards.image_reward import ImageReward
from comfyui_otca.trainer.rewards.pixels import Colorfulness, Sharpness
from comfyui_otca.trainer.rewards.taste import Head, Scaling, TasteReward, fingerprint
from comfyui_otca.trainer.rewards.variety import Variety

GROUPS = [0, 0, 0]


def clip_t(tiny, **use):
    return ClipT(model=str(tiny / "clip"), **use)


def trained_clip_t(tiny, **use):
    return ClipT(model="scenes-clip", **use)


def aesthetic(tiny, **use):
    return Aesthetic(path=str(tiny / "aesthetic.pth"), model=str(tiny / "clip"), **use)


def pickscore(tiny, **use):
    return PickScore(path=str(tiny / "pickscore"), processor=str(tiny / "clip"), **use)


def hpsv2(tiny, **use):
    return HPSv2(path=str(tiny / "hps.pt"), tokenizer=str(tiny / "clip"), **use)


def image_reward(tiny, **use):
    folder = tiny / "image_reward"
    files = {"path": "ImageReward.pt", "config": "med_config.json", "tokenizer": "bert-base-uncased"}
    return ImageReward(**{name: str(folder / file) for name, file in files.items()}, **use)


def my_taste(tiny, **use):
    """A head of random weights on two features in three; the others vary in no picture that was compared."""
    random = np.random.default_rng(0)
    width = 3 * 32  # means over the tokens of its two layers, and the pooled output
    scaling = Scaling(random.normal(size=width), np.where(np.arange(width) % 3, 3.0, np.inf))
    head = Head(scaling, random.normal(size=width), "clip", fingerprint(tiny / "clip"))
    return TasteReward("my_taste", head, str(tiny / "clip"), **use)


def variety(tiny, **use):
    return Variety(model=str(tiny / "clip"), **use)


NETWORKS = (clip_t, trained_clip_t, aesthetic, pickscore, hpsv2, image_reward, my_taste, variety)
Brightness = reward_class("brightness")
PIXELS = (Brightness, Colorfulness, Sharpness)
ALL = [*NETWORKS, *(lambda tiny, made=made: made() for made in PIXELS)]
NAMES = [*(made.__name__ for made in NETWORKS), *(made.__name__.lower() for made in PIXELS)]


def smooth(height, width):
    """[3, height, width, 3], off the grid of 8-bit values and away from black and white."""
    noise = torch.rand(3, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    large = torch.nn.functional.interpolate(noise, (height, width), mode="bilinear")
    return (0.15 + 0.7 * large).permute(0, 2, 3, 1).contiguous()


def grain(height, width):
    return torch.rand(3, height, width, 3, generator=torch.Generator().manual_seed(1))


def scores_of(judge, images, prompts):
    if isinstance(judge, Variety):
        return torch.tensor(judge.score_groups(images, prompts, GROUPS))
    return judge.score(images, prompts).float().cpu()


def test_which_have_a_gradient():
    with_gradient = {kind for kind in REWARDS if reward_class(kind).has_gradient()}
    assert with_gradient - {node.KIND for node in OF_ONE_FILE.values()} == {
        *("clip_t", "clip_direction", "aesthetic", "pickscore", "hpsv2", "image_reward", "my_taste", "variety"),
        *("kept", "changed"),
        "relative_words",  # of those that have one
        *("colorfulness", "sharpness"),
    }


@pytest.mark.anywhere
@pytest.mark.parametrize("made", ALL, ids=NAMES)
@pytest.mark.parametrize("size", [(40, 40), (32, 32), (57, 33), (64, 80), (17, 23)])
def test_both_paths_give_the_same_scores(tiny, prompts, made, size):
    """Of pictures larger and smaller than what the network takes (32 and 40), odd and not square, smooth and of pure grain."""
    judge = made(tiny)
    for images in (smooth(*size), grain(*size)):
        with torch.no_grad():
            expected = scores_of(judge, images, prompts)
        seen = images.clone().requires_grad_()
        scores = score_with_gradient(judge, seen, prompts, GROUPS)
        assert scores.dtype == torch.float32 and scores.shape == (3,)
        torch.testing.assert_close(scores.detach().cpu(), expected, atol=1e-5, rtol=1e-5)
        scores.sum().backward()
        assert seen.grad.isfinite().all() and (seen.grad.flatten(1).norm(dim=1) > 0).all()


@pytest.mark.anywhere
@pytest.mark.parametrize("made", NETWORKS)
def test_where_blocks_come_one_by_one_scores_and_gradients_are_the_same_to_the_bit(
    tiny, prompts, made, monkeypatch, device
):
    if device == "cpu":
        pytest.skip("where there is no accelerator nothing visits it")
    gc.collect()  # that of another test, which has begun already
    judge, results = made(tiny), []
    for free in (10**12, 1):
        monkeypatch.setattr(devices, "free_memory", lambda device, free=free: free)
        judge.network.wait()
        vars(judge.network).get("_texts", {}).clear()
        seen = grain(57, 33).requires_grad_()
        scores = score_with_gradient(judge, seen, prompts, GROUPS)
        scores.sum().backward()
        assert (judge.network.blocks_out is None) == (free > 1) and str(judge.network.device) == device
        results.append((scores_of(judge, grain(57, 33), prompts), scores.detach().cpu(), seen.grad))
    assert all(map(torch.equal, *results)) and results[0][2].abs().max() > 0


@pytest.mark.parametrize("made", ALL, ids=NAMES)
def test_the_gradient_by_finite_differences(tiny, prompts, made, monkeypatch):
    """In float64, and without the rounding to 8 bits, through which the gradient goes as if it were not there."""
    single = torch.Tensor.float
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else single(x))
    monkeypatch.setattr(preprocess, "_through", lambda values, rounded: values)
    monkeypatch.setitem(DTYPES, "float64", torch.float64)
    judge = made(tiny, dtype="float64", device="cpu") if made in NETWORKS else made(tiny)
    for owner in (judge, getattr(judge, "network", None)):
        if isinstance(head := getattr(owner, "head", None), torch.nn.Module):
            head.double()
    images = (smooth(37, 45) + 0.1 * grain(37, 45)).double().requires_grad_()

    def total(pictures):
        return score_with_gradient(judge, pictures, prompts, GROUPS).sum()

    (slope,) = torch.autograd.grad(total(images), images)
    assert slope.dtype == torch.float64
    step = 1e-4
    for pixel in ((0, 18, 22, 0), (1, 11, 30, 1), (2, 25, 9, 2), (2, 1, 20, 0)):
        moved = torch.zeros_like(images)
        moved[pixel] = step
        with torch.no_grad():
            expected = (total(images + moved) - total(images - moved)) / (2 * step)
        torch.testing.assert_close(slope[pixel], expected, rtol=1e-4, atol=1e-8)
        assert expected.abs() > 1e-7, "else nothing was compared"


def test_a_grey_picture_has_a_gradient_of_zero_where_colourfulness_has_no_slope():
    grey = torch.full((1, 6, 6, 3), 0.5, requires_grad=True)
    score = score_with_gradient(Colorfulness(), grey, [""])
    score.sum().backward()
    assert score.tolist() == [0.0] and grey.grad.abs().max() == 0


def test_a_network_whose_pictures_are_resized_by_another_filter_is_refused(tiny, images, prompts, monkeypatch):
    judge = clip_t(tiny)
    monkeypatch.setattr(judge.network.processor, "resample", 1)  # Lanczos
    with pytest.raises(RewardError, match="Pillow's filter 1, .* Fix: "):
        score_with_gradient(judge, images, prompts)
    monkeypatch.setattr(judge.network.processor, "resample", 2)
    check_paths(judge, smooth(57, 33), prompts)


# --- the two paths of a training's own pictures -------------------------------------------------------------------------


def test_paths_that_agree_are_let_through(tiny, prompts):
    for made in ALL:
        judge = made(tiny)
        check_paths(judge, smooth(57, 33), prompts, GROUPS)
        check_paths(judge, torch.stack([smooth(40, 40), grain(40, 40)], 1), prompts, GROUPS)
    check_paths(variety(tiny), smooth(40, 40), prompts, [0, 1, 1])


class Astray(Brightness):
    """Its path with a gradient gives what it is told to."""

    def __init__(self, apart, name="astray"):
        super().__init__(name)
        self.apart = apart

    def differentiable(self, images, prompts):
        return self.score(images, prompts) + torch.tensor(self.apart)


def test_a_reward_whose_paths_disagree_is_refused_with_both_numbers(tiny, prompts):
    pictures = torch.tensor([0.25, 0.5, 0.75]).view(3, 1, 1, 1).expand(3, 8, 8, 3)
    check_paths(Astray([0.0, 9e-4, -9e-4]), pictures, prompts)
    with pytest.raises(RewardError, match=r"'astray' gives sample 1 the score 0\.5, and 0\.51 .* by 0\.001\. Fix: "):
        check_paths(Astray([0.0, 0.01, 0.0]), pictures, prompts)
    with pytest.raises(RewardError, match="sample 2 the score 0.75, and nan"):
        check_paths(Astray([0.0, 0.0, float("nan")]), pictures, prompts)


def test_half_precision_has_a_tolerance_of_its_own(tiny, prompts):
    judge = clip_t(tiny, dtype="bfloat16")
    assert (judge.tolerance, clip_t(tiny).tolerance) == (2e-2, 1e-3)
    check_paths(judge, grain(57, 33), prompts)


@pytest.mark.parametrize("made", [aesthetic, pickscore, image_reward])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_comes_after_the_network_is_float32(made, dtype, tiny):
    """A head's weights, and the factor of a cosine, which in 16 bits would move all scores: docs/rewards.md has the rest."""
    judge, exact = made(tiny, dtype=dtype), made(tiny)
    assert judge.network.dtype == DTYPES[dtype]
    if made is pickscore:
        assert judge.scale == exact.scale
        return
    head, filed = ((one if made is aesthetic else one.network).head.state_dict() for one in (judge, exact))
    for name, weight in filed.items():
        assert torch.equal(head[name], weight) and weight.dtype == torch.float32
        assert weight.ndim < 2 or not torch.equal(weight, weight.to(DTYPES[dtype]).float())


def test_what_has_no_gradient_says_so(tiny, prompts):
    judge = reward_class("jpeg_compressibility")()
    with pytest.raises(RewardError, match="'compressibility' has no gradient"):
        score_with_gradient(judge, grain(8, 8), prompts)
    with pytest.raises(RewardError, match="'variety' compares the pictures of a group, and was told no groups"):
        score_with_gradient(variety(tiny), grain(8, 8), prompts)
