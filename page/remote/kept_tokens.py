"""The tokens of the runs that are watched: {key of the run: token}, in a file that its owner alone may read.

It lies beside the file of what was allowed by clicks, and never in a run's folder, which may be shared. Where clicks are not
remembered, tokens are kept until ComfyUI ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path

from ...host import files, json_files
from ...host.access import remembered
from ...host.places import place

NAME = "remote_tokens.json"
MOST_BYTES = 1024**2

_here: dict[str, str] = {}  # of this process
_writing = threading.Lock()


def of(key: str) -> str | None:
    """The token of that key; None where it was forgotten, or the file cannot be read."""
    if key not in _here and (path := _file()):
        with contextlib.suppress(files.Damaged):
            _here.update(_read(path))
    return _here.get(key)


def keep(key: str, token: str) -> None:
    """Raises OSError, or Damaged for a file that is left as it is."""
    with _writing:
        _here[key] = token
        if path := _file():
            _write(path, {**_read(path), key: token})


def forget(key: str) -> None:
    """Forgets a token, if it is there and the file can be read. Raises OSError."""
    with _writing, contextlib.suppress(files.Damaged):
        _here.pop(key, None)
        if (path := _file()) and key in (content := _read(path)):
            _write(path, {other: token for other, token in content.items() if other != key})


def _write(path: Path, content: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Created for the owner alone: permissions that come later come too late.
    files.write_text(path, json.dumps(content, indent=1), mode=0o600)


@place("tokens", "tokens of the runs elsewhere that the page watches", "their copies are no longer brought up to date")
def _file(_: object = None) -> Path | None:
    path = remembered.file()
    return path and Path(os.path.realpath(path.with_name(NAME)))


def _read(path: Path) -> dict[str, str]:
    content = json_files.read_json(path, most_bytes=MOST_BYTES, fix="mend it, or delete it and watch the runs again")
    return {key: token for key, token in (content or {}).items() if isinstance(token, str)}
