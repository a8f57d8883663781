"""What `otca serve` and the page say to each other.

    GET  /run               {"version": 1, "id", "status", "total", "started", "error", "node", "reason", "files", "adapters"}
    GET  /run/files/NAME    bytes of one of these files, with Range
    POST /run/stop          {}

`files` and `adapters` are lists of [name, size in bytes, time of the last change in nanoseconds]. Every request carries
`Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import re
from typing import Any

from ...host.checks import MOMENT, TEXT, WHOLE, check, is_whole, maybe, one_of
from ...host.names import plain_name
from ...trainer.run.folder import (
    ADAPTERS,
    CANVAS,
    CHANGES,
    EVALUATIONS,
    LOG,
    METRICS,
    PICTURES,
    SAMPLES,
    STATES,
    WORKFLOW,
)

VERSION = 1
TOKEN_VARIABLE = "OTCA_SERVE_TOKEN"
MOST_FILES = 20_000
MOST_STATE_BYTES = 4 * 1024**2
GROWING = (METRICS, EVALUATIONS, CHANGES, LOG)  # which a training only adds to, unless it goes back to a checkpoint
WHOLE_FILES = (WORKFLOW, CANVAS, *PICTURES)
_SAMPLE = re.compile(rf"{SAMPLES}/[0-9]{{6,9}}\.png", re.ASCII)


def _is_plain(name: Any) -> bool:
    try:
        return plain_name(name) == name
    except ValueError:
        return False


FIELDS = {
    "version": ("the version of this page, 1", lambda value: value == VERSION),
    "id": ("a plain name", _is_plain),
    "status": one_of(*STATES),
    "total": maybe(WHOLE),
    "started": maybe(MOMENT),
    "error": maybe(TEXT),
    "node": maybe(TEXT),
    "reason": maybe(TEXT),
    "files": ("a list of [name, size, time]", lambda value: _is_listing(value, is_shown)),
    "adapters": ("a list of [name, size, time]", lambda value: _is_listing(value, ADAPTERS.__contains__)),
}


def is_shown(name: Any) -> bool:
    """Whether a file of a run, by its path in the run's folder, is one that is shown."""
    return isinstance(name, str) and (name in GROWING or name in WHOLE_FILES or _SAMPLE.fullmatch(name) is not None)


def check_state(content: Any) -> dict[str, Any]:
    """The answer to GET /run. Raises ValueError for what is none."""
    check(content, dict, FIELDS)
    return content


def _is_listing(value: Any, good) -> bool:
    return isinstance(value, list) and len(value) <= MOST_FILES and all(_is_entry(entry, good) for entry in value)


def _is_entry(entry: Any, good) -> bool:
    return isinstance(entry, list) and len(entry) == 3 and good(entry[0]) and all(map(is_whole, entry[1:]))
