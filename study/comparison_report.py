"""A comparison as tables, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..trainer.run.budget import BACKWARD, UNITS
from .comparison import VERDICT_SEEDS, Row
from .statistics import Interval, bracketed, number, plus_minus, table


@dataclass(frozen=True)
class Sweep:
    """How learning rates were chosen, by workflow; one that was given a single rate is not in it.

    Attributes:
        length: of the trainings.
        scores: each rate's mean final score over the tuning seeds; one without a score is left out.
        rates: that were asked for.
        declined: rates at which a held-out reward fell.
        diverged: rates at which a training did.
    """

    seeds: Sequence[int]
    length: str
    scores: dict[str, dict[float, float]] = field(default_factory=dict)
    chosen: dict[str, float] = field(default_factory=dict)
    rates: dict[str, Sequence[float]] = field(default_factory=dict)
    declined: dict[str, Sequence[float]] = field(default_factory=dict)
    diverged: dict[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """The facts that the tables need beside their figures.

    Attributes:
        length: of every training: its iterations, or its budget in `unit`.
        judge: the held-out reward that scores are held against; empty: without a judge.
        score: rewards that the score is the mean of; empty: the trained ones.
        differing: {workflow: what differs from the baseline's}.
        diverged: {workflow: how many of its trainings}.
        unfinished: {training: why}.
    """

    baseline: str
    length: str
    unit: str
    screening: bool
    judge: str
    score: Sequence[str]
    prompts: int
    evaluation_seeds: int
    features: str
    untrained_diversity: float
    untrained_held_out: Mapping[str, float]
    differing: Mapping[str, Sequence[str]]
    diverged: Mapping[str, int]
    unfinished: Mapping[str, str]


def markdown(rows: Sequence[Row], sweep: Sweep | None, facts: Facts) -> str:
    """All tables, and what has to be known to read them."""
    parts = [_head(facts), _scores(rows, sweep, facts), _times(rows, facts)]
    parts += [_rewards(rows, facts), _cost(rows)]
    if sweep is not None:
        parts.append(_sweep(sweep))
    if facts.differing:
        lines = [f"- {name}: {'; '.join(differences) or 'nothing'}" for name, differences in facts.differing.items()]
        parts.append([f"What differs from {facts.baseline} (learning rates apart):", "", *lines])
    parts.append([_NOTES.format(baseline=facts.baseline, features=facts.features)])
    declined = [
        f"{reward} of {row.name} with {count} of {len(row.seeds)} seeds"
        for row in rows
        for reward, count in row.declined.items()
    ]
    if declined:
        text = "Held-out rewards that ended below where they began, by more than one standard error"
        parts.append([f"{text}: {'; '.join(declined)}."])
    if unscored := [f"{row.name} {row.unscored}" for row in rows if row.unscored]:
        text = "Scores that no reward could give in the last evaluations, and which are in no mean"
        parts.append([f"{text}: {', '.join(unscored)}."])
    if facts.unfinished:
        lines = [f"- {name}: {why}" for name, why in facts.unfinished.items()]
        parts.append(["**Diverged, failed or not finished, and in no figure above:**", "", *lines])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _columns(rows: Sequence[Row], columns: Sequence[tuple[str, Callable[[Row], str]]]) -> list[str]:
    """A table with a line a workflow, by the head of each column and what it says of a row."""
    return table(
        ["workflow", *(head for head, _ in columns)], [[row.name, *(cell(row) for _, cell in columns)] for row in rows]
    )


def _head(facts: Facts) -> list[str]:
    judged = (
        f"{facts.length} each. Judged on {facts.prompts} prompts × {facts.evaluation_seeds} seeds, by the deterministic sampler, "
        f"the same for all. Score: mean over {' and '.join(facts.score) or 'the trained rewards'} of the rise since before "
        "training, in standard deviations of that reward before training."
    )
    if facts.screening:
        return ["# Screening, without verdict", "", f"One seed of each: what differs here may be chance. {judged}"]
    intervals = (
        "± and brackets: 95 %, clustered by training seed and prompt, each by itself; differences are paired by seed and "
        "picture, and bold where theirs is without 0. p is corrected for the number of workflows that have one, so the two may "
        f"disagree: then trust p. Fewer than {VERDICT_SEEDS} seeds have none, and no verdict."
    )
    return ["# Comparison", "", f"{judged} {intervals}"]


def _scores(rows: Sequence[Row], sweep: Sweep | None, facts: Facts) -> list[str]:
    def rate(row: Row) -> str:
        untuned = sweep is not None and row.name not in sweep.chosen
        return f"{row.learning_rate:g}{' (not tuned)' if untuned else ''}"

    def seeds(row: Row) -> str:
        diverged = facts.diverged.get(row.name, 0)
        return f"{len(row.seeds)}{f', {diverged} diverged' if diverged else ''}"

    def difference(row: Row) -> str:
        """The difference, with its number of seeds if that is not the number of the row."""
        if row.difference is None:
            return ""
        count = row.difference.count
        return bracketed(row.difference, "+.2f") + ("" if count == len(row.seeds) else f", of {count} seeds")

    def p(row: Row) -> str:
        if row.difference is not None and row.difference.count < VERDICT_SEEDS:
            return "no verdict"
        return "< 0.001" if row.corrected < 0.001 else number(row.corrected, ".3f")

    return _columns(
        rows,
        [
            ("learning rate", rate),
            ("seeds", seeds),
            ("final score", lambda row: plus_minus(row.final, "+.2f")),
            (f"minus {facts.baseline}", difference),
            *([] if facts.screening else [("p (Holm)", p)]),
            ("area", lambda row: plus_minus(row.area, "+.2f")),
            (f"minus {facts.baseline}", lambda row: bracketed(row.area_difference, "+.2f")),
            ("std over seeds", lambda row: number(row.deviation, ".2f")),
            ("largest drop", lambda row: number(row.drop, ".2f")),
        ],
    )


def _times(rows: Sequence[Row], facts: Facts) -> list[str]:
    base = next(row for row in rows if row.name == facts.baseline)
    columns: list[tuple[str, Callable[[Row], str]]] = []
    for unit in UNITS:
        whole = base.used[unit][-1]
        columns += [
            (f"{unit} to {facts.baseline}'s final score", lambda row, u=unit: _amount(row.reached[u], 1, ",.0f")),
            (f"of all that {facts.baseline} used", lambda row, u=unit, w=whole: _amount(row.reached[u], w, ".0%")),
        ]

    def reached(row: Row) -> str:
        return ", ".join(_or_never(amount, ",.0f") for amount in row.reached_by_seed[facts.unit])

    def count(row: Row) -> str:
        return f"{sum(map(math.isfinite, row.reached_by_seed[facts.unit]))} of {len(row.seeds)}"

    return _columns(rows, [*columns, (f"seed by seed ({facts.unit})", reached), ("seeds that reach it", count)])


def _amount(interval: Interval, whole: float, form: str) -> str:
    """In parts of the whole; empty if the unit was not measured."""
    if math.isnan(interval.mean) or math.isnan(whole):
        return ""
    mean = _or_never(interval.mean / whole, form)
    if math.isnan(interval.low):
        return mean
    return f"{mean} ({_or_never(interval.low / whole, form)} … {_or_never(interval.high / whole, form)})"


def _or_never(value: float, form: str) -> str:
    return "never" if math.isinf(value) else f"{value:{form}}"


def _rewards(rows: Sequence[Row], facts: Facts) -> list[str]:
    trained, held_out = list(rows[0].gains), list(rows[0].held_out)
    columns: list[tuple[str, Callable[[Row], str]]] = [
        *((name, lambda row, n=name: plus_minus(row.gains[n], "+.2f")) for name in trained),
        ("least", lambda row: f"{number(row.gains[row.least].mean, '+.2f')} ({row.least})"),
        ("spread", lambda row: number(row.spread, ".2f")),
    ]
    for name in held_out:
        columns += [
            (f"{name} (held out)", lambda row, n=name: plus_minus(row.held_out[n], ".3f")),
            (f"minus {facts.baseline}", lambda row, n=name: bracketed(row.held_out_difference.get(n), "+.3f")),
        ]
    columns.append(("diversity", lambda row: plus_minus(row.diversity, ".3f")))
    untrained = ["before training", *("0" for _ in trained), "", ""]
    untrained += [cell for name in held_out for cell in (number(facts.untrained_held_out[name], ".3f"), "")]
    untrained.append(number(facts.untrained_diversity, ".3f"))
    if facts.judge:
        columns.append((f"dominated in score and {facts.judge}", lambda row: "**by none**" if row.undominated else ""))
        untrained.append("")
    head, rule, *body = _columns(rows, columns)
    return [head, rule, *table(untrained, [])[:1], *body]


def _cost(rows: Sequence[Row]) -> list[str]:
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("iterations", lambda row: f"{row.iterations:,.0f}"),
        ("samples an iteration", lambda row: str(row.samples)),
        ("forwards an iteration", lambda row: f"{row.forwards:.0f}"),
        ("of these with gradient", lambda row: f"{row.with_gradient:.0f}"),
        ("seconds an iteration (median)", lambda row: f"{row.seconds:.2f}"),
        *((f"{unit} in all", lambda row, u=unit: number(row.used[u][-1], ",.0f")) for unit in UNITS),
        ("KL to the untrained model", lambda row: number(row.kl[-1].mean, ".3g")),
    ]
    return [*_columns(rows, columns), "", _COST]


def _sweep(sweep: Sweep) -> list[str]:
    rates = sorted({rate for some in sweep.rates.values() for rate in some})
    body = []
    for name, by_rate in sweep.scores.items():
        chosen, cells = sweep.chosen.get(name), []
        for rate in rates:
            cell = number(by_rate.get(rate, math.nan), "+.2f", "no score")
            cell = "diverged" if rate in sweep.diverged.get(name, ()) else cell
            cell = f"{cell} ↓" if rate in sweep.declined.get(name, ()) else cell
            cells.append("" if rate not in sweep.rates[name] else f"**{cell}**" if rate == chosen else cell)
        edge = chosen in (sweep.rates[name][0], sweep.rates[name][-1])
        body.append([name, *cells, "at an edge of the sweep" if edge else ""])
    text = (
        f"Learning rates, tuned equally: final score after {sweep.length}, mean over seeds {', '.join(map(str, sweep.seeds))}, "
        "which are used for nothing else. The best is bold, and the one above. ↓: a held-out reward ended below where it began, "
        "by more than one standard error over the pairs of prompt and seed. What rises there was hacked, so such a rate is "
        "chosen only if there is no other."
    )
    return [text, "", *table(["workflow", *(f"{rate:g}" for rate in rates), ""], body)]


_COST = (
    "Forwards are samples × denoising steps through the network. Those in all, and to a score, also count the backward pass "
    f"that follows one with gradient, as {BACKWARD:g} forwards. Seconds in all, and to a score, are on the CPU seconds of "
    "computing, of all threads of the process, so that what else the machine does changes little; on an accelerator they "
    "are by the clock, as those of an iteration. Evaluations are in none. KL: mean of ‖v − v_ref‖² over the last iterations."
)
_NOTES = (
    "Area: mean height of the score's line over forwards, from before training to the end. To {baseline}'s final score: where "
    "the line through the evaluations gets there and stays, as the mean over the seeds that both have; in brackets, from where "
    "the 95 % interval of the paired difference to that score touches 0 to where it lies above; seed by seed, to its mean over "
    "seeds. Never: not within what was used. Least and spread: the smallest of the rises, and their standard deviation over the "
    "rewards. Largest drop: how far the score fell below its best so far, mean over seeds. Dominated by none: no other workflow "
    "is as good or better in both, and better in one. Diversity: mean over prompts of 1 - cos of the features ({features}) of a "
    "prompt's pictures at different seeds, of which it takes two. p: paired t test of final scores, corrected after Holm."
)
