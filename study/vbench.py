"""What VBench wrote of a model's videos, as the table that papers show: dimensions, Quality, Semantic and Total.

VBench runs in an environment of its own; only its `*_eval_results.json` files are read here. Equations and figures: Huang et al.,
2311.17982, and VBench's scripts/constant.py and scripts/cal_final_score.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from .statistics import as_csv, table

# The lowest and highest score of each dimension, by which it is normalised, and its weight.
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


def columns(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Total, Quality, Semantic and every dimension; None if something for it was not evaluated, as with one's own prompts.

    Quality and Semantic are weighted means of normalised dimensions; Total is (4 · Quality + Semantic) / 5.
    """
    quality, semantic = _mean(scores, QUALITY), _mean(scores, SEMANTIC)
    total = None if quality is None or semantic is None else (4 * quality + semantic) / 5
    own = {dimension: scores.get(dimension) for dimension in DIMENSIONS}
    return {"total": total, "quality": quality, "semantic": semantic, **own}


def read(path: Path) -> dict[str, float]:
    """Scores in [0, 1] by dimension, in a file or in all files of a folder: VBench may be asked for one dimension at a time.

    Raises:
        FileNotFoundError: a folder without results.
        ValueError: not results of VBench, a score outside [0, 1], or two of one dimension.
    """
    files = [path] if path.is_file() else sorted(path.glob(f"*{SUFFIX}"))
    if not files:
        raise FileNotFoundError(f"{path} has no file that ends in {SUFFIX}. Fix: give VBench's --output_path")
    scores: dict[str, float] = {}
    for file in files:
        own = _scores(file)
        if twice := own.keys() & scores.keys():
            raise ValueError(f"{path} has {min(twice)} twice, again in {file.name}. Fix: keep one of the files")
        scores |= own
    return scores


def _scores(file: Path) -> dict[str, float]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        scores = {dimension: float(result[0]) for dimension, result in content.items()}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise ValueError(f"{file} holds no results of VBench ({error}). Fix: run that evaluation again") from error
    for dimension, score in scores.items():
        if dimension not in DIMENSIONS:
            raise ValueError(
                f"{file} has {dimension}, which is not a dimension of VBench. Fix: choose the files of VBench 1.0"
            )
        if not 0 <= score <= 1:
            raise ValueError(
                f"{file} has {dimension} = {score}, outside 0 to 1. Fix: evaluate it again with the current VBench"
            )
    return scores


def markdown(evaluations: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """A table in percent, a row a model: its name and scores; – for what was not evaluated."""
    head = ["model", *(name.replace("_", " ") for name in columns({}))]
    body = [
        [name, *("–" if value is None else f"{100 * value:.2f}" for value in columns(scores).values())]
        for name, scores in evaluations
    ]
    return "\n".join(table(head, body)) + "\n"


def sheet(evaluations: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """CSV: the same in full precision, in [0, 1]; empty for what was not evaluated."""
    return as_csv(["model", *columns({})], [[name, *columns(scores).values()] for name, scores in evaluations])


def _mean(scores: Mapping[str, float], dimensions: Mapping[str, tuple[float, float, float]]) -> float | None:
    if not dimensions.keys() <= scores.keys():
        return None
    weighted = [
        weight * (scores[dimension] - low) / (high - low) for dimension, (low, high, weight) in dimensions.items()
    ]
    return sum(weighted) / sum(weight for _, _, weight in dimensions.values())
