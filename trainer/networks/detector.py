"""Open-vocabulary detectors in transformers' layout: where in a picture is what is named? OWLv2 and Grounding DINO."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import RewardError, preprocess
from .network import Network
from .published import ALL, Published, from_folder, pillow_processor, transformers_class

OWLV2 = Published("OWLv2", ALL, "0.6 GB", "google/owlv2-base-patch16-ensemble")
GROUNDING_DINO = Published("Grounding DINO", ALL, "0.7 GB", "IDEA-Research/grounding-dino-tiny")

MOST = 100  # boxes of one name; a detector that finds more of it in a picture finds it everywhere
Corners = tuple[float, float, float, float]


@dataclass(frozen=True)
class Found:
    """An object: how sure the detector is, in [0, 1], and (left, top, right, bottom) in pixels."""

    score: float
    box: Corners


class Detector(Network, ABC):
    """A folder with config.json, weights, tokenizer and preprocessor_config.json."""

    MODEL: str
    PROCESSOR: str
    THRESHOLD: float  # above which its authors' examples believe a box

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype):
        super().__init__(path, device, dtype)
        self.model: Any = from_folder(transformers_class(self.MODEL), path, dtype)
        self.processor = pillow_processor(self.PROCESSOR).from_pretrained(path, local_files_only=True)
        self.tokenizer: Any = transformers_class("AutoTokenizer").from_pretrained(path, local_files_only=True)
        self.settle(device)

    def find(self, images: Tensor, names: Sequence[str], threshold: float = 0.0) -> list[dict[str, list[Found]]]:
        """The objects of `names` in each picture [B, H, W, 3], the surest first and at most MOST of a name.

        `threshold`: least score; 0: THRESHOLD.
        """
        prepared = self.processor(preprocess.pil(images), return_tensors="pt").to(self.device)
        prepared["pixel_values"] = prepared["pixel_values"].to(self.dtype)
        sizes = [tuple(images.shape[1:3])] * len(images)
        objects: list[dict[str, list[Found]]] = [{name: [] for name in names} for _ in images]
        for question in self._questions(names):
            outputs = self.model(**prepared, **self._words(question, len(images)))
            results = self.processor.post_process_object_detection(outputs, threshold or self.THRESHOLD, sizes)
            for own, result in zip(objects, results, strict=True):
                for score, label, box in zip(
                    *(result[key].tolist() for key in ("scores", "labels", "boxes")), strict=True
                ):
                    own[self._answer(question, label)].append(Found(score, tuple(box)))
        return [
            {name: sorted(boxes, key=lambda box: -box.score)[:MOST] for name, boxes in own.items()} for own in objects
        ]

    @abstractmethod
    def _questions(self, names: Sequence[str]) -> list[Sequence[str]]:
        """The names that one forward pass asks for together."""

    @abstractmethod
    def _words(self, names: Sequence[str], pictures: int) -> dict[str, Tensor]:
        """Tokens of one such question about so many pictures."""

    @abstractmethod
    def _answer(self, names: Sequence[str], label: int) -> str:
        """The name that a box's label stands for."""


class Owlv2(Detector):
    """OWLv2 (2306.09683): all names at once; each box is given to the name that it fits best."""

    MODEL, PROCESSOR, THRESHOLD = "Owlv2ForObjectDetection", "Owlv2ImageProcessor", 0.2

    def _questions(self, names: Sequence[str]) -> list[Sequence[str]]:
        return [names]

    def _words(self, names: Sequence[str], pictures: int) -> dict[str, Tensor]:
        length = self.model.config.text_config.max_position_embeddings
        texts = [f"a photo of a {name}" for name in names]
        tokens = self.tokenizer(texts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        keys = ("input_ids", "attention_mask")
        return {key: tokens[key].repeat(pictures, 1).to(self.device) for key in keys}

    def _answer(self, names: Sequence[str], label: int) -> str:
        return names[label]


class GroundingDino(Detector):
    """Grounding DINO (2303.05499): a name at a time, so that no box answers to a mixture of two."""

    MODEL, PROCESSOR, THRESHOLD = "GroundingDinoForObjectDetection", "GroundingDinoImageProcessor", 0.35

    def _questions(self, names: Sequence[str]) -> list[Sequence[str]]:
        return [[name] for name in names]

    def _words(self, names: Sequence[str], pictures: int) -> dict[str, Tensor]:
        tokens = self.tokenizer([f"{names[0].lower()}."] * pictures, return_tensors="pt")
        return dict(tokens.to(self.device))

    def _answer(self, names: Sequence[str], label: int) -> str:
        return names[0]  # the label is the token that the box fits best


KINDS: dict[str, type[Detector]] = {"owlv2": Owlv2, "grounding-dino": GroundingDino}  # by their config.json


def kind_of(folder: Path) -> type[Detector]:
    """Raises RewardError if the folder holds another kind of model."""
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    if kind not in KINDS:
        raise RewardError(
            f"{folder} holds a model of type {kind}, where one of {', '.join(KINDS)} is needed. Fix: get {OWLV2.source} "
            f"({OWLV2.size}) or {GROUNDING_DINO.source} ({GROUNDING_DINO.size})"
        )
    return KINDS[kind]


def apart(boxes: Sequence[Found], overlap: float) -> list[Found]:
    """Without those that overlap a surer one by more than `overlap` (intersection over union); `boxes` have the surest first."""
    kept: list[Found] = []
    for box in boxes:
        if all(shared_area(box.box, other.box) <= overlap for other in kept):
            kept.append(box)
    return kept


def shared_area(one: Corners, other: Corners) -> float:
    """Intersection over union of two boxes."""
    width = max(min(one[2], other[2]) - max(one[0], other[0]), 0)
    height = max(min(one[3], other[3]) - max(one[1], other[1]), 0)
    union = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - width * height
    return width * height / union if union > 0 else 0.0
