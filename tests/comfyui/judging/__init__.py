"""Tiny judges as a custom node of ComfyUI's server: what `test_judge_canvas.py` puts beside the pack."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]
ASKED = "asked.txt"  # in ComfyUI's output folder: a line for each question that a forward pass answered
PAUSE = 0.03  # seconds a pass, so that Stop can be pressed in the middle


def _judges():
    """The pack under the name by which its tests import it; its routes are there already, so that its beginning does not run."""
    package = sys.modules.setdefault("comfyui_otca", ModuleType("comfyui_otca"))
    package.__path__ = [str(ROOT)]
    from comfyui_otca.tests.comfyui.native import judges

    return judges


class TinyJudge:
    """A Qwen3-VL with random weights that says yes or no; each question that its network answers is written down."""

    CATEGORY = "tests"
    RETURN_TYPES = ("CLIP",)
    FUNCTION = "load"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def load(self):
        import folder_paths
        import torch

        judges = _judges()
        with torch.inference_mode(False):
            clip = judges.answering(judges.qwen3vl(tied=False))
        network = judges.Answers(clip).network.model
        before, file = network.forward, Path(folder_paths.get_output_directory()) / ASKED

        def forward(*args, **given):
            made = before(*args, **given)
            time.sleep(PAUSE)
            with file.open("a") as log:
                log.write("asked\n" * len(given["embeds"]))
            return made

        network.forward = forward
        return (clip,)


NODE_CLASS_MAPPINGS = {"TinyJudge": TinyJudge}
