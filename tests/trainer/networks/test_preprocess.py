"""What the judges see, against pixels laid out by hand and against Pillow in floating point."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.tests.tiny import reference_rewards
from comfyui_otca.trainer.networks import preprocess, published

MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)


def seen(pixels):
    """[B, 3, H, W] from 0 to 255, as it was before normalising."""
    return (pixels * STD + MEAN) * 255


def columns(height, width):
    """A picture whose red is the number of its column."""
    picture = torch.zeros(1, height, width, 3)
    picture[..., 0] = torch.arange(width) / 255
    return picture


@pytest.mark.parametrize(
    ("height", "width", "rows", "across"),
    [
        (40, 56, (4, 27), (0, 32)),  # 40 · 32 / 56 = 22.9, so 23 rows; 9 are left over, the smaller half above
        (56, 40, (0, 32), (4, 27)),
        (33, 57, (6, 25), (0, 32)),
        (32, 16, (0, 32), (8, 24)),
        (32, 31, (0, 32), (0, 31)),
        (20, 20, (0, 32), (0, 32)),
        (7, 224, (15, 16), (0, 32)),
    ],
)
def test_the_letterbox_of_a_white_picture(height, width, rows, across):
    inside = torch.zeros(32, 32)
    inside[slice(*rows), slice(*across)] = 255
    boxed = seen(preprocess.letterbox(torch.ones(2, height, width, 3), 32))
    assert boxed.shape == (2, 3, 32, 32)
    torch.testing.assert_close(boxed, inside.expand(2, 3, 32, 32), atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", ["letterbox", "centre_crop"])
@pytest.mark.parametrize("shape", [(40, 56), (57, 33), (32, 32), (20, 31), (100, 300)])
def test_resizing_is_pillows_bicubic(name, shape):
    images = torch.rand(2, *shape, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([getattr(reference_rewards, name)(picture, 32) for picture in preprocess.pil(images)])
    torch.testing.assert_close(getattr(preprocess, name)(images, 32), expected, atol=2e-5, rtol=0)


def test_the_filters_overshoot_stays():
    edge = torch.zeros(1, 64, 64, 3)
    edge[:, :, 32:] = 1
    boxed = seen(preprocess.letterbox(edge, 48))
    assert boxed.min() < -1 and boxed.max() > 256


@pytest.mark.parametrize(
    ("height", "width", "first"),
    [(32, 32, 0), (32, 33, 0), (32, 34, 1), (32, 35, 2), (32, 37, 2), (32, 39, 4), (32, 100, 34)],
)
def test_the_centre_crop_takes_the_middle_columns(height, width, first):
    """Halves go to the even neighbour: 0.5 to 0, 1.5 to 2, 2.5 to 2, 3.5 to 4."""
    red = seen(preprocess.centre_crop(columns(height, width), 32))[0, 0]
    torch.testing.assert_close(red, torch.arange(first, first + 32.0).expand(32, 32), atol=1e-3, rtol=0)


def test_a_picture_is_seen_with_the_eight_bits_that_would_be_saved():
    picture = torch.full((1, 32, 32, 3), 100.4 / 255)
    for seen_by in (preprocess.letterbox, preprocess.centre_crop):
        torch.testing.assert_close(seen(seen_by(picture, 32)), torch.full((1, 3, 32, 32), 100.0), atol=1e-3, rtol=0)


# --- with a gradient --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resample", [2, 3])
@pytest.mark.parametrize("shape", [(64, 80), (57, 33), (32, 32), (20, 31), (224, 128), (120, 38)])
def test_resizing_with_a_gradient_is_pillows_to_the_last_bit(resample, shape):
    """Where sides are halved, smooth pictures lie between two 8-bit values all over: these go Pillow's way."""
    noise = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(noise, shape, mode="bicubic").clamp(0, 1).permute(0, 2, 3, 1)
    grain = torch.rand(2, *shape, 3, generator=torch.Generator().manual_seed(0))
    processor = published.pillow_processor("CLIPImageProcessor")(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, resample=resample
    )
    for images in (smooth, grain):
        expected = preprocess.prepared(processor, images)
        torch.testing.assert_close(preprocess.with_gradient(processor, images), expected, atol=2e-6, rtol=0)
        cropped = preprocess.centre_crop_with_gradient(images, 32)
        torch.testing.assert_close(cropped, preprocess.centre_crop(images, 32), atol=2e-6, rtol=0)
    squeezed = published.pillow_processor("SiglipImageProcessor")(size={"height": 24, "width": 40}, resample=resample)
    given = preprocess.with_gradient(squeezed, grain)
    torch.testing.assert_close(given, preprocess.prepared(squeezed, grain), atol=2e-6, rtol=0)


def test_a_gradient_goes_where_the_filter_looked():
    """Halving by the bilinear filter, a pixel of the small picture is 1/8, 3/8, 3/8, 1/8 of four of the large one's row."""
    images = torch.rand(1, 8, 8, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    processor = published.pillow_processor("SiglipImageProcessor")(
        size={"height": 8, "width": 4}, resample=2, do_normalize=False
    )
    preprocess.with_gradient(processor, images)[0, 1, 2, 1].backward()
    expected = torch.zeros(8, 8, 3)
    expected[2, 1:5, 1] = torch.tensor([0.125, 0.375, 0.375, 0.125])
    torch.testing.assert_close(images.grad[0], expected, atol=1e-6, rtol=0)
