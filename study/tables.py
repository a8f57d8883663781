"""Tables and figures in Markdown and CSV, as all studies write them. NaN stands for what is missing, and is never printed."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence

from .statistics import Interval


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    line = "| {} |".format
    return [line(" | ".join(head)), f"|{'---|' * len(head)}", *(line(" | ".join(row)) for row in body)]


def as_csv(head: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    """The same in full precision; empty for None and NaN."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([["" if value is None or value != value else value for value in row] for row in body])
    return text.getvalue()


def number(value: float, form: str, missing: str = "") -> str:
    return missing if math.isnan(value) else f"{value:{form}}"


def plus_minus(interval: Interval, form: str) -> str:
    """`mean ± half of the interval`, as far as there are such."""
    if math.isnan(interval.mean) or math.isnan(interval.low):
        return number(interval.mean, form)
    return f"{interval.mean:{form}} ± {interval.mean - interval.low:{form.replace('+', '')}}"


def bracketed(interval: Interval, form: str, missing: str = "") -> str:
    """`mean (low … high)`; a difference, which is written with its sign, is bold if its interval does not hold 0."""
    if math.isnan(interval.low):
        return number(interval.mean, form, missing)
    text = f"{interval.mean:{form}} ({interval.low:{form}} … {interval.high:{form}})"
    return text if "+" not in form or interval.low <= 0 <= interval.high else f"**{text}**"
