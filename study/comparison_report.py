"""A comparison as tables, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .comparison import Row
    from .statistics import Interval


@dataclass(frozen=True)
class Sweep:
    """How learning rates were chosen: each one's mean final score over the tuning seeds; one without a score is left out."""

    seeds: Sequence[int]
    iterations: int
    scores: Mapping[str, Mapping[float, float]] = field(default_factory=dict)  # {workflow: {rate: score}}
    chosen: Mapping[str, float] = field(default_factory=dict)
    rates: Sequence[float] = ()  # that were asked for
    declined: Mapping[str, Sequence[float]] = field(
        default_factory=dict
    )  # {workflow: rates at which a held-out reward fell}


@dataclass(frozen=True)
class Facts:
    """What the tables need to say beside their figures."""

    baseline: str
    samples: int  # to an iteration
    prompts: int
    evaluation_seeds: int
    features: str
    untrained_diversity: float
    untrained_held_out: Mapping[str, float]
    differing: Mapping[str, Sequence[str]]  # {workflow: what differs from the baseline's}
    unfinished: Mapping[str, str]  # {training: why}


def markdown(rows: Sequence[Row], sweep: Sweep | None, facts: Facts) -> str:
    parts = [_head(rows, facts), _scores(rows, facts), _rewards(rows, facts), _cost(rows, facts)]
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
        parts.append(["**Not finished, and in no figure above:**", "", *lines])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _head(rows: Sequence[Row], facts: Facts) -> list[str]:
    total = rows[0].samples[-1]
    return [
        "# Comparison",
        "",
        f"{total:,} samples each: {total // facts.samples} iterations of {facts.samples}. Judged on "
        f"{facts.prompts} prompts × {facts.evaluation_seeds} seeds, by the deterministic sampler, the same for all. Score: mean "
        "over the trained rewards of the rise since before training, in standard deviations of that reward before training. "
        "± and brackets: 95 % of Student's t over training seeds, each by itself; differences are paired by seed, and bold where "
        "theirs is without 0. p is corrected for the number of workflows, so the two may disagree: then trust p.",
    ]


def _scores(rows: Sequence[Row], facts: Facts) -> list[str]:
    head = ["workflow", "learning rate", "seeds", "final score", f"minus {facts.baseline}", "p (Holm)"]
    head += [f"samples to {facts.baseline}'s score", "std over seeds", "largest drop"]
    return _table(
        head,
        [
            [
                row.name,
                f"{row.learning_rate:g}",
                str(len(row.seeds)),
                _plus_minus(row.final, "+.2f"),
                "" if row.difference is None else _bracketed(row.difference) + _pairs(row.difference, len(row.seeds)),
                _p(row.corrected),
                f"{row.reached:,.0f} ({row.reached_by} of {len(row.seeds)} seeds)"
                if row.reached is not None
                else f"not reached ({row.reached_by} of {len(row.seeds)} seeds)",
                _number(row.deviation, ".2f"),
                _number(row.drop, ".2f"),
            ]
            for row in rows
        ],
    )


def _pairs(difference: Interval, seeds: int) -> str:
    """How many seeds a difference is of, where these are not all seeds of the row."""
    return "" if difference.count == seeds else f", of {difference.count} seeds"


def _rewards(rows: Sequence[Row], facts: Facts) -> list[str]:
    trained, held_out = list(rows[0].gains), list(rows[0].held_out)
    head = ["workflow", *trained, "least", "spread"]
    head += [cell for name in held_out for cell in (f"{name} (held out)", f"minus {facts.baseline}")] + ["diversity"]
    body = [
        [
            row.name,
            *(_plus_minus(row.gains[name], "+.2f") for name in trained),
            f"{_number(row.gains[row.least].mean, '+.2f')} ({row.least})",
            _number(row.spread, ".2f"),
            *(cell for name in held_out for cell in _held_out(row, name)),
            _plus_minus(row.diversity, ".3f"),
        ]
        for row in rows
    ]
    before = [cell for name in held_out for cell in (_number(facts.untrained_held_out[name], ".3f"), "")]
    untrained = ["before training", *("0" for _ in trained), "", "", *before, _number(facts.untrained_diversity, ".3f")]
    return _table(head, [untrained, *body])


def _held_out(row: Row, name: str) -> tuple[str, str]:
    difference = row.held_out_difference.get(name)
    return _plus_minus(row.held_out[name], ".3f"), "" if difference is None else _bracketed(difference, "+.3f")


def _cost(rows: Sequence[Row], facts: Facts) -> list[str]:
    head = ["workflow", "forwards an iteration", "of these with gradient"]
    head += [f"forwards to {facts.baseline}'s score", "seconds an iteration (median)"]
    body = [
        [
            row.name,
            f"{row.forwards:.0f}",
            f"{row.with_gradient:.0f}",
            "not reached" if row.reached is None else f"{row.reached / facts.samples * row.forwards:,.0f}",
            f"{row.seconds:.2f}",
        ]
        for row in rows
    ]
    note = (
        "Forwards are samples × denoising steps through the network, evaluations left out; a backward pass follows those with "
        "gradient. Seconds depend on what else the machine did, forwards do not."
    )
    return [*_table(head, body), "", note]


def _sweep(sweep: Sweep) -> list[str]:
    rates = sorted(sweep.rates)
    body = []
    for name, by_rate in sweep.scores.items():
        cells = [_number(by_rate.get(rate, math.nan), "+.2f") or "no score" for rate in rates]
        fallen = sweep.declined.get(name, ())
        cells = [f"{cell} ↓" if rate in fallen else cell for rate, cell in zip(rates, cells, strict=True)]
        chosen = [
            f"**{cell}**" if rate == sweep.chosen.get(name) else cell for rate, cell in zip(rates, cells, strict=True)
        ]
        edge = sweep.chosen.get(name) in (rates[0], rates[-1])
        body.append([name, *chosen, "at an edge of the sweep" if edge else ""])
    seeds = ", ".join(map(str, sweep.seeds))
    return [
        f"Learning rates, tuned equally: final score after {sweep.iterations} iterations, mean over seeds {seeds}, which are "
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
        f"Least and spread: the smallest of the rises, and their standard deviation over the rewards. Largest drop: how far the "
        f"score fell below its best so far, mean over seeds. Samples to {facts.baseline}'s score: where the mean curve first "
        f"gets to its final score (of the seeds that both have). Diversity: mean over prompts of 1 - cos of the features "
        f"({facts.features}) of a prompt's pictures at different seeds, of which it takes two. p: paired t test of final scores, "
        "corrected after Holm over the workflows."
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
