"""A comparison as tables, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..trainer.run.budget import BACKWARD, UNITS
from .comparison import EARLY, VERDICT_SEEDS

if TYPE_CHECKING:
    from .comparison import Row
    from .statistics import Interval


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
    scores: Mapping[str, Mapping[float, float]] = field(default_factory=dict)
    chosen: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, Sequence[float]] = field(default_factory=dict)
    declined: Mapping[str, Sequence[float]] = field(default_factory=dict)
    diverged: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """What the tables need to say beside their figures.

    Attributes:
        length: of every training: its iterations, or its budget in `unit`.
        judge: the held-out reward that scores are held against; empty where there is none.
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
    parts = [_head(facts), _scores(rows, sweep, facts), _times(rows, facts), _early(rows, facts)]
    parts += [_rewards(rows, facts), _cost(rows)]
    if sweep is not None:
        parts.append(_sweep(sweep))
    if facts.differing:
        parts.append(_differing(facts))
    parts.append([_notes(facts)])
    if any(row.declined for row in rows):
        declined = [
            f"{reward} of {row.name} with {count} of {len(row.seeds)} seeds"
            for row in rows
            for reward, count in row.declined.items()
        ]
        parts.append(
            [
                f"Held-out rewards that ended below where they began, by more than one standard error: {'; '.join(declined)}."
            ]
        )
    if any(row.unscored for row in rows):
        unscored = ", ".join(f"{row.name} {row.unscored}" for row in rows if row.unscored)
        parts.append(
            [f"Scores that no reward could give in the last evaluations, and which are in no mean: {unscored}."]
        )
    if facts.unfinished:
        lines = [f"- {name}: {why}" for name, why in facts.unfinished.items()]
        parts.append(["**Diverged, failed or not finished, and in no figure above:**", "", *lines])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _head(facts: Facts) -> list[str]:
    title = ["# Screening, without verdict", "", "One seed of each: what differs here may be chance. "]
    if not facts.screening:
        title = ["# Comparison", "", ""]
    title[-1] += (
        f"{facts.length} each. Judged on {facts.prompts} prompts × {facts.evaluation_seeds} seeds, by the deterministic sampler, "
        f"the same for all. Score: mean over {' and '.join(facts.score) or 'the trained rewards'} of the rise since before "
        "training, in standard deviations of that reward before training."
    )
    if not facts.screening:
        title[-1] += (
            " ± and brackets: 95 % of Student's t over training seeds, each by itself; differences are paired by seed, and bold "
            "where theirs is without 0. p is corrected for the number of workflows that have one, so the two may disagree: then "
            f"trust p. Fewer than {VERDICT_SEEDS} seeds have none, and no verdict."
        )
    return title


def _scores(rows: Sequence[Row], sweep: Sweep | None, facts: Facts) -> list[str]:
    head = ["workflow", "learning rate", "seeds", "final score", f"minus {facts.baseline}"]
    head += [] if facts.screening else ["p (Holm)"]
    head += ["area", f"minus {facts.baseline}", "std over seeds", "largest drop"]
    body = []
    for row in rows:
        untuned = sweep is not None and row.name not in sweep.chosen
        diverged = facts.diverged.get(row.name, 0)
        p = _p(row.corrected) if row.difference is None or row.difference.count >= VERDICT_SEEDS else "no verdict"
        body.append(
            [
                row.name,
                f"{row.learning_rate:g}{' (not tuned)' if untuned else ''}",
                f"{len(row.seeds)}{f', {diverged} diverged' if diverged else ''}",
                _plus_minus(row.final, "+.2f"),
                "" if row.difference is None else _bracketed(row.difference) + _pairs(row.difference, len(row.seeds)),
                *([] if facts.screening else [p]),
                _plus_minus(row.area, "+.2f"),
                "" if row.area_difference is None else _bracketed(row.area_difference),
                _number(row.deviation, ".2f"),
                _number(row.drop, ".2f"),
            ]
        )
    return _table(head, body)


def _times(rows: Sequence[Row], facts: Facts) -> list[str]:
    head = ["workflow"]
    for unit in UNITS:
        head += [f"{unit} to {facts.baseline}'s final score", f"of all that {facts.baseline} used"]
    head += [f"seed by seed ({facts.unit})", "seeds that reach it"]
    base = next(row for row in rows if row.name == facts.baseline)
    body = []
    for row in rows:
        cells = []
        for unit in UNITS:
            whole = base.used[unit][-1]
            cells += [_amount(row.reached[unit], 1, ",.0f"), _amount(row.reached[unit], whole, ".0%")]
        amounts = row.reached_by_seed[facts.unit]
        count = sum(map(math.isfinite, amounts))
        cells += [", ".join(_or_never(amount, ",.0f") for amount in amounts), f"{count} of {len(row.seeds)}"]
        body.append([row.name, *cells])
    return _table(head, body)


def _early(rows: Sequence[Row], facts: Facts) -> list[str]:
    """Nothing where there is only the baseline."""
    head, body = ["workflow"], []
    for share in EARLY:
        head += [f"score at {share:.0%} of {facts.baseline}'s {facts.unit}, minus its final one"]
        head += [f"{facts.judge} there, minus its final one"] if facts.judge else []
    for row in rows:
        cells = []
        for early in row.early:
            cells += [_bracketed(early.score)] + ([] if early.judge is None else [_bracketed(early.judge, "+.3f")])
        body += [[row.name, *cells]] if cells else []
    return _table(head, body) if body else []


def _amount(interval: Interval, whole: float, form: str) -> str:
    """In parts of the whole; empty where the unit was not measured."""
    if math.isnan(interval.mean) or math.isnan(whole):
        return ""
    mean = _or_never(interval.mean / whole, form)
    if math.isnan(interval.low):
        return mean
    return f"{mean} ({_or_never(interval.low / whole, form)} … {_or_never(interval.high / whole, form)})"


def _or_never(value: float, form: str) -> str:
    return "never" if math.isinf(value) else f"{value:{form}}"


def _pairs(difference: Interval, seeds: int) -> str:
    """How many seeds a difference is of, where these are not all seeds of the row."""
    return "" if difference.count == seeds else f", of {difference.count} seeds"


def _rewards(rows: Sequence[Row], facts: Facts) -> list[str]:
    trained, held_out = list(rows[0].gains), list(rows[0].held_out)
    head = ["workflow", *trained, "least", "spread"]
    head += [cell for name in held_out for cell in (f"{name} (held out)", f"minus {facts.baseline}")] + ["diversity"]
    head += [f"dominated in score and {facts.judge}"] if facts.judge else []
    body = [
        [
            row.name,
            *(_plus_minus(row.gains[name], "+.2f") for name in trained),
            f"{_number(row.gains[row.least].mean, '+.2f')} ({row.least})",
            _number(row.spread, ".2f"),
            *(cell for name in held_out for cell in _held_out(row, name)),
            _plus_minus(row.diversity, ".3f"),
            *(["**by none**" if row.undominated else ""] if facts.judge else []),
        ]
        for row in rows
    ]
    before = [cell for name in held_out for cell in (_number(facts.untrained_held_out[name], ".3f"), "")]
    untrained = ["before training", *("0" for _ in trained), "", "", *before, _number(facts.untrained_diversity, ".3f")]
    untrained += [""] if facts.judge else []
    return _table(head, [untrained, *body])


def _held_out(row: Row, name: str) -> tuple[str, str]:
    difference = row.held_out_difference.get(name)
    return _plus_minus(row.held_out[name], ".3f"), "" if difference is None else _bracketed(difference, "+.3f")


def _cost(rows: Sequence[Row]) -> list[str]:
    head = ["workflow", "iterations", "samples an iteration", "forwards an iteration", "of these with gradient"]
    head += ["seconds an iteration (median)", "forwards in all", "seconds in all", "KL to the untrained model"]
    body = [
        [
            row.name,
            f"{row.iterations:,.0f}",
            str(row.samples),
            f"{row.forwards:.0f}",
            f"{row.with_gradient:.0f}",
            f"{row.seconds:.2f}",
            *(_number(row.used[unit][-1], ",.0f") for unit in UNITS),
            _number(row.kl[-1].mean, ".3g"),
        ]
        for row in rows
    ]
    note = (
        "Forwards are samples × denoising steps through the network. Those in all, and to a score, also count the backward pass "
        f"that follows one with gradient, as {BACKWARD:g} forwards. Seconds in all, and to a score, are on the CPU seconds of "
        "computing, of all threads of the process, so that what else the machine does changes little; on an accelerator they "
        "are by the clock, as those of an iteration. Evaluations are in none. KL: mean of ‖v − v_ref‖² over the last iterations."
    )
    return [*_table(head, body), "", note]


def _sweep(sweep: Sweep) -> list[str]:
    rates = sorted({rate for some in sweep.rates.values() for rate in some})
    body = []
    for name, by_rate in sweep.scores.items():
        chosen, cells = sweep.chosen.get(name), []
        for rate in rates:
            cell = _number(by_rate.get(rate, math.nan), "+.2f") or "no score"
            cell = "diverged" if rate in sweep.diverged.get(name, ()) else cell
            cell = f"{cell} ↓" if rate in sweep.declined.get(name, ()) else cell
            cells.append("" if rate not in sweep.rates[name] else f"**{cell}**" if rate == chosen else cell)
        edge = chosen in (sweep.rates[name][0], sweep.rates[name][-1])
        body.append([name, *cells, "at an edge of the sweep" if edge else ""])
    seeds = ", ".join(map(str, sweep.seeds))
    return [
        f"Learning rates, tuned equally: final score after {sweep.length}, mean over seeds {seeds}, which are "
        "used for nothing else. The best is bold, and the one above. ↓: a held-out reward ended below where it began, by more "
        "than one standard error over the pairs of prompt and seed. What rises there was hacked, so such a rate is chosen only "
        "where there is no other.",
        "",
        *_table(["workflow", *(f"{rate:g}" for rate in rates), ""], body),
    ]


def _differing(facts: Facts) -> list[str]:
    lines = [f"- {name}: {'; '.join(differences) or 'nothing'}" for name, differences in facts.differing.items()]
    return [
        f"What differs from {facts.baseline} (learning rates apart):",
        "",
        *lines,
    ]


def _notes(facts: Facts) -> str:
    return (
        "Area: mean height of the score's line over forwards, from before training to the end. To "
        f"{facts.baseline}'s final score: where the line through the evaluations gets there and stays, as the mean over the "
        "seeds that both have; in brackets, from where the 95 % interval of the paired difference to that score touches 0 to "
        "where it lies above; seed by seed, to its mean over seeds. Never: not within what was used. Least and spread: the "
        "smallest of the rises, and their standard deviation over the rewards. Largest drop: how far the score fell below its "
        "best so far, mean over seeds. Dominated by none: no other workflow is as good or better "
        f"in both, and better in one. Diversity: mean over prompts of 1 - cos of the features ({facts.features}) of a prompt's "
        "pictures at different seeds, of which it takes two. p: paired t test of final scores, corrected after Holm."
    )


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)]


def _plus_minus(interval: Interval, form: str) -> str:
    if math.isnan(interval.mean):
        return ""
    mean = f"{interval.mean:{form}}"
    return mean if math.isnan(interval.low) else f"{mean} ± {interval.mean - interval.low:{form.replace('+', '')}}"


def _bracketed(interval: Interval, form: str = "+.2f") -> str:
    if math.isnan(interval.low):
        return _number(interval.mean, form)
    text = f"{interval.mean:{form}} ({interval.low:{form}} … {interval.high:{form}})"
    return text if interval.low <= 0 <= interval.high else f"**{text}**"


def _number(value: float, form: str) -> str:
    return "" if math.isnan(value) else f"{value:{form}}"


def _p(value: float) -> str:
    return "" if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"
