"""Artefacts of pictures: by hand, on made-up pictures that are spoiled or harmlessly changed, and how often noise alone warns."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from comfyui_otca.trainer.pictures import artefacts
from comfyui_otca.trainer.run import verdicts

SIDE, PERIODS = 64, (8, 16)


def natural(count=16, seed=0):
    """Pictures whose amplitudes fall with the frequency, as photographs' do, in weak colours."""
    generator = torch.Generator().manual_seed(seed)
    frequency = torch.hypot(torch.fft.fftfreq(SIDE)[:, None], torch.fft.rfftfreq(SIDE)[None])
    frequency[0, 0] = 1 / SIDE
    noise = torch.fft.rfft2(torch.randn(count, 4, SIDE, SIDE, generator=generator)) / frequency**1.1
    layers = torch.fft.irfft2(noise, s=(SIDE, SIDE))
    layers = (layers - layers.mean((-1, -2), keepdim=True)) / layers.std((-1, -2), keepdim=True)
    return 0.5 + 0.18 * (0.5 * layers[:, :3] + 0.87 * layers[:, 3:]).movedim(1, -1)


def checkerboard(period, amplitude):
    squares = torch.arange(SIDE) // (period // 2) % 2
    return amplitude * (1 - 2 * ((squares[:, None] + squares) % 2).float())[..., None]


def blurred(images):
    padded = torch.nn.functional.pad(images.movedim(-1, 1), (1, 1, 1, 1), mode="reflect")
    return torch.nn.functional.avg_pool2d(padded, 3, 1).movedim(1, -1)


def jpeg(images):
    out = []
    for picture in images.clamp(0, 1):
        file = io.BytesIO()
        Image.fromarray((picture * 255).round().byte().numpy()).save(file, "JPEG", quality=85)
        out.append(torch.from_numpy(np.asarray(Image.open(file)) / 255.0).float())
    return torch.stack(out)


def evaluation(iteration, images):
    figures = artefacts.figures((images.clamp(0, 1) * 255).round() / 255, PERIODS)
    prompts = [f"prompt {number}" for number in range(8)]
    return {"iteration": iteration, "prompts": prompts, "noise": "n", "rewards": {}, "artefacts": figures}


SPOILED = {
    "grid/8": lambda images: images + checkerboard(8, 0.03),
    "grid/16": lambda images: images + checkerboard(16, 0.05),
    "high_frequency": lambda images: images + (images - blurred(images)),
    "chroma": lambda images: images.mean(-1, keepdim=True) + 2 * (images - images.mean(-1, keepdim=True)),
    "clipped": lambda images: 0.5 + 1.8 * (images - 0.5),
}
HARMLESS = {
    "brighter": lambda images: images + 0.1,
    "contrast": lambda images: 0.5 + 1.1 * (images - 0.5),
    "another content": lambda images: natural(seed=1),
    "JPEG": jpeg,
    "smoother": blurred,
}


@pytest.mark.parametrize("figure", SPOILED)
def test_what_is_spoiled_is_named(figure):
    images = natural()
    seen = verdicts.artefact([evaluation(0, images), evaluation(5, SPOILED[figure](images))])
    assert seen.figure == figure and seen.file == f"samples/000005-{figure.replace('/', '-')}.png"
    limit, least = verdicts.LIMITS[figure.partition("/")[0]]
    assert seen.factor > limit and seen.errors > verdicts.ERRORS
    before, now = (evaluation(0, made)["artefacts"][figure] for made in (images, SPOILED[figure](images)))
    assert (seen.before, seen.now) == (pytest.approx(sum(before) / 16), pytest.approx(sum(now) / 16))
    ratios = [(after + least) / (earlier + least) for earlier, after in zip(before, now, strict=True)]
    assert seen.picture == ratios.index(max(ratios))
    assert seen.factor == pytest.approx(math.prod(ratios) ** (1 / 16))


@pytest.mark.parametrize("change", HARMLESS)
def test_what_is_harmless_is_not(change):
    images = natural()
    assert verdicts.artefact([evaluation(0, images), evaluation(5, HARMLESS[change](images))]) is None


def test_pairs_of_independent_noises_never_warn():
    rows = [evaluation(number, natural(8, seed=number)) for number in range(16)]
    noises = [torch.rand(8, SIDE, SIDE, 3, generator=torch.Generator().manual_seed(number)) for number in range(16)]
    for made in (rows, [evaluation(number, noise) for number, noise in enumerate(noises)]):
        pairs = [
            [{**one, "iteration": 0}, {**other, "iteration": 1}] for one in made for other in made if one is not other
        ]
        assert len(pairs) == 240 and not any(map(verdicts.artefact, pairs))


def test_figures_by_hand():
    waves = torch.stack([torch.sin(2 * torch.pi * f * torch.arange(64) / 64) for f in (8, 24)])
    slow, fast = (0.5 + 0.4 * wave.expand(64, 64)[..., None].expand(64, 64, 3) for wave in waves)
    found = artefacts.figures(torch.stack([slow, fast, (slow + fast) / 2]), (8,))
    assert found["high_frequency"] == pytest.approx([0, 1, 0.5], abs=1e-3)
    assert found["chroma"] == [0, 0, 0] and found["clipped"] == [0, 0, 0]

    half = torch.full((1, 64, 64, 3), 0.5)
    half[:, :16] = torch.tensor([1.0, 0.5, 0.25])  # a quarter is clipped in its red, and has a chroma of 0.75
    found = artefacts.figures(half, ())
    assert found["clipped"] == [0.25] and found["chroma"] == [pytest.approx(0.1875)]

    even = artefacts.figures(torch.full((1, 40, 48, 3), 0.3), (8, 16, 32))
    assert {name: value for name, [value] in even.items() if name.startswith("grid")} == {"grid/8": 1, "grid/16": 1}
    noise = artefacts.figures(torch.rand(64, 64, 64, 3, generator=torch.Generator().manual_seed(0)), PERIODS)
    for period in PERIODS:
        assert sum(noise[f"grid/{period}"]) / 64 == pytest.approx(1, abs=0.1), "the mean of a logarithm, so about 1"


def test_what_cannot_be_compared_says_nothing():
    images = natural(8)
    before, after = evaluation(0, images), evaluation(5, SPOILED["grid/8"](images))
    assert verdicts.artefact([]) is None and verdicts.artefact([before]) is None and verdicts.artefact([after]) is None
    assert verdicts.artefact([before, after]) is not None
    assert verdicts.artefact([before, {**after, "prompts": ["other"]}]) is None
    assert verdicts.artefact([{**before, "artefacts": {}}, after]) is None, "of a run from before there were figures"
    shorter = {name: values[:4] for name, values in after["artefacts"].items()}
    assert verdicts.artefact([before, {**after, "artefacts": shorter}]) is None
