"""From votes to pairs: what people said of groups of pictures, as the list that Preference Pairs reads. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path

from ..host.files import write_text
from ..trainer.pairs.reading import CHOSEN, FILE, REJECTED
from ..trainer.rewards.vote import votes


def write(folder: Path) -> tuple[Path, int]:
    """Writes the list of a folder of votes, beside its pictures; what was written before is written again.

    A pair for each two pictures of a vote of which one was better. Votes on videos are left out.

    Returns:
        The file, and the number of its pairs.

    Raises:
        ValueError: no vote prefers one picture to another.
        Damaged: the file of votes cannot be read.
    """
    lines = [
        json.dumps({"prompt": vote.prompt, CHOSEN: vote.pictures[better], REJECTED: vote.pictures[worse]})
        for vote in votes.standing(votes.read(folder / votes.FILE))
        for better, worse in vote.pairs
        if vote.pictures[better].endswith(".png")
    ]
    if not lines:
        raise ValueError(
            f"{folder / votes.FILE} has no vote by which one picture is better than another. Fix: vote first, or give the "
            "folder of votes as --folder"
        )
    write_text(folder / FILE, "\n".join(lines) + "\n")
    return folder / FILE, len(lines)
