"""Reward hacking: a reward that is trained rises while one that is held out falls.

Two looks at a run, neither of which needs anything but its own metrics.jsonl and evaluation.jsonl, so that a resumed run
comes to the same verdicts. The means of the sampled batches jump with their prompts, so their trend is judged by the
Mann-Kendall test; evaluations repeat their prompts and seeds, so two of them are compared pair by pair, by Wilcoxon's signed
ranks. Both see only the order of values, so no outlier decides. One trained reward that rises is enough: where several are
trained, one of them is often given up for another, and their mean stays. Imports neither torch nor anything of ours.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

WINDOW = 50  # iterations that a trend is looked for in, at most …
SHORTEST = 10  # … and at least
# Standard normal deviates. FALL is far out, since a held-out reward that only fluctuates is looked at in every iteration, and
# the trained ones rise in every good run: at -2, every second run of 140 iterations would be warned of mere noise.
RISE, FALL = 2.0, -3.5


def warning(history: Sequence[Mapping], evaluations: Sequence[Mapping]) -> str | None:
    """A sentence for a human where a run, given by its rows so far, shows reward hacking by either look; else None."""
    return _by_batches(history[-WINDOW:]) or _by_evaluations(evaluations)


def trend(values: Sequence[float]) -> float:
    """z of the Mann-Kendall test, corrected for ties: positive where later values tend to be larger.

    S = Σ_{i<j} sign(x_j − x_i), Var S = (n(n−1)(2n+5) − Σ_ties t(t−1)(2t+5)) / 18, z = (S − sign S) / √Var S.
    """
    n = len(values)
    total = sum(_sign(later - earlier) for i, earlier in enumerate(values) for later in values[i + 1 :])
    ties = sum(t * (t - 1) * (2 * t + 5) for t in Counter(values).values())
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    return (total - _sign(total)) / math.sqrt(variance) if total else 0.0


def shift(differences: Sequence[float]) -> float:
    """z of Wilcoxon's signed-rank test: positive where the differences tend to be. Zeros count for nothing, ties share ranks.

    W = Σ sign(d) rank(|d|), Var W = Σ rank², z = (W − sign W) / √Var W.
    """
    sizes = sorted(abs(difference) for difference in differences if difference)
    first, count = {size: i for i, size in reversed([*enumerate(sizes, 1)])}, Counter(sizes)
    ranks = [(_sign(d), first[abs(d)] + (count[abs(d)] - 1) / 2) for d in differences if d]
    total = sum(sign * rank for sign, rank in ranks)
    return (total - _sign(total)) / math.sqrt(sum(rank**2 for _, rank in ranks)) if total else 0.0


def _by_batches(rows: Sequence[Mapping]) -> str | None:
    """Every held-out reward over the iterations in which it and all trained ones were measured."""
    trained = _means(rows, "reward")
    for key in _means(rows, "held_out"):
        whole = [row for row in rows if all(measured(row.get(other)) for other in (key, *trained))]
        if len(whole) < SHORTEST:
            continue
        own = [row[key] for row in whole]
        rises = {_name(other): trend([row[other] for row in whole]) for other in trained}
        third = len(own) // 3
        ends = statistics.fmean(own[:third]), statistics.fmean(own[-third:])
        when = f"from iteration {whole[0]['iteration']} to {whole[-1]['iteration']}"
        if told := _told(when, rises, _name(key), trend(own), *ends):
            return told
    return None


def _by_evaluations(evaluations: Sequence[Mapping]) -> str | None:
    """The last evaluation against the one in which the held-out reward stood best, for every held-out reward."""
    *earlier, last = evaluations or ({},)
    for name in [name for name, figures in last.get("rewards", {}).items() if figures["held_out"]]:
        alike = [row for row in earlier if comparable(row, last) and measured(row["rewards"][name]["mean"])]
        if not alike or not measured(last["rewards"][name]["mean"]):
            continue
        best = max(alike, key=lambda row: row["rewards"][name]["mean"])
        trained = [other for other, figures in last["rewards"].items() if not figures["held_out"]]
        rises = {other: shift(gains(best, last, other)) for other in trained}
        when = f"on the fixed prompts, from iteration {best['iteration']} to {last['iteration']}"
        ends = [row["rewards"][name]["mean"] for row in (best, last)]
        if told := _told(when, rises, name, shift(gains(best, last, name)), *ends):
            return told
    return None


def _told(when: str, rises: Mapping[str, float], name: str, fall: float, before: float, after: float) -> str | None:
    """The sentence, where there is something to tell."""
    rising = [f"{other} (z = {z:.1f})" for other, z in rises.items() if z > RISE]
    if not rising or fall >= FALL:
        return None
    return (
        f"this looks like reward hacking: {when}, trained rewards rise, {', '.join(rising)}, while {name}, which is held out, "
        f"falls from {before:.3g} to {after:.3g} (z = {fall:.1f}). Fix: take an earlier checkpoint, lower learning_rate, or "
        "raise kl_coefficient"
    )


def comparable(before: Mapping, after: Mapping) -> bool:
    """Whether both evaluations scored the same prompts and as many seeds by the same rewards."""
    same = before.get("prompts") == after.get("prompts") and before["rewards"].keys() == after["rewards"].keys()
    return same and all(
        len(figures["values"]) == len(after["rewards"][name]["values"]) for name, figures in before["rewards"].items()
    )


def gains(before: Mapping, after: Mapping, name: str) -> list[float]:
    """Of every pair of prompt and seed that was scored both times."""
    pairs = zip(before["rewards"][name]["values"], after["rewards"][name]["values"], strict=True)
    return [new - old for old, new in pairs if measured(old) and measured(new)]


def measured(value: float | None) -> bool:
    """What is NaN in a running process was read back from the file as null."""
    return value is not None and math.isfinite(value)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _name(key: str) -> str:
    return key.split("/", 1)[1].removesuffix("/mean")


def _means(rows: Sequence[Mapping], kind: str) -> list[str]:
    """The keys of the newest row that hold a mean of that kind."""
    return [key for key in (rows[-1] if rows else ()) if key.startswith(f"{kind}/") and key.endswith("/mean")]
