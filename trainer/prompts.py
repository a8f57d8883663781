"""The prompt dataset: reading it, and which prompts an iteration takes."""

from __future__ import annotations

import functools
import json
import logging
from pathlib import Path

import numpy as np

from . import host
from .types import Prompts

logger = logging.getLogger(__name__)


class PromptError(ValueError):
    """A prompt source that cannot be used, with the fix."""


def read_prompts(text: str, file: str = "") -> list[str]:
    """The prompts of a text box (one a line), or of a .txt or .jsonl file when one is named.

    Raises:
        PromptError: no file there, a line that is no object with a `prompt`, or no prompt at all.
    """
    if not file:
        prompts = _lines(text)
        source = "the text box"
    else:
        try:
            path = source = host.find_file(file)
        except FileNotFoundError as error:
            raise PromptError(f"{error}. Fix: give the path of a .txt or .jsonl file") from error
        content = path.read_text(encoding="utf-8-sig")
        prompts = _json_lines(content, path) if path.suffix in (".jsonl", ".json") else _lines(content)
    if not prompts:
        raise PromptError(f"{source} has no prompt. Fix: write one prompt a line")
    return prompts


def choose(prompts: list[str], count: int, index: int, seed: int | None) -> Prompts:
    """The `count` prompts of iteration `index` of an endless pass over the dataset.

    Args:
        seed: of a new order in every pass; None keeps the file's order.
    """
    positions = range(index * count, (index + 1) * count)
    orders: dict[int, np.ndarray] = {}
    texts = []
    for position in positions:
        epoch, place = divmod(position, len(prompts))
        if seed is not None and epoch not in orders:
            orders[epoch] = np.random.default_rng([seed, epoch]).permutation(len(prompts))
        texts.append(prompts[orders[epoch][place] if seed is not None else place])
    return Prompts(tuple(texts), tuple(positions))


@functools.cache
def warn_of_two_sources(text: str, file: str) -> None:
    """Says once that the text box is not used while a file is named."""
    if text.strip() and file:
        logger.warning("prompts come from the file %s; the text box is not used: empty `file` to use it", file)


def file_state(file: str) -> str:
    """Changes when the file does, so that an edited prompt file is read again."""
    if not file:
        return ""
    state = host.find_file(file).stat()
    return f"{state.st_mtime_ns}:{state.st_size}"


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _json_lines(content: str, path: Path) -> list[str]:
    prompts = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)["prompt"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise PromptError(
                f'{path}, line {number} is no object like {{"prompt": "…"}} ({error!r}). Fix: one such object a line'
            ) from error
        prompts.append(str(prompt).strip())
    return prompts
