"""The pack's icon and banner, which the Comfy Registry shows: a credit heatmap in small."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps, font_manager
from PIL import Image, ImageDraw, ImageFont

from ...trainer.advantages import fuse
from ...trainer.credit.steps import tcd
from ...trainer.pictures.figures import DIVERGING
from .sources import credit, scores, trajectories

DARK = "#1d1d24"
RANKS = [0, 1, 2, 4, 7, 9, 11]  # of the samples that are shown, among the twelve of a group; 0 is the best


def icon() -> np.ndarray:
    sheet = Image.new("RGB", (400, 400), DARK)
    _paint_credit(sheet, corner=14, side=48, gap=6)
    return np.asarray(sheet)


def banner() -> np.ndarray:
    """21:9: the icon's heatmap, each row ending with its picture, and what the pack does."""
    sheet, corner, side, gap = Image.new("RGB", (1680, 720), DARK), 30, 84, 12
    chosen, left = _paint_credit(sheet, corner, side, gap), corner + 7 * (side + gap)
    for row, sample in enumerate(chosen):
        picture = Image.fromarray((trajectories(1).images[sample] * 255).round().byte().numpy())
        sheet.paste(picture.resize((side, side), Image.Resampling.NEAREST), (left, corner + row * (side + gap)))
    pen = ImageDraw.Draw(sheet)
    for text, y, size in (
        ("OTCA", 180, 190),
        ("Train image and video models", 420, 43),
        ("by reinforcement learning,", 480, 43),
        ("as a ComfyUI graph", 540, 43),
    ):
        font = ImageFont.truetype(font_manager.findfont("DejaVu Sans:bold"), size)
        pen.text((870, y), text, font=font, fill="white")
    return np.asarray(sheet)


def _paint_credit(sheet: Image.Image, corner: int, side: int, gap: int) -> np.ndarray:
    """Paints the credit of seven samples of one prompt at seven steps; returns which samples, the best first."""
    effective = fuse(scores(1), credit(tcd, 0.0, groups=1), "weighted_advantages").step_advantage.numpy()
    chosen = np.argsort(-effective.mean(1))[RANKS]
    effective = effective[chosen]
    limit = np.abs(effective).max()
    cells = colormaps[DIVERGING](0.5 + 0.5 * np.sign(effective) * np.sqrt(np.abs(effective) / limit))
    for row, column in np.ndindex(7, 7):
        color = tuple((cells[row, column, :3] * 255).astype(int).tolist())
        x, y = corner + column * (side + gap), corner + row * (side + gap)
        sheet.paste(color, (x, y, x + side, y + side))
    return chosen
