"""What the notes and lights of the templates say, against a rehearsal of the same network of diffusers at its true size."""

from __future__ import annotations

import pytest

from comfyui_otca.bench.memory import COUNTERPARTS, of_template
from comfyui_otca.trainer.memory.case import UNDECODING, UPDATE

# diffusers' decoder of Krea 2 keeps twice what ComfyUI's does (bench/memory.md), in the largest phase.
OTHER_DECODER = "krea2"


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_a_templates_estimate_is_within_10_percent_of_its_rehearsal(name, everything):
    """Minutes for all of them, so in `make test-all`."""
    if not everything:
        pytest.skip("a rehearsal at true size takes up to a minute: --everything")
    counted, rehearsed = (case.needs for case in of_template(name))
    assert counted.totals[UPDATE] / rehearsed.totals[UPDATE] == pytest.approx(1, abs=0.1)
    if name == OTHER_DECODER:
        without = [
            {phase: total for phase, total in found.totals.items() if phase != UNDECODING}
            for found in (counted, rehearsed)
        ]
        ours, theirs = (max(totals.values()) for totals in without)
        assert ours / theirs == pytest.approx(1, abs=0.1)
    else:
        assert counted.total / rehearsed.total == pytest.approx(1, abs=0.1)
        assert counted.phase == rehearsed.phase
