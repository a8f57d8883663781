"""Figures of a picture that rise when a training spoils it: noise and sharpening, clipped colours, grids of the decoder."""

from __future__ import annotations

import torch
from torch import Tensor

_LUMA = (0.299, 0.587, 0.114)


def figures(images: Tensor, periods: tuple[int, ...]) -> dict[str, list[float]]:
    """Figures of each of the pictures [N, H, W, 3] in [0, 1], by name:

        high_frequency   share of the luminance's energy above half of Nyquist's frequency, 0.25 cycles a pixel
        clipped          share of pixels of which a channel is 0 or 255
        chroma           mean of the largest less the smallest channel
        grid/<period>    peaks at multiples of 1/period: how far they stand above their neighbourhood, 1 where they do not

    `periods`: of the grids, in pixels. One that is more than half of a side is left out.
    """
    values: dict[str, list[float]] = {}
    for picture in images:
        picture = picture.float().clamp(0, 1)
        luma = picture @ picture.new_tensor(_LUMA)
        height, width = luma.shape
        window = torch.outer(torch.hann_window(height, periodic=False), torch.hann_window(width, periodic=False))
        power = torch.fft.rfft2((luma - luma.mean()) * window).abs().square()
        power[:, 1 : (width + 1) // 2] *= 2  # of a real picture the other half of the plane is the same
        fast = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None]) > 0.25
        row = {
            "high_frequency": (power[fast].sum() / power.sum().clamp(min=1e-12)).item(),
            "clipped": ((picture * 255).round() % 255 == 0).any(-1).float().mean().item(),
            "chroma": (picture.amax(-1) - picture.amin(-1)).mean().item(),
        }
        row |= {f"grid/{period}": _peaks(luma, period) for period in periods if min(luma.shape) >= 2 * period > 2}
        for name, value in row.items():
            values.setdefault(name, []).append(round(value, 6))
    return values


def _peaks(luma: Tensor, period: int) -> float:
    """exp of the mean of log P(f) − log P(beside f), over all multiples f of 1/period but 0; P: the power spectrum.

    The picture is cut so that these are whole bins. Beside f are the bins at ±1 along both axes; of an f on an axis only those
    along it, since that axis has what the picture's borders add.
    """
    height, width = (side - side % period for side in luma.shape)
    cut = luma[:height, :width]
    # As much as rounding to 8 bits adds to each bin, so that an even picture has no peaks.
    power = torch.fft.fft2(cut - cut.mean()).abs().square() + height * width / (12 * 255**2)
    logs = power.log()
    down, across = (logs.roll(1, axis) + logs.roll(-1, axis) for axis in (0, 1))
    rows, columns = torch.arange(0, height, height // period), torch.arange(0, width, width // period)
    rises = logs - (down + across) / 4
    rises[0], rises[:, 0] = logs[0] - across[0] / 2, logs[:, 0] - down[:, 0] / 2
    return rises[rows][:, columns].flatten()[1:].mean().exp().item()
