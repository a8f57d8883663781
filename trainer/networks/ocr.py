"""Reads the text in a picture by PP-OCR, from the models that the wheel of `rapidocr` brings. Nothing is downloaded."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import RewardError

if TYPE_CHECKING:
    from PIL.Image import Image

PACKAGES = ("rapidocr", "onnxruntime")
INSTALL = 'Fix: pip install "rapidocr>=3.10" onnxruntime'
MODELS = {"Det": "PP-OCRv6_det_small.onnx", "Rec": "PP-OCRv6_rec_small.onnx"}  # that find lines, and read them


def find_models() -> dict[str, Path]:
    """Where the installed package has its models.

    Raises:
        FileNotFoundError: a package or a model is missing; it says how to install them.
    """
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise FileNotFoundError(f"reading text needs the package {package}, which is not installed. {INSTALL}")
    specification = importlib.util.find_spec("rapidocr")
    assert specification and specification.origin
    folder = Path(specification.origin).parent / "models"
    for name in MODELS.values():
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"the installed rapidocr has no {name} in {folder}: its version brings other models. {INSTALL}"
            )
    return {stage: folder / name for stage, name in MODELS.items()}


class Reader:
    """PP-OCR on the CPU."""

    def __init__(self):
        models = find_models()
        try:
            from rapidocr import RapidOCR
        except (ImportError, OSError) as error:  # as where OpenCV lacks a library of the system
            raise RewardError(f"rapidocr is installed but cannot be imported ({error}). {INSTALL}") from error
        settings: dict[str, Any] = {f"{stage}.model_path": str(path) for stage, path in models.items()}
        # Else it would say at every picture without text that there is none. Lines upside down are not turned.
        settings |= {"Global.log_level": "error", "Global.use_cls": False}
        self._ocr: Any = RapidOCR(params=settings)

    def lines(self, picture: Image) -> list[str]:
        """The lines of text in it, from top to bottom; none where it sees no text."""
        return list(self._ocr(picture).txts or ())


@functools.cache
def reader() -> Reader:
    """The one of this process.

    Raises:
        FileNotFoundError: a package or a model is missing.
        RewardError: the package cannot be imported.
    """
    return Reader()
