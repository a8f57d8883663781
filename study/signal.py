"""`otca analyze --signal`: which credit's gradient says most about the reward, for a workflow's own model, without a training.

First the exact gradient G of the expected reward, in BLOCKS independent parts, then the policy gradients of batches as training
would sample them, each compared with every part (`trainer.credit.exact`). No sample is a part of what it is compared with.
Everything is written as it comes: truth_*.safetensors and batches.jsonl; then signal.md, signal.json and signal.png.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..host import stopping
from ..host.files import write_text
from ..host.json_files import NUMBER, read_json
from ..host.json_lines import read_lines
from ..trainer import rollout
from ..trainer.advantages import ADVANTAGE_LIMIT
from ..trainer.credit import steps
from ..trainer.credit.exact import count, exact_gradient, factors, step_gradients, tells_samples_apart
from ..trainer.credit.inverse_variance import inverse_variance, noted
from ..trainer.credit.proxies import similarity
from ..trainer.families.base import FlowModel
from ..trainer.groups import group_advantages, per_group
from ..trainer.pictures import grids
from ..trainer.policy.files import read_metadata, read_tensors, write_tensors
from ..trainer.rewards import REWARDS, reward_class
from ..trainer.rewards.base import GroupReward, Reward, one_by_one, score_with_gradient, trained_first
from ..trainer.run.folder import RunError, json_line
from ..trainer.sde import sensitivities
from ..trainer.types import Prompts, SamplerSettings, StepCredit, Trajectories
from ..trainer.workflow.running import Workflow
from . import plots
from .analyze import prepared
from .statistics import RESAMPLES, TAILS, Interval, bracketed, number, table

SETTINGS, BATCHES, TABLE, FIGURES, PICTURE = "settings.json", "batches.jsonl", "signal.md", "signal.json", "signal.png"
BLOCKS = 8  # independent parts of G
LEAST = 24  # batches of which a winner may be named
FAR = 10**6  # the iteration from which on prompts of G come, where no batch ever is
KIND = "dance_sde"  # in place of a sampler without noise
UNIFORM, INVERSE, BEST = "uniform", "inverse variance", "best fixed weights"
MEASURED = ("TCD by latents", "TCD by prediction")


@dataclass(frozen=True)
class Found:
    """A credit: its efficiency, the same divided by uniform's, and its mean weight at each step, of mean 1."""

    name: str
    efficiency: Interval
    ratio: Interval
    weights: tuple[float, ...]
    resampled: np.ndarray  # n/√q of each resample, the first one the estimate itself


@dataclass(frozen=True)
class Signal:
    """The signal of all batches together; steps are the T' trained ones.

    Attributes:
        signal: ⟨g_j, G⟩/|G| of each step.
        noise: √E|g_j|² of each step.
        halves: the cosine of two halves of the estimate of G; `cosine`: what follows for that of all of it with G.
        winner: the best credit, if batches are enough to say so; `beside` it are those that cannot be told apart from it.
    """

    rows: list[Found]
    signal: list[Interval]
    noise: list[float]
    halves: float
    cosine: float
    batches: int
    winner: str | None
    beside: tuple[str, ...]


def analyze_signal(
    workflow: Workflow, folder: Path, batches: int, adapter: Path | None = None, name: str | None = None
) -> str:
    """Measures so many batches, continues where the folder stops, and returns the tables, as Markdown.

    As many batches of as many samples, each of another prompt, are G. Steps and noise are the workflow's; a sampler without
    noise gets that of `dance_sde`, its deterministic steps are Euler's, and a window that moves stays where it begins.

    `adapter`: a run's folder, or a LoRA's file, that the model wears; None: the model as the workflow loads it.
    `name`: of the reward; None: the first that has a gradient, trained ones before those held out.

    Raises:
        WorkflowError: the graph cannot run.
        ValueError: several processes, an adapter that does not fit, a reward that is not there, or none that has a gradient.
        RunError: the folder holds another measurement.
        host.Stopped: what is done is in the folder.
    """
    model, sampler, stack = prepared(workflow, adapter)
    measure = _Measure(workflow, model, sampler, _reward(workflow, stack, name))
    record = _Record(folder, measure.identity(adapter), count(model))
    record.truth(measure, batches)
    record.lines(measure, batches)
    result = together(record.rows, record.blocks())
    levels = [measure.sigmas[step] for step in measure.trained]
    text = markdown(result, levels, measure.said(), record.seconds())
    write_text(folder / TABLE, text)
    write_text(folder / FIGURES, as_json(result, levels, record))
    labels = [f"{step}\nσ {level:.2f}" for step, level in zip(measure.trained, levels, strict=True)]
    weights = {row.name: row.weights for row in result.rows}
    grids.save(plots.signal(result.signal, result.noise, weights, labels), folder / PICTURE)
    return text


def _reward(workflow: Workflow, stack: str, name: str | None) -> Reward:
    links = workflow.nodes[stack].links.values()
    sources = [source for source, _ in links if "OTCA_REWARD" in workflow.node_class(source).RETURN_TYPES]
    outputs = workflow.run(targets=sources)
    rewards = trained_first([value for source in sources for value in outputs[source] if isinstance(value, Reward)])
    able = [reward for reward in one_by_one(rewards) if reward.has_gradient()]
    if name is not None:
        chosen = [reward for reward in rewards if reward.name == name]
        if not chosen:
            raise ValueError(
                f"--reward {name!r}: Reward Stack has no reward of that name. Fix: one of "
                f"{', '.join(reward.name for reward in able or rewards)}"
            )
        rewards, able = chosen, [reward for reward in one_by_one(chosen) if reward.has_gradient()]
    if not able:
        made = {kind: reward_class(kind) for kind in REWARDS}
        kinds = ", ".join(k for k, kind in made.items() if kind.has_gradient() and not issubclass(kind, GroupReward))
        raise ValueError(
            f"--signal compares with the exact gradient of a reward, and {', '.join(repr(r.name) for r in rewards)} "
            f"{'has' if len(rewards) == 1 else 'have'} none. These kinds have one: {kinds}. Fix: connect one of them to the "
            "Reward Stack, held out if it is not to be trained on"
        )
    return able[0]


class _Measure:
    """The measure of one workflow: what a batch and a part of G are."""

    def __init__(self, workflow: Workflow, model: FlowModel, sampler: str, reward: Reward):
        self.workflow, self.model, self.sampler, self.reward = workflow, model, sampler, reward
        self.advancing = workflow.advancing()
        node = workflow.nodes[sampler]
        outputs = workflow.run(targets={source for source, _ in node.links.values()})
        linked = {key: outputs[source][output] for key, (source, output) in node.links.items()}
        inputs = node.constants | linked
        self.prompts = node.links["prompts"]
        self.group_size, self.seed = inputs["group_size"], inputs["seed"]
        settings = replace(SamplerSettings.from_inputs(inputs), ode_solver="euler", stochastic_steps=0)
        self.noiseless = settings.kind == "ode"
        self.settings = replace(settings, kind=KIND) if self.noiseless else settings
        self.sigmas = model.sigmas(self.settings)
        self.samples = self.group_size * len(linked["prompts"].texts)
        self.credits = [id_ for id_, kind in workflow.nodes.items() if kind.cls.RETURN_TYPES[:1] == ("OTCA_CREDIT",)]
        self.trained: tuple[int, ...] = rollout.trained_steps(self.settings, self.sigmas)

    def identity(self, adapter: Path | None) -> dict[str, Any]:
        """The settings that may not change from one call to the next."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.policy.trained_state().items()):
            digest.update(name.encode() + tensor.float().cpu().numpy().tobytes())
        return {
            "workflow": json.loads(json.dumps(self.workflow.graph)),
            "adapter": adapter and str(adapter),
            "weights": digest.hexdigest(),
            "reward": self.reward.name,
            "blocks": BLOCKS,
        }

    def said(self) -> str:
        settings = self.settings
        noise = f"{settings.kind}, η {settings.eta:g}, {settings.transitions} steps"
        if self.noiseless:
            noise += " (the workflow's sampler adds no noise)"
        return f"Reward {self.reward.name}; {noise}; {self.samples} samples a batch, in groups of {self.group_size}"

    def _overrides(self, iteration: int) -> dict[tuple[str, str], Any]:
        return {(node, name): value + iteration for node, name, value in self.advancing}

    def _prompts(self, iteration: int) -> Prompts:
        source, output = self.prompts
        return self.workflow.run(self._overrides(iteration), targets=[source])[source][output]

    def truth(self, part: int) -> tuple[Tensor, float]:
        """The exact gradient of one sample of each of as many prompts as a batch has samples, and their mean reward."""
        iterations = range(FAR + part * self.group_size, FAR + (part + 1) * self.group_size)
        texts = [text for iteration in iterations for text in self._prompts(iteration).texts]
        places = tuple(range(part * self.samples, (part + 1) * self.samples))
        gradient, rewards = exact_gradient(
            self.model, Prompts(tuple(texts), places), self.settings, self.reward, self.seed, stopping.check_stop
        )
        return gradient, rewards.mean().item()

    def line(self, batch: int, blocks: Tensor, before: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One batch: every g_j and every credit, compared with the parts of G."""
        model, started = self.model, time.process_time()
        trajectories = rollout.sample(
            model,
            self._prompts(batch),
            self.settings,
            group_size=self.group_size,
            seed=self.seed + batch,
            keep_predictions=True,
            on_step=stopping.check_stop,
        )
        credits = built_in(model, trajectories) | self._own(batch, trajectories, before)
        row = compared(model, trajectories, self.reward, credits, blocks)
        return {"batch": batch, **row, "seconds": time.process_time() - started}

    def _own(
        self, batch: int, trajectories: Trajectories, before: Sequence[Mapping[str, Any]]
    ) -> dict[str, StepCredit]:
        """The credits of the workflow's nodes, by title. What an update would have measured is that of the batches before."""
        if not self.credits:
            return {}
        if before:
            squares = np.mean([np.diagonal(row["gram"]) for row in before], 0)
            self.model.memo.keep(noted(trajectories, torch.from_numpy(squares)))
        values = {self.sampler: (trajectories, trajectories.images)}
        outputs = self.workflow.run(self._overrides(batch), targets=self.credits, results=values)
        return {title: outputs[node][0] for node, title in self.workflow.titles(self.credits).items()}


def compared(
    model: FlowModel, trajectories: Trajectories, reward: Reward, credits: Mapping[str, StepCredit], blocks: Tensor
) -> dict[str, Any]:
    """The products of one batch's policy gradients with the parts of G, blocks [M, θ].

    `signal` [T', M] and `exact` [T', M]: ⟨g_j, G_m⟩, and the same of what g_j is expected to be; `gram` [T', T']: ⟨g_j, g_k⟩.
    Each credit has its mean `weights` [T'], and where it tells samples apart its own `signal` [M] and `square`, |g|².
    """
    with torch.no_grad():
        scores = score_with_gradient(reward, trajectories.images, trajectories.texts).cpu()
    advantage, slope = advantages_of(scores, trajectories.groups)
    made = {name: factors(credit, trajectories, reward.name) for name, credit in credits.items()}
    apart = {name: factor for name, factor in made.items() if tells_samples_apart(factor)}
    gradients = step_gradients(model, trajectories, reward, advantage, slope, apart, stopping.check_stop)
    entries: dict[str, dict[str, Any]] = {}
    for name, factor in made.items():
        entries[name] = {
            "weights": factor.flatten(2).mean(2).mean(0).tolist() if factor.ndim > 2 else factor.mean(0).tolist()
        }
        if name in apart:
            own = gradients.credits[name]
            entries[name] |= {"signal": (blocks @ own).tolist(), "square": (own @ own).item()}
    return {
        "reward": scores.mean().item(),
        "signal": (gradients.policy @ blocks.T).tolist(),
        "exact": (gradients.exact @ blocks.T).tolist(),
        "gram": (gradients.policy @ gradients.policy.T).tolist(),
        "credits": entries,
    }


def advantages_of(scores: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """A [B] as training has it, and dA/dR [B] with a group's spread held: (1 - 1/G)/std, 0 in a group without any."""
    advantage = group_advantages(scores[:, None], groups)[:, 0].clamp(-ADVANTAGE_LIMIT, ADVANTAGE_LIMIT)
    slope = torch.zeros_like(scores)
    for member in per_group(groups):
        if advantage[member].any():
            slope[member] = (1 - 1 / member.sum()) / scores[member].double().std().float()
    return advantage, slope


def built_in(model: FlowModel, trajectories: Trajectories) -> dict[str, StepCredit]:
    """Every credit that needs neither scores nor settings of its own, and the first 70 % of the steps alike."""
    samples, settings, sigmas = trajectories, trajectories.settings, trajectories.sigmas
    points = samples.latents, samples.final, samples.trained
    uniform = steps.uniform(*points)
    few = math.ceil(0.7 * len(samples.trained))
    first = torch.cat([uniform.weights[:, :few], torch.zeros_like(uniform.weights[:, few:])], 1)
    by_prediction = similarity("prediction", samples, model)
    return {
        UNIFORM: uniform,
        f"first {few} of {len(samples.trained)} steps": replace(uniform, weights=first),
        "noise-aware": steps.noise_aware(*points, samples.stds),
        "PCPO": steps.pcpo(*points, sensitivities(settings.kind, sigmas, settings.eta), sigmas),
        "GRPO-Guard": steps.grpo_guard(*points, samples.stds, sigmas),
        MEASURED[0]: steps.tcd(*points, w_min=0.0),
        MEASURED[1]: steps.from_similarity(by_prediction, samples.trained, w_min=0.0),
    }


class _Record:
    """The folder. Raises RunError where it holds another measurement, and Damaged where one of its files is."""

    def __init__(self, folder: Path, identity: dict[str, Any], size: int):
        self.folder, self.size = folder, size
        before = read_json(folder / SETTINGS, fix="put the file back, or choose another --output")
        for name, value in identity.items():
            if before is not None and before.get(name) != value:
                raise RunError(f"{folder} holds a measurement with another {name}. Fix: choose another --output")
        folder.mkdir(parents=True, exist_ok=True)
        if before is None:
            write_text(folder / SETTINGS, json.dumps(identity, indent=1, ensure_ascii=False))
        self.rows = read_lines(folder / BATCHES, _check_row, fix="remove that line")
        write_text(folder / BATCHES, "".join(map(json_line, self.rows)))  # without a line that a kill cut short

    def _block(self, number: int) -> Path:
        return self.folder / f"truth_{number}.safetensors"

    def _read(self, number: int) -> tuple[Tensor, int, float]:
        """The sum of a block, of how many parts, and the seconds they took."""
        path = self._block(number)
        if not path.exists():
            return torch.zeros(self.size), 0, 0.0
        metadata = read_metadata(path)
        return read_tensors(path)["sum"], int(metadata["parts"]), float(metadata["seconds"])

    def truth(self, measure: _Measure, batches: int) -> None:
        """All parts of G, once; when batches have been compared with it, it stays as it is."""
        from tqdm import tqdm

        wanted = 0 if self.rows else math.ceil(batches / BLOCKS) * BLOCKS
        for part in tqdm(range(wanted), desc="exact gradient", unit="batch", disable=None):
            total, parts, seconds = self._read(part % BLOCKS)
            if parts > part // BLOCKS:
                continue
            started = time.process_time()
            gradient, _ = measure.truth(part)
            metadata = {"parts": str(parts + 1), "seconds": str(seconds + time.process_time() - started)}
            write_tensors(self._block(part % BLOCKS), {"sum": total + gradient}, metadata)

    def blocks(self) -> Tensor:
        """The parts of G, [M, θ]."""
        return torch.stack([total / parts for total, parts, _ in map(self._read, range(BLOCKS))])

    def lines(self, measure: _Measure, batches: int) -> None:
        from tqdm import tqdm

        blocks, done = self.blocks(), {row["batch"] for row in self.rows}
        for batch in tqdm(range(batches), desc="policy gradients", unit="batch", disable=None):
            if batch in done:
                continue
            row = measure.line(batch, blocks, self.rows)
            with open(self.folder / BATCHES, "a", encoding="utf-8") as file:
                file.write(json_line(row))
            self.rows.append(row)

    def seconds(self) -> float:
        return sum(row["seconds"] for row in self.rows) + sum(self._read(number)[2] for number in range(BLOCKS))


def _check_row(row: dict) -> None:
    if not (NUMBER[1](row.get("batch")) and isinstance(row.get("credits"), dict) and UNIFORM in row["credits"]):
        raise ValueError("is not a batch of a measurement")


# --- from batches to efficiencies ---------------------------------------------------------------------------------------


def together(rows: Sequence[Mapping[str, Any]], blocks: Tensor, seed: int = 0) -> Signal:
    """Efficiencies with paired intervals: each resample draws batches and parts of G, the same for all credits. So batches are
    taken as independent draws, and within one nothing is: not its prompts, and not the samples of a group.

    ⟨E g, G⟩ has no bias, since no sample of g is in G, and |G|² is the mean of ⟨G_m, G_n⟩ of different parts. The signal of a
    step is that of its exact expectation, but for the noise in a group's spread; a credit that tells samples apart adds what it
    has beyond its mean weights. The weights of INVERSE are those of the resample; those of BEST, w_j ∝ max(0, ⟨g_j, G⟩)/E|g_j|²,
    are found on one half of the batches and of G and judged on the other, both ways.

    `rows`: of N batches, see `_Measure.line`.
    `blocks`: [M, θ] parts of G.
    """
    gram = (blocks.double() @ blocks.double().T).numpy()
    sampled, signal = (
        np.array([row[name] for row in rows], dtype=np.float64) for name in ("signal", "exact")
    )  # [N, T', M]
    square = np.array([row["gram"] for row in rows], dtype=np.float64)  # [N, T', T']
    generator = np.random.default_rng(seed)
    drawn, parts = (_drawn(generator, size) for size in (len(rows), len(gram)))
    of_steps = np.einsum("rn,njm,rm->rj", drawn, signal, parts, optimize=True)
    of_pairs = np.einsum("rn,njk->rjk", drawn, square)
    # |G| of each resample, from different parts alone; NaN where they disagree
    apart = gram - np.diag(gram.diagonal())
    squares = np.einsum("rm,mn,rn->r", parts, apart, parts) / (1 - (parts**2).sum(1))
    length = np.sqrt(np.where(squares > 0, squares, np.nan))
    signals, weights = {}, {}
    for name in rows[0]["credits"]:
        own = [row["credits"][name] for row in rows]
        factor = np.array([batch["weights"] for batch in own], dtype=np.float64)
        if "square" in own[0]:
            n = np.array([batch["signal"] for batch in own], dtype=np.float64)
            n = n + np.einsum("j,njm->nm", factor.mean(0), signal - sampled)
            q = np.array([batch["square"] for batch in own], dtype=np.float64)
        else:
            n, q = np.einsum("nj,njm->nm", factor, signal), np.einsum("nj,njk,nk->n", factor, square, factor)
        signals[name] = np.einsum("rn,nm,rm->r", drawn, n, parts, optimize=True) / np.sqrt(drawn @ q)
        weights[name] = factor.mean(0)
    inverse = np.stack([inverse_variance(torch.from_numpy(batch.diagonal().copy())).numpy() for batch in of_pairs])
    signals[INVERSE], weights[INVERSE] = _of_fixed(inverse, of_steps, of_pairs), inverse[0]
    with np.errstate(invalid="ignore"):  # of few batches, a resample may hold none of one half
        signals[BEST] = _best(drawn, parts, signal, square)
    weights[BEST] = _fitted(of_steps, of_pairs)[0]
    uniform = signals[UNIFORM]
    decided = (uniform <= 0).mean() <= TAILS[0] and len(rows) > 1  # else a quotient by it says nothing
    result = [
        Found(
            name,
            _interval(values / length, len(rows)),
            _interval(values / uniform if decided else np.full_like(values, np.nan), len(rows), values[0] / uniform[0]),
            tuple((weights[name] / weights[name].mean()).tolist()),
            values,
        )
        for name, values in signals.items()
    ]
    winner, beside = winner_of(result, len(rows))
    half = [np.arange(len(gram)) % 2 == number for number in (0, 1)]
    between, within, other = (gram[np.ix_(half[a], half[b])].sum() for a, b in ((0, 1), (0, 0), (1, 1)))
    cosine = between / math.sqrt(within * other)
    steps_ = [_interval(column / length, len(rows)) for column in of_steps.T]
    noise = np.sqrt(of_pairs[0].diagonal()).tolist()
    attenuation = math.sqrt(max(0.0, 2 * cosine / (1 + cosine)))
    return Signal(result, steps_, noise, float(cosine), attenuation, len(rows), winner, beside)


def _drawn(generator: np.random.Generator, size: int) -> np.ndarray:
    """Shares [RESAMPLES + 1, size] with which a resample takes each of `size`; the first takes all alike."""
    counts = generator.multinomial(size, np.full(size, 1 / size), RESAMPLES)
    return np.concatenate([np.full((1, size), 1 / size), counts / size])


def _of_fixed(weights: np.ndarray, of_steps: np.ndarray, of_pairs: np.ndarray) -> np.ndarray:
    """n/√q of weights [R, T'] that all samples share."""
    return (weights * of_steps).sum(1) / np.sqrt(np.einsum("rj,rjk,rk->r", weights, of_pairs, weights))


def _fitted(of_steps: np.ndarray, of_pairs: np.ndarray) -> np.ndarray:
    """w_j ∝ max(0, ⟨g_j, G⟩)/E|g_j|², [R, T']; where no step has signal, all alike."""
    weights = np.maximum(0, of_steps) / np.diagonal(of_pairs, axis1=1, axis2=2)
    return np.where(weights.sum(1, keepdims=True) > 0, weights, 1.0)


def _best(drawn: np.ndarray, parts: np.ndarray, signal: np.ndarray, square: np.ndarray) -> np.ndarray:
    halves = []
    for half in (0, 1):
        own, others = (share * (np.arange(share.shape[1]) % 2 == half) for share in (drawn, parts))
        own, others = (share / np.maximum(share.sum(1, keepdims=True), 1e-9) for share in (own, others))
        halves.append(
            (np.einsum("rn,njm,rm->rj", own, signal, others, optimize=True), np.einsum("rn,njk->rjk", own, square))
        )
    first, second = halves
    return (_of_fixed(_fitted(*first), *second) + _of_fixed(_fitted(*second), *first)) / 2


def _interval(resampled: np.ndarray, size: int, mean: float | None = None) -> Interval:
    low, high = np.quantile(resampled[1:], TAILS) if size > 1 and np.isfinite(resampled[1:]).all() else (np.nan, np.nan)
    return Interval(float(resampled[0] if mean is None else mean), float(low), float(high), size)


def winner_of(rows: Sequence[Found], batches: int) -> tuple[str | None, tuple[str, ...]]:
    """The most efficient credit, where the batches say that it beats uniform, or uniform all others; and its equals."""
    credits = [row for row in rows if row.name != BEST]  # which was fitted to the signal
    best = max(credits, key=lambda row: row.resampled[0])
    others = [row for row in credits if row is not best]
    if batches < LEAST or any(math.isnan(row.ratio.low) for row in credits):
        return None, ()
    reached = {row.name: (row.resampled[1:] >= best.resampled[1:]).mean() > TAILS[0] for row in others}
    beats = best.ratio.low > 1 if best.name != UNIFORM else not any(reached.values())
    return (best.name if beats else None), tuple(name for name, equal in reached.items() if equal)


def markdown(found: Signal, levels: Sequence[float], said: str, seconds: float) -> str:
    """A row a credit, by falling efficiency, and a row a step."""
    body = []
    for row in sorted(found.rows, key=lambda row: -row.resampled[0]):
        mean, low, high = row.ratio.mean, row.ratio.low, row.ratio.high
        samples = "" if math.isnan(mean) or mean <= 0 else f"{1 / mean**2:.2f}"
        if samples and low > 0:
            samples += f" ({1 / high**2:.2f} … {1 / low**2:.2f})"
        body.append([row.name, bracketed(row.efficiency, ".4f", "–"), bracketed(row.ratio, ".2f", "–"), samples or "–"])
    steps_ = [
        [
            f"{level:.2f}",
            bracketed(signal, ".2e", "–"),
            f"{noise:.2e}",
            *(f"{row.weights[j]:.2f}" for row in found.rows),
        ]
        for j, (level, signal, noise) in enumerate(zip(levels, found.signal, found.noise, strict=True))
    ]
    lines = [
        *table(["credit", "efficiency", "÷ uniform", "samples for the same signal"], body),
        "",
        f"{said}; {found.batches} batches; {seconds / 60:.1f} minutes of one core. In brackets the 95 % paired bootstrap "
        f"interval, over batches and parts of the exact gradient. {_verdict(found)}",
        "",
        f"{BEST}: w ∝ signal/noise² of each step, found on one half and judged on the other. Two halves of the exact gradient "
        f"have a cosine of {found.halves:.2f}, the whole one about {number(found.cosine, '.2f', '–')} with the true one; "
        "efficiencies are corrected for that.",
        "",
        *table(["σ", "signal ⟨g, G⟩/|G|", "noise √E|g|²", *(row.name for row in found.rows)], steps_),
        "",
        "Under a credit's name are its mean weights.",
    ]
    return "\n".join(lines) + "\n"


def _verdict(found: Signal) -> str:
    if found.winner is None:
        return (
            f"The intervals are too wide to name a winner. Fix: more than {found.batches} --batches; the same command "
            "continues."
        )
    beside = f", which cannot be told apart from {', '.join(found.beside)}" if found.beside else ""
    return f"Most signal: {found.winner}{beside}."


def as_json(found: Signal, levels: Sequence[float], record: _Record) -> str:
    """All figures in full precision."""
    rows = [
        {"credit": row.name, "weights": list(row.weights)}
        | {key: asdict(getattr(row, key)) for key in ("efficiency", "ratio")}
        for row in found.rows
    ]
    content = {
        "sigmas": list(levels),
        "credits": rows,
        "signal": [asdict(interval) for interval in found.signal],
        "noise": found.noise,
        "cosine_of_halves": found.halves,
        "attenuation": found.cosine,
        "batches": found.batches,
        "winner": found.winner,
        "beside": list(found.beside),
        "seconds": record.seconds(),
    }
    return json.dumps(json.loads(json_line(content)), indent=1, ensure_ascii=False) + "\n"
