"""How every figure is set up and drawn.

Colour scales are readable without red-green vision: viridis where a value has a size, blue-white-orange where it has a sign.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEQUENTIAL, DIVERGING = "viridis", "PuOr_r"
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")  # Okabe-Ito
_DPI = 110


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def rendered(figure: Figure) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def svg(draw: Callable[[], Figure]) -> str:
    """A figure for a page: without a background, and black as the page's own ink, so that it is readable on light and dark."""
    import matplotlib

    # Text as text, in the page's fonts; names as they are, whatever $ signs they have.
    with matplotlib.rc_context({"svg.fonttype": "none", "text.parse_math": False, "legend.frameon": False}):
        figure = draw()
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    code = re.sub(r"<metadata>.*?</metadata>", "", text.getvalue()[text.getvalue().index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r"#([\w.]+)", code))
    code = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", code)
    return re.sub("#000000|#333333", "currentColor", code)
