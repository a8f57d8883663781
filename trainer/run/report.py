"""The report of one iteration: what the update hands to Training Run."""

from __future__ import annotations

from collections.abc import Mapping

from .. import keys
from ..types import LEFT_OUT, OPINION, Advantages, Report, Trajectories


def report(update: Mapping[str, float], trajectories: Trajectories, advantages: Advantages) -> Report:
    """Gathers the metrics of one iteration from the values that took part in it. `update`: those of the update itself."""
    scores = advantages.scores
    metrics: dict[str, float] = {}
    opinions = {OPINION} - {reward.name for reward in scores.rewards}
    for kind, names, values in (
        (keys.REWARD, scores.names, scores.values),
        (keys.HELD_OUT, scores.held_out_names, scores.held_out),
    ):
        for k, name in enumerate(names):
            if name in opinions:
                continue  # what was said of a picture, and not what a reward finds in it: training cannot change it
            column = values[:, k][values[:, k].isfinite()]
            metrics[keys.mean(kind, name)] = column.mean().item()
            metrics[keys.std(kind, name)] = column.std().item() if len(column) > 1 else 0.0
            if without := int((values[:, k] == LEFT_OUT).sum()):
                metrics[keys.does_not_apply(name)] = float(without)
    if scores.distance is not None and len(distance := scores.distance[scores.distance.isfinite()]):
        metrics["diversity"] = distance.mean().item()
    for reward in scores.rewards:
        metrics |= {
            keys.mean(keys.HELD_OUT, f"{reward.name}_{name}"): value for name, value in reward.watched().items()
        }
    metrics |= {**advantages.metrics, **update}
    phases = {
        "seconds/rollout": trajectories.seconds,
        "seconds/reward": sum(scores.seconds.values()) if scores.waited is None else scores.waited,
        "seconds/credit": advantages.credit.seconds + advantages.seconds,
        "seconds/update": metrics["seconds/update"],
    }
    metrics |= {
        **phases,
        "seconds/iteration": sum(phases.values()),
        **{keys.reward_seconds(name): seconds for name, seconds in scores.seconds.items()},
    }
    metrics["samples_per_second"] = trajectories.share.total / metrics["seconds/iteration"]
    return Report(metrics, advantages, trajectories)
