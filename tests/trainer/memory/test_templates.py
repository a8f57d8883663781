"""What the notes and lights of the templates say, against a rehearsal of the same network of diffusers at its true size."""

from __future__ import annotations

import pytest

from comfyui_otca.bench.memory import COUNTERPARTS, of_template
from comfyui_otca.trainer.memory.case import JUDGING, UNDECODING, UPDATE

# Whose decoder diffusers cannot compute again block by block, as ComfyUI's is: its two phases are left out.
OTHER_DECODER = ("krea2", "qwen_image")


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_a_templates_estimate_is_within_10_percent_of_its_rehearsal(name, everything):
    """Minutes for all of them, so in `make test-all`."""
    if not everything:
        pytest.skip("a rehearsal at true size takes up to a minute: --everything")
    counted, rehearsed = (case.needs.totals for case in of_template(name))
    assert counted[UPDATE] / rehearsed[UPDATE] == pytest.approx(1, abs=0.1)
    others = {UNDECODING, JUDGING} if name in OTHER_DECODER else set()
    ours, theirs = (
        max(size for phase, size in totals.items() if phase not in others) for totals in (counted, rehearsed)
    )
    assert ours / theirs == pytest.approx(1, abs=0.1)
