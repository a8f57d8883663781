"""The error of a mean whose values are not independent, since they share a prompt, a noise or a training.

Imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence

import numpy as np


def standard_error(values: Sequence[float] | np.ndarray, *shared: Iterable[Hashable]) -> tuple[float, float, int]:
    """The mean of values [N], its standard error, and the degrees of freedom of that.

    It is assumed that two values are independent unless they share a label, and that labels were drawn by chance from many. With
    e the values less their mean, and the groups g of values that have all labels of A alike (Cameron, Gelbach & Miller, 2011):

        Var = Σ_{∅ ≠ A ⊆ shared} (−1)^{|A|+1} · G_A / (G_A − 1) · Σ_g (Σ_{i∈g} e_i)² / N²,

    but not less than that of one kind of label alone. Without labels that is Student's s²/N. A kind of which there is one label
    is taken as given, since nothing says how another one would be. Degrees of freedom: one less than the groups of the kind that
    has fewest.

    Args:
        values: what is not finite is left out.
        shared: labels [N] of each kind, for example the prompt and the training's seed of every value.

    Returns:
        NaN for the mean of nothing, and for the error of fewer than two values or groups.
    """
    array = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(array)
    array, count = array[finite], int(finite.sum())
    if count < 2:
        return float(array.mean()) if count else np.nan, np.nan, 0
    kinds = [np.unique(np.asarray(list(labels), dtype=str)[finite], return_inverse=True)[1] for labels in shared]
    kinds = [kind for kind in kinds if kind.max()] or [np.arange(count)]
    apart, total = array - array.mean(), 0.0
    for size in range(1, len(kinds) + 1):
        for chosen in itertools.combinations(kinds, size):
            groups = np.unique(np.stack(chosen), axis=1, return_inverse=True)[1].ravel()
            total -= (-1) ** size * _of_groups(apart, groups)
    least = min(int(kind.max()) for kind in kinds)
    return float(array.mean()), max(total, *(_of_groups(apart, kind) for kind in kinds)) ** 0.5, least


def _of_groups(apart: np.ndarray, groups: np.ndarray) -> float:
    sums = np.bincount(groups, weights=apart)
    return len(sums) / max(1, len(sums) - 1) * float((sums**2).sum()) / len(apart) ** 2
