"""`otca analyze --signal`: a problem whose efficiencies are known in closed form, the embedded graph, stop and resume."""

from __future__ import annotations

import contextlib
import json
import math
import types

import numpy as np
import pytest
import torch

from comfyui_otca.__main__ import main
from comfyui_otca.host import stopping
from comfyui_otca.study import signal as module
from comfyui_otca.study.signal import BEST, BLOCKS, INVERSE, UNIFORM, Found, compared, together, winner_of
from comfyui_otca.study.statistics import Interval
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.credit import steps
from comfyui_otca.trainer.credit.exact import exact_gradient
from comfyui_otca.trainer.families.condition import Condition
from comfyui_otca.trainer.memo import Memos
from comfyui_otca.trainer.rewards.base import Reward
from comfyui_otca.trainer.sde import transition
from comfyui_otca.trainer.types import Prompts, SamplerSettings

FILES = {"settings.json", "batches.jsonl", "signal.md", "signal.json", "signal.png"}

# -- a linear model and a quadratic reward ---------------------------------------------------------------------------------

SIGMAS = (1.0, 0.8, 0.55, 0.25, 0.0)
TARGET, GROUP = 0.4, 128


class Quadratic(Reward):
    def score(self, images, prompts):
        return -(images[..., 0].flatten(1).mean(1) - TARGET).square()

    differentiable = score


class Linear:
    """v = θ·(1, σ, σ²), wherever x is. A latent is one number, and is the picture."""

    device = torch.device("cpu")

    def __init__(self):
        theta = torch.nn.Parameter(torch.tensor([0.3, -0.5, 0.9]))
        self.theta, self.memo = theta, Memos()
        self.policy = types.SimpleNamespace(
            is_sharded=False,
            version=0,
            samples_with="theta",
            trainable_parameters=lambda: [theta],
            forget_gradients=lambda: None,
            sampling=contextlib.nullcontext,
        )

    def come_back(self):
        pass

    def sigmas(self, settings):
        return SIGMAS

    def condition(self, texts, settings):
        return Condition({"n": torch.zeros(len(texts))})

    def sample_shape(self, texts, settings):
        return (1, 1, 1)

    def guidance_at(self, sigma, settings):
        return 1.0

    def kept_calls(self, settings, counts):
        return len(counts)

    def velocity(self, x, sigma, condition, guidance):
        sigma = torch.as_tensor(sigma, dtype=torch.float32).expand(len(x))
        return (torch.stack([sigma**0, sigma, sigma**2], 1) @ self.theta).view(-1, 1, 1, 1) + 0 * x

    def decode(self, latents, batch_size=0, texts=()):
        return latents.movedim(1, -1).expand(-1, -1, -1, 3)

    @contextlib.contextmanager
    def decoder(self, texts):
        yield self.decode


SETTINGS = SamplerSettings("dance_sde", 0.6, 4, 8, 8, shared_noise=False)


def closed_form():
    """∂ of the mean final picture by step [4, 3], its noises κ [1 + T'], ∂μ/∂θ/std of the trained steps [T', 3], its mean."""
    model, features = Linear(), np.array([[1, s, s * s] for s in SIGMAS[:-1]])
    v = features @ model.theta.detach().numpy()
    along = [transition("ode" if j == 3 else "dance_sde", 0.0, 1.0, *SIGMAS[j : j + 2], eta=0.6) for j in range(4)]
    across = [transition("ode" if j == 3 else "dance_sde", 1.0, 0.0, *SIGMAS[j : j + 2], eta=0.6) for j in range(4)]
    a, b, std = [g.mean for g in along], [g.mean for g in across], [g.std for g in across]
    down = [math.prod(a[j + 1 :]) for j in range(4)]
    slopes = np.array([down[j] * b[j] * features[j] for j in range(4)])
    kappa = np.array([math.prod(a), *(down[j] * std[j] for j in range(3))])
    scores = np.array([b[j] / std[j] * features[j] for j in range(3)])
    return slopes, kappa, scores, sum(down[j] * b[j] * v[j] for j in range(4))


def truth():
    """G and, of A = R - E R in large groups, E g_j [T', 3] and E⟨g_j, g_k⟩ [T', T'] of a group's mean.

    With u = Σ κ·ξ and s² = E u², R - E R = a·u - (u² - s²) with a = -2·(mean - target): moments of Gaussians by Isserlis.
    """
    slopes, kappa, scores, mean = closed_form()
    a, square = -2 * (mean - TARGET), (kappa**2).sum()
    steps_ = kappa[1:]
    expected = a * steps_[:, None] * scores
    both = a * a * 2 * np.outer(steps_, steps_) + 8 * square * np.outer(steps_, steps_)
    both += np.eye(3) * (a * a * square + 2 * square**2)
    means = expected @ expected.T
    gram = means * (1 - 1 / GROUP) + both * (scores @ scores.T) / GROUP
    return a * slopes.sum(0), expected, gram


@pytest.fixture(scope="module")
def measured():
    model, reward = Linear(), Quadratic("quadratic")
    blocks = []
    for block in range(BLOCKS):
        places = tuple(range(4000 * block, 4000 * (block + 1)))
        blocks.append(exact_gradient(model, Prompts(("a",) * 4000, places), SETTINGS, reward, 1)[0])
    rows, blocks = [], torch.stack(blocks)
    for batch in range(250):
        taken = rollout.sample(model, Prompts(("a",), (batch,)), SETTINGS, group_size=GROUP, seed=batch)
        points = taken.latents, taken.final, taken.trained
        credits = {UNIFORM: steps.uniform(*points), "noise-aware": steps.noise_aware(*points, taken.stds)}
        credits["tcd"] = steps.tcd(*points, w_min=0.0)
        with (
            pytest.MonkeyPatch.context() as patch
        ):  # no division by the group's own spread, whose moments have no closed form
            patch.setattr(module, "advantages_of", lambda r, groups: (r - r.mean(), torch.full_like(r, 1 - 1 / len(r))))
            rows.append(compared(model, taken, reward, credits, blocks))
    return blocks, rows, together(rows, blocks)


def test_the_exact_gradient_is_that_of_the_closed_form(measured):
    exact, _, _ = truth()
    np.testing.assert_allclose(measured[0].mean(0).numpy(), exact, rtol=0.02, atol=0.02 * np.abs(exact).max())
    assert measured[2].halves > 0.999 and measured[2].cosine > 0.999


def test_efficiencies_are_those_of_the_closed_form_within_their_intervals(measured):
    exact, expected, gram = truth()
    signal, noise = expected @ exact / np.linalg.norm(exact), np.sqrt(gram.diagonal())
    weights = {
        UNIFORM: np.ones(3),
        "noise-aware": np.array([math.sqrt(SIGMAS[j] - SIGMAS[j + 1]) for j in range(3)]),
        INVERSE: 1 / noise**2,
    }
    efficiency = {name: w @ signal / math.sqrt(w @ gram @ w) for name, w in weights.items()}
    rows = {row.name: row for row in measured[2].rows}
    for name, value in efficiency.items():
        found = rows[name]
        assert found.efficiency.low - 0.01 * value < value < found.efficiency.high + 0.01 * value, name
        assert found.ratio.low - 0.005 < value / efficiency[UNIFORM] < found.ratio.high + 0.005, name
        assert found.ratio.high - found.ratio.low < 0.2, "and these are narrow"
        np.testing.assert_allclose(found.weights, weights[name] / weights[name].mean(), rtol=0.05)
    own = rows[UNIFORM].ratio
    assert (own.mean, own.low, own.high, own.count) == (1.0, 1.0, 1.0, 250)
    for own, value in zip(measured[2].signal, signal, strict=True):
        assert own.low - 0.01 * abs(value) < value < own.high + 0.01 * abs(value)
    np.testing.assert_allclose(measured[2].noise, noise, rtol=0.05)
    best = signal / noise**2
    limit = best @ signal / math.sqrt(best @ gram @ best)
    assert rows[BEST].resampled[0] / rows[UNIFORM].resampled[0] == pytest.approx(limit / efficiency[UNIFORM], rel=0.03)


def test_steps_sampled_and_expected_agree(measured):
    """Means of what a policy gradient has of G, by its scores and by gradients through the trajectory, which has less noise."""
    blocks, rows, _ = measured
    sampled, expected = (np.array([row[name] for row in rows]).mean(2) for name in ("signal", "exact"))
    error = sampled.std(0) / math.sqrt(len(rows))
    assert (np.abs(sampled.mean(0) - expected.mean(0)) < 4 * error).all()
    assert (expected.std(0) < 0.5 * sampled.std(0)).all()


def test_by_training_s_own_advantages_they_agree_too():
    model, reward, found = Linear(), Quadratic("quadratic"), []
    blocks = torch.eye(3)
    for batch in range(150):
        prompts = Prompts(("a", "b", "c"), (3 * batch, 3 * batch + 1, 3 * batch + 2))
        taken = rollout.sample(model, prompts, SETTINGS, group_size=12, seed=batch)
        points = taken.latents, taken.final, taken.trained
        found.append(compared(model, taken, reward, {UNIFORM: steps.uniform(*points)}, blocks))
    sampled, expected = (np.array([row[name] for row in found]) for name in ("signal", "exact"))
    error = sampled.std(0) / math.sqrt(len(found))
    assert (np.abs(sampled.mean(0) - expected.mean(0)) < 4 * error + 0.05 * np.abs(expected.mean(0))).all()


def test_what_tells_samples_apart_has_gradients_of_its_own(measured):
    _, rows, found = measured
    assert "square" in rows[0]["credits"]["tcd"] and "square" not in rows[0]["credits"]["noise-aware"]
    [row] = [row for row in found.rows if row.name == "tcd"]
    assert row.ratio.low < row.ratio.mean < row.ratio.high and sum(row.weights) == pytest.approx(3)


# -- the verdict -----------------------------------------------------------------------------------------------------------


def credit(name, mean, spread, of=1.0):
    values = mean + spread * np.random.default_rng(len(name)).standard_normal(2001)
    values[0] = mean
    low, high = np.quantile(values / of, [0.025, 0.975])
    return Found(name, Interval(mean, mean, mean, 9), Interval(mean / of, low, high, 9), (1.0,), values)


def test_a_winner_needs_batches_and_an_interval_beside_uniform():
    rows = [credit(UNIFORM, 1.0, 1e-9), credit("much", 2.0, 0.2), credit("as much", 1.9, 0.2), credit(BEST, 9.0, 0.1)]
    assert winner_of(rows, 100) == ("much", ("as much",)), "what was fitted to the signal is no candidate"
    assert winner_of(rows, module.LEAST - 1) == (None, ())
    assert winner_of([rows[0], credit("perhaps", 1.2, 0.3)], 100)[0] is None
    assert winner_of([rows[0], credit("worse", 0.5, 0.1)], 100) == (UNIFORM, ())
    assert winner_of([rows[0], credit("nearly", 0.9, 0.1)], 100) == (None, ("nearly",))


# -- a workflow ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def workflow(small_graph, tmp_path):
    def write(source="otca.json", changes=None, edit=lambda graph: None):
        graph = small_graph(changes, source)
        edit(graph)
        (tmp_path / "workflow.json").write_text(json.dumps(graph))
        return str(tmp_path / "workflow.json")

    return write


def asked(path, folder, *more):
    return main(["analyze", path, "--signal", "--output", str(folder), *more])


def test_it_stops_and_continues_as_if_nothing_had_been(workflow, tmp_path, monkeypatch, capsys):
    path, more = workflow(), ("--reward", "sharpness", "--batches", "4")
    assert asked(path, tmp_path / "whole", *more) == 0
    whole = {path.name for path in (tmp_path / "whole").iterdir()}
    assert whole == FILES | {f"truth_{number}.safetensors" for number in range(BLOCKS)}
    printed = capsys.readouterr().out
    assert (
        "too wide to name a winner" in printed and "| TCD by prediction |" in printed and "| TCD Weights |" in printed
    )

    done, check = [], stopping.check_stop

    def interrupted():
        done.append(0)
        if len(done) in (3, 40):
            stopping.request.signal = 2
        check()

    monkeypatch.setattr(stopping, "check_stop", interrupted)
    for _ in range(2):
        assert asked(path, tmp_path / "parts", *more) == 130
        assert "the same command continues from there" in capsys.readouterr().err
    assert asked(path, tmp_path / "parts", *more) == 0
    one, other = (json.loads((tmp_path / name / "signal.json").read_text()) for name in ("whole", "parts"))
    assert one.pop("seconds") > 0 and other.pop("seconds") > 0
    assert one == other
    assert asked(path, tmp_path / "parts", "--reward", "sharpness", "--batches", "5") == 0, "more batches continue it"
    assert json.loads((tmp_path / "parts" / "signal.json").read_text())["batches"] == 5
    assert asked(path, tmp_path / "parts", "--reward", "clip_t") == 2
    assert "holds a measurement with another reward. Fix: choose another --output" in capsys.readouterr().err


def test_a_sampler_without_noise_gets_some(workflow, tmp_path, capsys):
    small = {"OTCA_PromptDataset": {"prompts_per_iteration": 2}, "OTCA_SDESampler": {"group_size": 2, "steps": 3}}
    assert asked(workflow("quickstart.json", small), tmp_path / "a", "--batches", "1", "--reward", "sharpness") == 0
    assert "dance_sde, η 0.5, 3 steps (the workflow's sampler adds no noise)" in capsys.readouterr().out


def test_a_node_that_goes_by_updates_has_the_batches_before(workflow, tmp_path):
    def edit(graph):
        graph["9"] = {
            "class_type": "OTCA_StepCredit",
            "inputs": {"trajectories": ["3", 0], "method": "inverse_variance", "model": ["1", 0]},
        }
        graph["9"]["inputs"]["decay"] = 0.9

    assert asked(workflow(edit=edit), tmp_path / "a", "--batches", "3", "--reward", "sharpness") == 0
    rows = [json.loads(line) for line in (tmp_path / "a" / "batches.jsonl").read_text().splitlines()]
    own = [np.array(row["credits"]["Step Credit"]["weights"]) for row in rows]
    squares = np.array([np.diagonal(row["gram"]) for row in rows])
    assert (own[0] == 1).all()
    np.testing.assert_allclose(own[2], 1 / squares[:2].mean(0) / (1 / squares[:2].mean(0)).mean(), rtol=1e-4)


def without_gradient(graph):
    graph["4"] = {"class_type": "OTCA_RewardJpegCompressibility", "inputs": {"coefficient": 1.0}}
    graph["8"]["inputs"] = {"trajectories": ["3", 0], "reward_1": ["4", 0]}


def test_rewards_without_a_gradient_are_named_and_those_that_have_one(workflow, tmp_path, capsys):
    assert asked(workflow(edit=without_gradient), tmp_path / "a") == 2
    said = capsys.readouterr().err
    assert "'compressibility' has none" in said and "aesthetic, pickscore, hpsv2" in said and "variety" not in said
    path = workflow()
    assert main(["analyze", path, "--reward", "clip_t"]) == 2
    assert "--reward belongs to --signal. Fix: add --signal" in capsys.readouterr().err
    assert asked(path, tmp_path / "a", "--reward", "accuracy") == 2
    assert "'accuracy' has none" in capsys.readouterr().err
    assert asked(path, tmp_path / "a", "--reward", "beauty") == 2
    assert "has no reward of that name. Fix: one of clip_t, colorfulness, sharpness" in capsys.readouterr().err
