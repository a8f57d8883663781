"""Which two pictures of a prompt to ask about next."""

from __future__ import annotations

import random
from typing import Any

from ...trainer.opinions.kinds import PAIR
from .index import Index
from .opinions import Opinions
from .taste import Taste

MOST = 10  # pairs of one answer
TRIES = 400


def pairs(gallery: Index, opinions: Opinions, taste: Taste, skip: int) -> list[dict[str, Any]]:
    """{pair: two ids, prompt} of pairs that nothing was said about: those that tell most about the taste, if it was begun, else
    any. `skip`: how many were passed over, so that others come.
    """
    groups: dict[str, dict[str, str]] = {}
    for id, prompt, hash in gallery.rows("id, prompt, hash", "prompt != '' and hash != ''"):
        groups.setdefault(prompt, {}).setdefault(hash, id)  # of doubles one
    prompts = {hash: prompt for prompt, each in groups.items() for hash in each}
    several = [list(each) for each in groups.values() if len(each) > 1]
    said = {frozenset(opinion.pictures) for opinion in opinions.store.standing(PAIR)}
    generator = random.Random(f"{len(said)} {skip}")
    generator.shuffle(several)
    found = taste.pairs(several[:MOST], MOST)[skip:]
    for _ in range(TRIES if several and not found else 0):
        one, other = generator.sample(generator.choice(several), 2)
        if frozenset((one, other)) not in said | set(map(frozenset, found)):
            found.append((one, other))
    return [
        {"pair": [groups[prompts[hash]][hash] for hash in pair], "prompt": prompts[pair[0]]} for pair in found[:MOST]
    ]
