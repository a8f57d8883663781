"""Pixel rewards against numbers worked out by hand, slow numpy versions, and PIL itself."""

from __future__ import annotations

import io
import math
import statistics

import numpy as np
import pytest
import torch
from PIL import Image

from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.rewards.base import score_with_gradient
from comfyui_otca.trainer.rewards.pixels import Colorfulness, JpegCompressibility, JpegIncompressibility, Sharpness

RED, BLUE = (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)


def picture(height: int, width: int, color=(0.0, 0.0, 0.0)) -> torch.Tensor:
    return torch.tensor(color).expand(1, height, width, 3).clone()


def noise(seed: int, batch: int = 1, height: int = 13, width: int = 9) -> torch.Tensor:
    """Random pictures on the grid of 8-bit values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, height, width, 3), generator=generator) / 255


def score(reward, images: torch.Tensor) -> list[float]:
    return reward().score(images, [""] * len(images)).tolist()


def slow_colorfulness(image: np.ndarray) -> float:
    rg, yb = [], []
    for red, green, blue in 255 * image.reshape(-1, 3).astype(np.float64):
        rg.append(red - green)
        yb.append(0.5 * (red + green) - blue)
    variances, means = map(statistics.pvariance, (rg, yb)), map(statistics.mean, (rg, yb))
    return math.sqrt(sum(variances)) + 0.3 * math.hypot(*means)


def slow_sharpness(image: np.ndarray) -> float:
    luma = 255 * (0.299 * image[..., 0] + 0.587 * image[..., 1] + 0.114 * image[..., 2]).astype(np.float64)
    values = []
    for y in range(1, luma.shape[0] - 1):
        for x in range(1, luma.shape[1] - 1):
            values.append(luma[y - 1, x] + luma[y + 1, x] + luma[y, x - 1] + luma[y, x + 1] - 4 * luma[y, x])
    return statistics.pvariance(values)


def jpeg_bytes(image: torch.Tensor) -> int:
    buffer = io.BytesIO()
    Image.fromarray(np.round(255 * image.numpy()).astype(np.uint8)).save(buffer, format="JPEG", quality=95)
    return len(buffer.getvalue())


HALF_RED_HALF_BLUE = torch.tensor([RED] * 3 + [BLUE] * 3).expand(1, 4, 6, 3)
GREY_RAMP = torch.linspace(0, 1, 64).reshape(1, 8, 8, 1).expand(1, 8, 8, 3)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        # rg is 255 and 0: mean and std 127.5. yb is 127.5 and -255: mean -63.75, std 191.25.
        # √(127.5² + 191.25²) + 0.3·√(127.5² + 63.75²) = 127.5·√3.25 + 0.3·63.75·√5 = 229.8539 + 42.7648
        (HALF_RED_HALF_BLUE, 272.6187),
        (picture(5, 5, RED), 85.5296),  # no spread; 0.3·√(255² + 127.5²) = 0.3·127.5·√5
        (picture(6, 6, (0.25,) * 3), 0),
        (picture(6, 6, (1.0,) * 3), 0),
        (GREY_RAMP, 0),
    ],
)
def test_colorfulness_by_hand(image, expected):
    assert score(Colorfulness, image) == pytest.approx([expected], abs=1e-3)


@pytest.mark.parametrize(("reward", "slow"), [(Colorfulness, slow_colorfulness), (Sharpness, slow_sharpness)])
def test_against_a_slow_version(reward, slow):
    images = noise(0, batch=3)
    assert score(reward, images) == pytest.approx([slow(image.numpy()) for image in images], rel=1e-4)


@pytest.mark.parametrize(("channel", "luma"), [(slice(None), 1), (0, 0.299), (1, 0.587), (2, 0.114)])
def test_sharpness_by_hand(channel, luma):
    # The Laplacian of white has two places: -4·255 on the pixel, 255 beside it; mean -382.5, both 637.5 from it.
    image, ramp = picture(3, 4), (torch.arange(8) / 8).reshape(1, 1, 8, 1).expand(1, 8, 8, 3)
    image[0, 1, 1, channel] = 1.0
    assert score(Sharpness, image) == pytest.approx([(637.5 * luma) ** 2], rel=1e-4)
    assert score(Sharpness, torch.cat([picture(8, 8, (0.3, 0.6, 0.9)), ramp])) == pytest.approx([0.0, 0.0], abs=1e-4)


def test_jpeg_size_is_what_pil_writes_in_kilobytes():
    images = torch.cat([noise(2, height=40, width=24), picture(40, 24, RED)])
    expected = [jpeg_bytes(image) / 1000 for image in images]
    assert expected[0] > expected[1]
    assert score(JpegIncompressibility, images) == pytest.approx(expected, rel=1e-6)
    assert score(JpegCompressibility, images) == pytest.approx([-size for size in expected], rel=1e-6)
    # 0.6/255 is nearer to 1 than to 0 and 1.4/255 nearer to 1 than to 2.
    levels = noise(3, height=32, width=32).clamp(1 / 255, 254 / 255)
    exact = score(JpegIncompressibility, levels)
    assert score(JpegIncompressibility, levels - 0.4 / 255) == score(JpegIncompressibility, levels + 0.4 / 255) == exact


def test_brightness_by_hand():
    assert score(reward_class("brightness"), picture(3, 5, (0.2, 0.4, 0.9))) == pytest.approx([0.5])
    assert score(reward_class("brightness"), HALF_RED_HALF_BLUE) == pytest.approx([1 / 3])


@pytest.mark.parametrize(
    "kind", ["brightness", "colorfulness", "sharpness", "jpeg_compressibility", "jpeg_incompressibility"]
)
def test_a_batch_scores_as_its_pictures_do_alone(kind):
    images = noise(4, batch=5, height=16, width=20)
    before, reward = images.clone(), reward_class(kind)(name="mine", coefficient=0.5, held_out=True)
    together = reward.score(images, list("abcde"))
    alone = torch.cat([reward.score(image[None], [""]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=0)
    assert together.shape == (5,) and together.dtype == torch.float32 and torch.equal(images, before)
    assert len(set(together.tolist())) == 5 or "jpeg" in kind
    assert (reward.name, reward.coefficient, reward.held_out) == ("mine", 0.5, True)


def test_sharpness_has_a_gradient_of_pictures_and_videos():
    video = noise(3, 2 * 3).unflatten(0, (2, 3)).requires_grad_()
    reward = Sharpness()
    scores = score_with_gradient(reward, video, ["", ""])
    frames = score(Sharpness, video.detach().flatten(0, 1))
    assert scores.tolist() == pytest.approx([statistics.mean(frames[:3]), statistics.mean(frames[3:])])
    scores[0].backward()
    assert video.grad[0].any() and not video.grad[1].any()
    reward.bounds = (0.0, 1.0)
    assert score_with_gradient(reward, video, ["", ""]).tolist() == [1.0, 1.0]
