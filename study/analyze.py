"""`otca analyze`: whether a credit's ΔS follows the rewards, for a workflow's own model and rewards (OTCA Table 5, Fig. 6).

Runs the sampler, the stack, credit and fusion of an exported workflow without training, scores x̂0 at every step and compares
ΔR_j = R_{j+1} - R_j with ΔS_j over the trained steps. Its folder holds table.md, analysis.json, scatter.png, curves.png and
profile.png.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from ..host import distributed
from ..host.files import write_text
from ..trainer.credit.gains import rewards_along
from ..trainer.credit.proxies import similarity
from ..trainer.families.base import FlowModel
from ..trainer.groups import total_reward
from ..trainer.pictures import grids
from ..trainer.policy import lora, saved
from ..trainer.policy.files import ADAPTER
from ..trainer.run.folder import json_line
from ..trainer.run.loop import only
from ..trainer.types import GIVEN_NODES, SAMPLER_NODE, STACK_NODE, Advantages, Scores, Trajectories
from ..trainer.workflow.running import Workflow, WorkflowError
from . import plots
from .agreement import MEASURES, Shares, chance, pearson, possible, shares, shares_table
from .statistics import Interval, clustered, number, table

TABLE, FIGURES = "table.md", "analysis.json"
SUM = "sum"
ALIKE = "latents, mean of all"  # the same for every trajectory: what a proxy that cannot tell them apart would come to

LEGEND = (
    "Order: share of the pairs of steps that both put in the same order. Recall@k: share of the k steps of largest ΔR that are "
    "among the k of largest ΔS. Peak distance: steps between the two largest; less is better. "
    f"{ALIKE[0].upper()}{ALIKE[1:]}: ΔS averaged over all trajectories; a proxy that does no better tells steps apart, but not "
    "samples. Chance: a ΔS that has nothing to do with ΔR."
)

# What method.md §5 asks to be watched, by the names of the metrics; and whether z follows what all objectives together say of
# a sample, or the one that likes it least.
BEHAVIOUR = {
    "moca/tanh_e": "tanh(e)",
    "z/zero_fraction": "share of z = 0",
    "z/group_mean": "group mean of z",
    "credit/weight_variation": "std of w over samples",
    "z/with_sum": "r of z with Σ A",
    "z/with_least": "r of z with min A",
}


@dataclass(frozen=True)
class Rollout:
    """Figures of one run of the graph, of B samples in groups of G.

    Attributes:
        rewards: [B, T+1, K + H] along the way, held-out ones last.
        deltas: ΔS [B, T] of every proxy.
        behaviour: figures of every fuse node, by its title.
    """

    rewards: np.ndarray
    deltas: Mapping[str, np.ndarray]
    behaviour: Mapping[str, Mapping[str, float]]
    group_size: int


@dataclass(frozen=True)
class Row:
    """How a proxy follows an objective: each measure's mean with its interval and its std over trajectories; r of all steps."""

    objective: str
    proxy: str
    measures: Mapping[str, tuple[Interval, float]]
    pooled: float


@dataclass(frozen=True)
class Analysis:
    """All rollouts together: N trajectories, T' trained steps.

    Attributes:
        gains: ΔR [N, T'] of every objective, and of their sum by coefficients, each in units of its pictures' spread.
        deltas: ΔS [N, T'] of every proxy.
        shares: of every objective's variance, what each of the T steps decides.
    """

    rows: list[Row]
    gains: Mapping[str, np.ndarray]
    deltas: Mapping[str, np.ndarray]
    behaviour: Mapping[str, Mapping[str, tuple[float, float]]]
    groups: int
    trained: tuple[int, ...]
    sigmas: tuple[float, ...]
    shares: list[Shares]


def analyze(
    workflow: Workflow, folder: Path, iterations: int, adapter: Path | None = None, tweedie_steps: int = 1
) -> str:
    """Analyses so many rollouts of a workflow and fills the folder; returns the table, as Markdown.

    `adapter`: a run's folder, or a LoRA's file, that the model wears; None: the model as the workflow loads it.
    `tweedie_steps`: model calls that predict a picture, see `gains.predictions`. Proxies take one.

    Raises:
        WorkflowError: the graph cannot run.
        ValueError: several processes, or an adapter that does not fit.
        host.Stopped: nothing has been written.
    """
    model, sampler, stack = prepared(workflow, adapter)
    rollouts, last = _rollouts(workflow, model, sampler, stack, iterations, tweedie_steps)
    analysis = put_together(rollouts, *last)
    settings = {"iterations": iterations, "adapter": adapter and str(adapter), "tweedie_steps": tweedie_steps}
    table = markdown(analysis)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TABLE, table)
    write_text(folder / FIGURES, as_json(analysis, settings))
    draw(analysis, folder)
    return table


def prepared(workflow: Workflow, adapter: Path | None) -> tuple[FlowModel, str, str]:
    """The model, wearing the adapter, and the nodes that sample and score. Raises WorkflowError and ValueError, see `analyze`."""
    if distributed.world() > 1:
        raise ValueError("otca analyze runs in one process. Fix: start it without torchrun or accelerate launch")
    if errors := [problem for problem in workflow.validate() if problem.severity == "error"]:
        raise WorkflowError(errors)
    if any(map(workflow.find, GIVEN_NODES)):
        raise ValueError(
            "otca analyze looks at what a policy samples, and here the pictures are there already. Fix: a "
            "workflow with an SDE Sampler node"
        )
    sampler, stack = only(workflow, SAMPLER_NODE), only(workflow, STACK_NODE)
    workflow.set(f"{sampler}.keep_graph", "off")  # nothing is trained
    source, output = workflow.graph[sampler]["inputs"]["model"]
    model = workflow.run(targets=[source])[source][output]
    if adapter is not None:
        wear(model, adapter)
    return model, sampler, stack


def draw(analysis: Analysis, folder: Path) -> None:
    """Pictures of the objectives that could be scored at all."""
    gains = {name: gain for name, gain in analysis.gains.items() if np.isfinite(gain).any()}
    if not gains:
        return
    deltas = {name: delta for name, delta in analysis.deltas.items() if name != ALIKE}
    labels = [f"{step}\nσ {analysis.sigmas[step]:.2f}" for step in analysis.trained]
    pooled = {(row.objective, row.proxy): row.pooled for row in analysis.rows}
    grids.save(plots.agreement(deltas, gains, pooled, analysis.trained), folder / "scatter.png")
    grids.save(plots.profile(deltas, gains, labels), folder / "profile.png")
    overall, gain = list(gains.items())[-1]
    firsts = range(0, len(gain), len(gain) // analysis.groups)
    grids.save(plots.trajectories(deltas, gain, overall, firsts, pearson, labels), folder / "curves.png")


def wear(model: FlowModel, adapter: Path) -> None:
    run = adapter.is_dir()
    if model.policy.is_adapted:
        lora.put_on(model, adapter / ADAPTER if run else adapter)
    elif run:
        saved.load(model, adapter)
    else:
        raise ValueError(
            f"--adapter {adapter} needs a model with an adapter, and the workflow trains all weights. Fix: set training to lora"
        )


def _rollouts(
    workflow: Workflow, model: FlowModel, sampler: str, stack: str, iterations: int, tweedie_steps: int
) -> tuple[list[Rollout], tuple[Scores, Trajectories]]:
    """One a run of the graph, with seeds and index advancing as in training; and what is the same in all of them."""
    from tqdm import tqdm

    giving = {
        kind: [id_ for id_, node in workflow.nodes.items() if node.cls.RETURN_TYPES[:1] == (kind,)]
        for kind in ("OTCA_CREDIT", "OTCA_ADVANTAGES")
    }
    advancing, rollouts = workflow.advancing(), []
    for iteration in tqdm(range(iterations), desc="analyze", unit="rollout", disable=None):
        overrides = {(node, name): value + iteration for node, name, value in advancing}
        outputs = workflow.run(overrides=overrides, targets=[stack, *giving["OTCA_CREDIT"], *giving["OTCA_ADVANTAGES"]])
        trajectories, scores = outputs[sampler][0], outputs[stack][0]
        credits, advantages = (
            {title: outputs[node][0] for node, title in workflow.titles(nodes).items()} for nodes in giving.values()
        )
        rewards = rewards_along(
            model, trajectories, scores, range(len(trajectories.sigmas)), tweedie_steps, held_out=True
        )
        deltas = {name: similarity(name, trajectories, model).diff(dim=1) for name in ("latents", "prediction")}
        for title, credit in credits.items():
            if not any(torch.equal(credit.delta, delta) for delta in deltas.values()):
                deltas[title] = credit.delta
        behaviour = {title: behaviour_of(fused) for title, fused in advantages.items()}
        arrays = {name: delta.numpy() for name, delta in deltas.items()}
        rollouts.append(Rollout(rewards.numpy(), arrays, behaviour, len(rewards) // len(trajectories.prompts)))
        del outputs  # so that the next run can free what this one sampled
    return rollouts, (scores, trajectories)


def behaviour_of(advantages: Advantages) -> dict[str, float]:
    z, objectives = (
        advantages.fused.advantage[advantages.valid].numpy(),
        advantages.per_objective[advantages.valid].numpy(),
    )
    figures = {name: advantages.metrics[name] for name in BEHAVIOUR if name in advantages.metrics}
    totals = {"z/with_sum": objectives.sum(1), "z/with_least": objectives.min(1)}
    return figures | {
        name: float(pearson(z[None], total[None])[0]) if len(z) else math.nan for name, total in totals.items()
    }


def put_together(rollouts: list[Rollout], scores: Scores, trajectories: Trajectories) -> Analysis:
    trained = list(trajectories.trained)
    rewards = torch.from_numpy(np.concatenate([rollout.rewards for rollout in rollouts]))
    names, count = [*scores.names, *scores.held_out_names], len(scores.names)
    gains = {
        name: total_reward(rewards[:, :, k : k + 1], (1.0,), rewards[:, -1, k : k + 1]).diff(dim=1)
        for k, name in enumerate(names)
    }
    if count > 1:
        gains[SUM] = total_reward(rewards[:, :, :count], scores.coefficients, rewards[:, -1, :count]).diff(dim=1)
    gains = {name: gain[:, trained].numpy() for name, gain in gains.items()}
    deltas = {
        name: np.concatenate([rollout.deltas[name] for rollout in rollouts])[:, trained] for name in rollouts[0].deltas
    }
    deltas[ALIKE] = np.broadcast_to(deltas["latents"].mean(0), deltas["latents"].shape)
    size = rollouts[0].group_size
    rows = [row_of(objective, proxy, deltas[proxy], gains[objective], size) for objective in gains for proxy in deltas]
    behaviour = {
        title: {name: _spread([rollout.behaviour[title][name] for rollout in rollouts]) for name in figures}
        for title, figures in rollouts[0].behaviour.items()
    }
    decided = shares(names, rewards.numpy(), size)
    return Analysis(
        rows, gains, deltas, behaviour, len(rewards) // size, trajectories.trained, trajectories.sigmas, decided
    )


def row_of(objective: str, proxy: str, delta: np.ndarray, gain: np.ndarray, group_size: int) -> Row:
    measures = {}
    for name, measure in MEASURES.items():
        values = measure(delta, gain)
        groups = np.arange(len(values)) // group_size
        measures[name] = clustered(values, groups).within(*possible(name)), _spread(values)[1]
    return Row(objective, proxy, measures, pooled_pearson(delta, gain))


def pooled_pearson(delta: np.ndarray, gain: np.ndarray) -> float:
    """Over all steps of all trajectories that have no gap, as one cloud of points."""
    complete = np.isfinite(gain).all(1) & np.isfinite(delta).all(1)
    return (
        float(pearson(delta[complete].reshape(1, -1), gain[complete].reshape(1, -1))[0]) if complete.any() else np.nan
    )


def _spread(values) -> tuple[float, float]:
    """Mean and unbiased std of the finite values."""
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    mean = float(finite.mean()) if len(finite) else np.nan
    return mean, float(finite.std(ddof=1)) if len(finite) > 1 else np.nan


def markdown(analysis: Analysis) -> str:
    """A row a proxy and objective; means ± std over trajectories, in brackets the interval clustered by group."""
    steps, level = len(analysis.trained), chance(len(analysis.trained))
    body = [
        [row.objective, row.proxy, *(_cell(*row.measures[name]) for name in MEASURES), _number(row.pooled)]
        for row in analysis.rows
    ]
    body.append(["chance", "", *(_number(level[name]) for name in MEASURES), "0"])
    total = len(next(iter(analysis.deltas.values())))
    text = (
        f"{total} trajectories in {analysis.groups} groups, {steps} trained steps of {len(analysis.sigmas) - 1}. ΔS against ΔR "
        "over the trained steps of each trajectory: mean ± std over trajectories, in brackets the 95 % interval clustered by "
        f"{'group' if analysis.groups > 1 else 'trajectory'}; pooled: over all steps of all trajectories at once."
    )
    if SUM in analysis.gains:
        text += f" {SUM}: of the trained rewards by their coefficients, each divided by its standard deviation."
    lines = [*table(["objective", "proxy", *MEASURES, "pooled Pearson"], body), "", text]
    lines += ["", LEGEND, "", *shares_table(analysis.shares, analysis.sigmas)]
    for title, figures in analysis.behaviour.items():
        several = not np.isnan([std for _, std in figures.values()]).all()
        listed = ", ".join(
            f"{BEHAVIOUR[name]} {mean:.3g}" + ("" if np.isnan(std) else f" ± {std:.2g}")
            for name, (mean, std) in figures.items()
            if not np.isnan(mean)
        )
        lines += ["", f"{title}: {listed} ({'mean ± std over rollouts' if several else 'of one rollout'})."]
    return "\n".join(lines) + "\n"


def _cell(interval: Interval, std: float) -> str:
    if not interval.count:
        return "–"
    bounds = "" if np.isnan(interval.low) else f" ({_number(interval.low)} … {_number(interval.high)})"
    return f"{_number(interval.mean)} ± {_number(std)}{bounds}"


def _number(value: float) -> str:
    return number(value, ".2f", "–")


def as_json(analysis: Analysis, settings: Mapping[str, object]) -> str:
    """All figures in full precision, with the mean ΔS and ΔR of every trained step."""
    agreement = [
        {
            "objective": row.objective,
            "proxy": row.proxy,
            "pooled_pearson": row.pooled,
            **{name: {**asdict(interval), "std": std} for name, (interval, std) in row.measures.items()},
        }
        for row in analysis.rows
    ]
    content = {
        **settings,
        "groups": analysis.groups,
        "trajectories": len(next(iter(analysis.deltas.values()))),
        "trained": list(analysis.trained),
        "sigmas": list(analysis.sigmas),
        "chance": chance(len(analysis.trained)),
        "agreement": agreement,
        "shares": [asdict(own) for own in analysis.shares],
        "behaviour": {
            title: {name: {"mean": mean, "std": std} for name, (mean, std) in figures.items()}
            for title, figures in analysis.behaviour.items()
        },
        "mean_delta_similarity": {name: delta.mean(0).tolist() for name, delta in analysis.deltas.items()},
        "mean_delta_reward": {name: [_spread(column)[0] for column in gain.T] for name, gain in analysis.gains.items()},
    }
    return json.dumps(json.loads(json_line(content)), indent=1, ensure_ascii=False) + "\n"
