"""Where MixGRPO's window stands, by hand, and what holds for every schedule."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.trainer.schedule import window_start
from comfyui_otca.trainer.types import WINDOW_MODES, SamplerSettings

cases = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def starts(count, *arguments, **options):
    return [window_start(iteration, *arguments, **options) for iteration in range(count)]


def test_progressive_moves_on_and_wraps():
    # 8 steps, the last untrained: a window of 4 has the places 0 to 3, each for two iterations.
    assert starts(10, 8, 4, every=2) == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0]
    assert window_start(24, 16, 4) == 0 and window_start(25, 16, 4) == 1, "25 iterations by default"


def test_a_stride_leaves_no_step_out():
    assert starts(5, 8, 2, every=1, stride=2) == [0, 2, 4, 5, 0]
    assert starts(4, 8, 4, every=1, stride=9) == [0, 3, 0, 3]


def test_a_window_of_all_trained_steps_stays():
    assert starts(3, 8, 7, every=1) == [0, 0, 0]
    assert starts(3, 2, 1, every=1) == [0, 0, 0], "one trained step: never the untrained last one"


def test_decay_shortens_late_places():
    # 25 steps, a window of 4: places 0 to 20, of which those from 14 on get ⌈25·exp(-0.1·(l - 13))⌉ iterations.
    stays = [25] * 14 + [23, 21, 19, 17, 16, 14, 13]
    own = starts(sum(stays) + 1, 25, 4, mode="progressive_decay")
    assert own == [place for place, stay in enumerate(stays) for _ in range(stay)] + [0]


def test_random_places_are_a_function_of_seed_and_iteration():
    own = starts(400, 8, 4, mode="random", seed=3)
    assert own == starts(400, 8, 4, mode="random", seed=3) != starts(400, 8, 4, mode="random", seed=4)
    assert window_start(399, 8, 4, mode="random", seed=3) == own[399], "whatever came before"
    # 100 expected at each of four places, with a standard deviation of 8.7.
    assert all(abs(own.count(place) - 100) < 35 for place in range(4))


@given(
    st.integers(2, 40),
    st.data(),
    st.sampled_from(WINDOW_MODES),
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(0, 1000),
)
@cases
def test_the_window_is_never_cut_and_every_step_has_its_turn(steps, data, mode, every, stride, begin):
    length = data.draw(st.integers(1, steps - 1))
    options = {"mode": mode, "every": every, "stride": stride}
    seen = set()
    for iteration in range(begin, begin + every * steps):
        start = window_start(iteration, steps, length, **options)
        assert 0 <= start and start + length <= steps - 1
        seen |= set(range(start, start + length))
    if mode != "random" and stride <= length:
        assert seen == set(range(steps - 1))


@pytest.mark.parametrize(("steps", "length"), [(8, 8), (2, 2)])
def test_a_window_that_has_no_place(steps, length):
    with pytest.raises(ValueError, match=f"^length {length}: of {steps} steps .* Fix: lower length"):
        window_start(0, steps, length)


def test_unknown_mode():
    with pytest.raises(ValueError, match="mode must be one of .*, not 'frozen'"):
        window_start(0, 8, 4, mode="frozen")


def test_a_third_of_the_steps_is_mix_grpo_flash():
    """Its 0.4 is a share of the points: linspace over ⌊0.4·(n + 1)⌋ of them, for n steps behind a window of 4 in 25."""
    for start in range(5):
        behind = 25 - 4 - start
        settings = SamplerSettings(steps=25, window=(start, 4), fraction_after_window=0.33)
        assert settings.transitions - settings.window_end == math.floor(0.4 * (behind + 1)) - 1
    assert SamplerSettings(steps=25, window=(0, 4), fraction_after_window=0.33).transitions == 4 + 7
