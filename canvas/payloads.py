"""The messages of nodes to the page: plain lists and numbers, rounded to what an eye can tell apart; None is "not known"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ..trainer.types import Advantages, Scores, StepCredit, Trajectories

DIGITS = 5
THUMBNAIL_SIZE, THUMBNAIL_COLUMNS = 64, 8


def credit(credit: StepCredit, trajectories: Trajectories) -> dict:
    """The heatmap's rows and columns: weight and ΔS [B][T'] of every sample and trained step.

    A credit by objective also has `objectives` [K] and the weights of each, `by_objective` [K][B][T'].
    """
    shown = {
        "node": credit.node,
        "method": credit.method,
        "steps": len(credit.sigmas) - 1,
        "sigmas": numbers(credit.sigmas),
        "trained": list(credit.trained),
        "groups": trajectories.groups.tolist(),
        "prompts": list(trajectories.prompts),
        "weights": numbers(credit.weights),
        "delta": numbers(credit.delta[:, list(credit.trained)]),
        "previews": trajectories.predictions is not None,
    }
    if credit.by_objective is not None:
        shown["objectives"] = list(credit.objectives)
        shown["by_objective"] = numbers(credit.by_objective.permute(2, 0, 1))
    return shown


def advantages(node: str, advantages: Advantages) -> dict:
    """The same heatmap's effective advantages Ã [B][T'], and what they were made of: A_k, c_k [B][K] and z [B].

    An objective's share is the mean size of what it adds to z, of all objectives' together.

    A credit by objective also has each objective's part in Ã, `by_objective` [K][B][T'].
    """
    # What each objective adds, [B, K]: A_k, with its coefficient, if the fusion does not say it.
    added = advantages.per_objective if advantages.fused.parts is None else advantages.fused.parts
    valid, share = advantages.valid, added.abs()
    mean = share[valid].mean(0) if valid.any() else share.mean(0)
    shown = {
        "node": node,
        "credit_node": advantages.credit.node,
        "method": advantages.method,
        "names": list(advantages.scores.names),
        "objectives": numbers(_masked(advantages.per_objective, valid)),
        "coefficients": numbers(_masked(advantages.fused.coefficients, valid)),
        "advantage": numbers(_masked(advantages.fused.advantage, valid)),
        "step_advantage": numbers(_masked(advantages.step_advantage, valid)),
        "valid": valid.tolist(),
        "shares": numbers(mean / (mean.sum() or 1)),
    }
    weights, parts = advantages.credit.by_objective, advantages.fused.parts
    if weights is not None and parts is not None:
        shown["by_objective"] = numbers(_masked(weights * parts[:, None], valid).permute(2, 0, 1))
    return shown


def scores(
    node: str,
    scores: Scores,
    thumbnails: dict | None,
    standings: Tensor | None = None,
    places: list[int] | None = None,
    totals: Tensor | None = None,
    names: Sequence[str] = (),
    said: Sequence[str] = (),
    beside: Sequence[int | None] = (),
) -> dict:
    """The table of rewards: raw scores, their standing in the group and how the rewards agree with each other.

    `standings`: [B, K + H]; None: those within the groups.
    `places`, `totals`: of a ranking; the sums [B] that it is by.
    `names`: of the pictures, if they have any.
    `said`: what a human should know of it.
    `beside`: of each group, the number in the thumbnails of the picture that was edited; None: it has none.
    """
    from ..trainer.advantages import correlation, standing

    standings = standing(scores) if standings is None else standings
    plain = {reward.name: reward.meaning for reward in scores.rewards if not reward.bounds}
    return {
        "node": node,
        "names": list(scores.names),
        "held_out_names": list(scores.held_out_names),
        "meanings": [plain.get(name, "") for name in (*scores.names, *scores.held_out_names)],
        "groups": scores.groups.tolist(),
        "prompts": list(scores.prompts),
        "values": numbers(scores.values),
        "held_out": numbers(scores.held_out),
        "advantages": numbers(standings),
        "correlation": numbers(correlation(standings)),
        "seconds": {name: numbers(seconds) for name, seconds in scores.seconds.items()},
        "thumbnails": thumbnails,
        "thumbnail_size": THUMBNAIL_SIZE,
        "thumbnail_columns": THUMBNAIL_COLUMNS,
        "places": places,
        "totals": None if totals is None else numbers(totals),
        "files": list(names),
        "said": list(said),
        "beside": list(beside),
    }


def thumbnail_sheet(images: Tensor | Sequence[Tensor]):
    """All pictures [H, W, 3] as one sheet of small ones, THUMBNAIL_COLUMNS to a row, each fitted into its square."""
    from PIL import Image, ImageOps

    columns, size = THUMBNAIL_COLUMNS, THUMBNAIL_SIZE
    sheet = Image.new("RGB", (columns * size, -(-len(images) // columns) * size))
    for number, picture in enumerate(images):
        small = picture_of(picture)
        method = Image.Resampling.NEAREST if max(small.size) < size else Image.Resampling.LANCZOS
        sheet.paste(ImageOps.pad(small, (size, size), method), (number % columns * size, number // columns * size))
    return sheet


def picture_of(image: Tensor):
    """One picture [H, W, 3] in [0, 1] for PIL."""
    from PIL import Image

    return Image.fromarray((image.clamp(0, 1) * 255).round().byte().cpu().numpy())


def numbers(values):
    """Tensors, sequences and floats as nested lists of floats with DIGITS significant digits; None where not finite."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return [numbers(value) for value in values]
    return float(f"{values:.{DIGITS}g}") if math.isfinite(values) else None


def _masked(values: Tensor, valid: Tensor) -> Tensor:
    """The values with NaN for samples that take no part: their zeros are not results."""
    import torch

    return torch.where(valid.reshape(-1, *[1] * (values.dim() - 1)), values, torch.nan)
