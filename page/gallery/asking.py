"""Which two pictures of a prompt to ask about next."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from ...trainer.opinions.kinds import PAIR
from .index import Index
from .opinions import Opinions

MOST = 10  # pairs of one answer
TRIES = 400


def pairs(gallery: Index, opinions: Opinions, skip: int, taste: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
    """{pair: two ids, prompt} of pairs that nothing was said about: with a taste those of which it is least sure come first, else
    any. `skip`: how many were passed over, so that others come.
    """
    said = {frozenset(opinion.pictures) for opinion in opinions.store.standing(PAIR)}
    groups: dict[str, dict[str, str]] = {}
    for id, prompt, hash in gallery.rows("id, prompt, hash", "prompt != '' and hash != ''"):
        groups.setdefault(prompt, {}).setdefault(hash, id)  # of doubles one
    several = [(prompt, list(each)) for prompt, each in groups.items() if len(each) > 1]
    generator, found = random.Random(f"{len(said)} {skip}"), {}
    for _ in range(TRIES if several else 0):
        prompt, hashes = generator.choice(several)
        pair = generator.sample(hashes, 2)
        if frozenset(pair) not in said:
            found.setdefault(frozenset(pair), (prompt, pair))
    chosen = list(found.values())
    if taste:
        chosen.sort(key=lambda one: abs(taste.get(one[1][0], 0.0) - taste.get(one[1][1], 0.0)))
    return [{"pair": [groups[prompt][hash] for hash in pair], "prompt": prompt} for prompt, pair in chosen[:MOST]]
