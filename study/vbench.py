"""What VBench wrote of a model's videos, as the table that papers show: dimensions, Quality, Semantic and Total.

VBench runs in an environment of its own; only its `*_eval_results.json` files are read here. Equations and figures: Huang et al.,
2311.17982, and VBench's scripts/constant.py and scripts/cal_final_score.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .tables import as_csv, table

# Of each dimension: lowest and highest score, by which it is normalised, and its weight.
QUALITY = {
    "subject_consistency": (0.1462, 1.0, 1.0),
    "background_consistency": (0.2615, 1.0, 1.0),
    "temporal_flickering": (0.6293, 1.0, 1.0),
    "motion_smoothness": (0.706, 0.9975, 1.0),
    "dynamic_degree": (0.0, 1.0, 0.5),
    "aesthetic_quality": (0.0, 1.0, 1.0),
    "imaging_quality": (0.0, 1.0, 1.0),
}
SEMANTIC = {
    "object_class": (0.0, 1.0, 1.0),
    "multiple_objects": (0.0, 1.0, 1.0),
    "human_action": (0.0, 1.0, 1.0),
    "color": (0.0, 1.0, 1.0),
    "spatial_relationship": (0.0, 1.0, 1.0),
    "scene": (0.0, 0.8222, 1.0),
    "appearance_style": (0.0009, 0.2855, 1.0),
    "temporal_style": (0.0, 0.364, 1.0),
    "overall_consistency": (0.0, 0.364, 1.0),
}
DIMENSIONS = (*QUALITY, *SEMANTIC)
SUFFIX = "_eval_results.json"


@dataclass(frozen=True)
class Evaluation:
    """One model's scores.

    Attributes:
        name: of the model or run.
        scores: of the dimensions that were evaluated, in [0, 1], as VBench wrote them.
    """

    name: str
    scores: Mapping[str, float]

    @property
    def quality(self) -> float | None:
        """The weighted mean of the normalised QUALITY dimensions; None if one was not evaluated."""
        return _mean(self.scores, QUALITY)

    @property
    def semantic(self) -> float | None:
        return _mean(self.scores, SEMANTIC)

    @property
    def total(self) -> float | None:
        """(4 · Quality + Semantic) / 5; None if a dimension was not evaluated, as with prompts of one's own."""
        if self.quality is None or self.semantic is None:
            return None
        return (4 * self.quality + self.semantic) / 5

    def columns(self) -> dict[str, float | None]:
        totals = {"total": self.total, "quality": self.quality, "semantic": self.semantic}
        return totals | {dimension: self.scores.get(dimension) for dimension in DIMENSIONS}


def read(path: Path, name: str = "") -> Evaluation:
    """The results in a file, or in all files of a folder: VBench may be asked for one dimension at a time.

    Args:
        name: in the table; empty: the folder's or file's own.

    Raises:
        FileNotFoundError: a folder without results.
        ValueError: no results of VBench, a score outside [0, 1], or two of one dimension.
    """
    files = [path] if path.is_file() else sorted(path.glob(f"*{SUFFIX}"))
    if not files:
        raise FileNotFoundError(f"{path} has no file that ends in {SUFFIX}. Fix: give VBench's --output_path")
    scores: dict[str, float] = {}
    for file in files:
        for dimension, score in _scores(file).items():
            if dimension in scores:
                raise ValueError(f"{path} has {dimension} twice, again in {file.name}. Fix: keep one of the files")
            scores[dimension] = score
    return Evaluation(name or path.name.removesuffix(SUFFIX), scores)


def _scores(file: Path) -> dict[str, float]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        scores = {dimension: float(result[0]) for dimension, result in content.items()}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise ValueError(f"{file} holds no results of VBench ({error}). Fix: run that evaluation again") from error
    for dimension, score in scores.items():
        if dimension not in DIMENSIONS:
            raise ValueError(f"{file} has {dimension}, no dimension of VBench. Fix: choose the files of VBench 1.0")
        if not 0 <= score <= 1:
            raise ValueError(
                f"{file} has {dimension} = {score}, outside 0 to 1. Fix: evaluate it again with the current VBench"
            )
    return scores


def markdown(evaluations: Sequence[Evaluation]) -> str:
    """A table in percent, a row an evaluation; – for what was not evaluated."""
    head = ["model", *(name.replace("_", " ") for name in Evaluation("", {}).columns())]
    body = [
        [own.name, *("–" if value is None else f"{100 * value:.2f}" for value in own.columns().values())]
        for own in evaluations
    ]
    return "\n".join(table(head, body)) + "\n"


def sheet(evaluations: Sequence[Evaluation]) -> str:
    """CSV: the same in full precision, in [0, 1]; empty for what was not evaluated."""
    rows = [[own.name, *own.columns().values()] for own in evaluations]
    return as_csv(["model", *Evaluation("", {}).columns()], rows)


def _mean(scores: Mapping[str, float], dimensions: Mapping[str, tuple[float, float, float]]) -> float | None:
    if not dimensions.keys() <= scores.keys():
        return None
    weighted = [
        weight * (scores[dimension] - low) / (high - low) for dimension, (low, high, weight) in dimensions.items()
    ]
    return sum(weighted) / sum(weight for _, _, weight in dimensions.values())
