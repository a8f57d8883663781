"""How many trainings of the page are at work at a time."""

from __future__ import annotations

import os
import sys

from .checks import Refused

TRAININGS = "OTCA_TRAININGS"  # a variable of the environment: how many trainings of the page are at work at a time
ON_A_CPU = 2
MOST_TRAININGS = 1024


def trainings(setting: int | None = None) -> int:
    """How many of the page are at work at a time: by the environment, else by the page's setting, else one an accelerator.

    Raises:
        Refused: 400, what the environment says is no number.
    """
    number = os.environ.get(TRAININGS, "").strip()
    if number:
        if not number.isdecimal() or not 1 <= int(number) <= MOST_TRAININGS:
            fix = f"set it to a whole number from 1 to {MOST_TRAININGS}, or remove it, and restart ComfyUI"
            raise Refused(
                400, f"{TRAININGS} = {number!r} in ComfyUI's environment is no number of trainings. Fix: {fix}"
            )
        return int(number)
    return setting or accelerators() or ON_A_CPU


def accelerators() -> int:
    """How many this process has; ComfyUI has loaded torch, and without it there is none."""
    torch = sys.modules.get("torch")
    for kind in ("cuda", "xpu") if torch is not None else ():
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            return module.device_count()
    return int(torch is not None and torch.backends.mps.is_available())
