"""What the page receives: hand-made values in, the same figures out."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.canvas import payloads
from comfyui_otca.trainer import advantages
from comfyui_otca.trainer.rewards.pixels import Sharpness
from comfyui_otca.trainer.types import Scores, StepCredit

NAN = float("nan")


@pytest.fixture
def scores():
    """Two prompts with two samples each; the last sample could not be scored by the second reward."""
    return Scores(
        values=torch.tensor([[1.0, 4.0], [3.0, 2.0], [10.0, 0.0], [20.0, NAN]]),
        names=("bright", "plain"),
        coefficients=(1.0, 1.0),
        groups=torch.tensor([0, 0, 1, 1]),
        held_out=torch.tensor([[0.0], [1.0], [1.0], [0.0]]),
        held_out_names=("judge",),
        rewards=(),
        prompts=("one", "two"),
        seconds={"bright": 0.123456789},
    )


@pytest.fixture
def credit():
    return StepCredit(
        weights=torch.tensor([[0.5, 1.5]] * 4),
        raw=torch.tensor([[0.25, 0.75]] * 4),
        delta=torch.tensor([[0.1, 0.3, 0.2]] * 4),
        similarity=torch.zeros(4, 4),
        trained=(0, 1),
        sigmas=(1.0, 0.75, 0.5, 0.0),
        node="9",
    )


def test_credit(credit, still_model, sample):
    trajectories = replace(sample(still_model), groups=torch.tensor([0, 0, 1, 1]), prompts=("one", "two"))
    assert payloads.credit(credit, trajectories) == {
        "node": "9",
        "method": "tcd",
        "steps": 3,
        "sigmas": [1.0, 0.75, 0.5, 0.0],
        "trained": [0, 1],
        "groups": [0, 0, 1, 1],
        "prompts": ["one", "two"],
        "weights": [[0.5, 1.5]] * 4,
        "delta": [[0.1, 0.3]] * 4,
        "previews": False,
    }


def test_advantages(scores, credit):
    """Fused by their plain sum: the first group's rewards cancel out, the second has a single valid sample."""
    sent = payloads.advantages("10", advantages.fuse(scores, credit, "min_norm"))
    assert (sent["node"], sent["credit_node"], sent["method"]) == ("10", "9", "min_norm")
    assert sent["names"] == ["bright", "plain"] and sent["valid"] == [True, True, True, False]
    low = 0.70711  # (1 - 2) / √2, the unbiased standard deviation of two values that differ by 2
    assert sent["objectives"] == [[-low, low], [low, -low], [0.0, 0.0], [None, None]]
    assert sent["advantage"] == [0.0, 0.0, 0.0, None]
    assert sent["coefficients"][:2] == [[0.5, 0.5], [0.5, 0.5]]
    assert sent["step_advantage"] == [[0.0, 0.0]] * 3 + [[None, None]]
    assert sent["shares"] == [0.5, 0.5]
    json.dumps(sent, allow_nan=False)


def test_credit_by_objective(scores, credit, still_model, sample):
    own = torch.tensor([[0.25, 0.75], [1.75, 1.25]]).expand(4, 2, 2)
    by_objective = replace(credit, by_objective=own, objectives=scores.names)
    trajectories = replace(sample(still_model), groups=torch.tensor([0, 0, 1, 1]), prompts=("one", "two"))
    sent = payloads.credit(by_objective, trajectories)
    assert sent["objectives"] == ["bright", "plain"]
    assert sent["by_objective"] == [[[0.25, 1.75]] * 4, [[0.75, 1.25]] * 4]
    fused = payloads.advantages("10", advantages.fuse(scores, by_objective, "min_norm"))
    # Half of A = ∓0.70711 each, by its weight; the last sample is masked.
    first = [[-0.088388, -0.61872], [0.088388, 0.61872], [0.0, 0.0], [None, None]]
    second = [[0.26517, 0.44194], [-0.26517, -0.44194], [0.0, 0.0], [None, None]]
    assert fused["by_objective"] == [first, second]
    assert fused["step_advantage"][0] == [0.17678, -0.17678]


def test_shares_are_what_each_reward_adds(scores, credit):
    """Both rewards differ by 2 within the group; the one of coefficient 1/2 adds half as much. Equal ones cancel out."""
    halved = replace(scores, coefficients=(1.0, 0.5))
    for fusion in ("weighted_advantages", "weighted_sum"):
        shares = payloads.advantages("10", advantages.fuse(halved, credit, fusion))["shares"]
        assert shares == [0.66667, 0.33333], fusion
    assert payloads.advantages("10", advantages.fuse(scores, credit, "weighted_advantages"))["shares"] == [0.0, 0.0]


@pytest.mark.parametrize("method", ["moca", "min_norm", "weighted_advantages", "summed_advantages"])
@given(st.integers(0, 999), st.integers(0, 3), st.lists(st.floats(0.05, 4), min_size=4, max_size=4), st.floats(1, 80))
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_a_higher_weight_raises_a_rewards_share_and_lowers_all_others(method, seed, which, weights, factor):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(12, 4, generator=generator) @ torch.randn(4, 4, generator=generator)
    credit = StepCredit(
        torch.ones(12, 2), torch.ones(12, 2) / 2, torch.rand(12, 2, generator=generator), torch.zeros(12, 3), (0, 1)
    )

    def shares(weights):
        scores = Scores(values, tuple("abcd"), tuple(weights), torch.arange(12) // 4, values[:, :0], (), ())
        return np.array(payloads.advantages("10", advantages.fuse(scores, credit, method))["shares"])

    raised = [weight * factor if k == which else weight for k, weight in enumerate(weights)]
    change = (shares(raised) - shares(weights)).round(4)  # five places are sent
    assert change[which] >= 0 and (np.delete(change, which) <= 0).all()


def test_scores(scores):
    sheet = {"filename": "a.png", "subfolder": "", "type": "temp"}
    sent = payloads.scores("8", scores, sheet)
    low = 0.70711
    assert sent["advantages"] == [[-low, low, -low], [low, -low, low], [-low, 0.0, low], [low, None, -low]]
    assert sent["values"][3] == [20.0, None] and sent["held_out"] == [[0.0], [1.0], [1.0], [0.0]]
    assert sent["names"] == ["bright", "plain"] and sent["held_out_names"] == ["judge"]
    assert sent["seconds"] == {"bright": 0.12346} and sent["thumbnails"] == sheet
    # bright and plain over samples 0, 1, 2: (-a, a), (a, -a), (-a, 0): centred (-2/3, 1), (4/3, -1), (-2/3, 0), in a
    expected = -2 / ((4 / 9 + 16 / 9 + 4 / 9) * 2) ** 0.5
    assert sent["correlation"][0][1] == pytest.approx(expected, abs=1e-5)
    assert sent["correlation"][0][0] == pytest.approx(1)
    assert sent["correlation"][0][2] == pytest.approx(0, abs=1e-6)
    json.dumps(sent, allow_nan=False)


def test_a_judges_column_says_what_its_numbers_are_as_long_as_they_are_those(scores):
    class Judged(Sharpness):
        meaning = "yes_no"

    bounded = Judged("plain")
    bounded.bounds = (0.0, 1.0)
    sent = payloads.scores("8", replace(scores, rewards=(Sharpness("bright"), bounded, Judged("judge"))), None)
    assert sent["meanings"] == ["", "", "yes_no"]


def test_a_reward_that_tells_nothing_apart_correlates_with_nothing():
    matrix = advantages.correlation(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    assert payloads.numbers(matrix) == [[1.0, None], [None, None]]


def test_thumbnails_are_in_their_squares():
    images = torch.zeros(10, 32, 16, 3)
    images[9, :, :, 0] = 1.0
    sheet = payloads.thumbnail_sheet(images)
    assert sheet.size == (8 * 64, 2 * 64)
    # Sample 9 is in row 1, column 1: 32 pixels wide after scaling, centred in its 64, with black beside it.
    assert sheet.getpixel((64 + 32, 64 + 32)) == (255, 0, 0)
    assert sheet.getpixel((64 + 17, 64 + 63)) == (255, 0, 0)
    assert sheet.getpixel((64 + 14, 64 + 32)) == (0, 0, 0) == sheet.getpixel((32, 32))


def test_numbers():
    assert payloads.numbers(123456.789) == 123460.0
    assert payloads.numbers((0.000123456, float("inf"))) == [0.00012346, None]
