"""Names of the values in metrics.jsonl, which the trackers show too. Each kind is put together and taken apart here alone.

    reward/<name>/mean, reward/<name>/std       scores of a reward that is trained on, over one iteration's samples
    held_out/<name>/mean, held_out/<name>/std   the same of a reward that is only watched
    held_out/<name>_foretold/mean               the share of your votes that Reward: Vote foretold before it learned them
    evaluation/<name>, evaluation/sum           a reward's mean on the fixed prompts and seeds, and the sum of all rises
    diversity                                   how far samples are from the others of their prompt, where a reward sees that
    does_not_apply/<name>                       to how many samples a reward does not apply, where there are any
    credit/step/<number>                        mean weight of a denoising step
    credit/objective/<name>/<number>            its mean weight for one reward, where a credit tells them apart
    credit/variance/<name>                      Σ_j Var(g_j)/Var(R), by which learned credit chooses its shares
    seconds/reward/<name>                       how long one reward took to score

Imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

KINDS = REWARD, HELD_OUT = "reward", "held_out"
HACKING = "warning/reward_hacking"

_MEAN, _EVALUATION, _STEP, _SECONDS = "/mean", "evaluation/", "credit/step/", "seconds/reward/"


def mean(kind: str, reward: str) -> str:
    """`kind` is one of KINDS."""
    return f"{kind}/{reward}{_MEAN}"


def std(kind: str, reward: str) -> str:
    return f"{kind}/{reward}/std"


def does_not_apply(reward: str) -> str:
    return f"does_not_apply/{reward}"


def rewards(names: Iterable[str], kind: str) -> list[str]:
    """The rewards of that kind whose means are among the names, in their order."""
    start = f"{kind}/"
    return [
        name.removeprefix(start).removesuffix(_MEAN)
        for name in names
        if name.startswith(start) and name.endswith(_MEAN)
    ]


def evaluation(reward: str) -> str:
    return _EVALUATION + reward


EVALUATION_SUM = evaluation("sum")


def evaluated(name: str) -> str:
    """The reward of a name that `evaluation` has made."""
    return name.removeprefix(_EVALUATION)


def credit_step(number: int) -> str:
    return f"{_STEP}{number}"


def credit_step_number(name: str) -> str | None:
    """The number that `credit_step` puts into a name; None for a name of another kind."""
    return name.removeprefix(_STEP) if name.startswith(_STEP) else None


def objective_step(reward: str, number: int) -> str:
    return f"credit/objective/{reward}/{number}"


def credit_variance(reward: str) -> str:
    return f"credit/variance/{reward}"


def reward_seconds(reward: str) -> str:
    return _SECONDS + reward


def timed_rewards(names: Iterable[str]) -> list[str]:
    """The rewards whose seconds are among the names, in their order."""
    return [name.removeprefix(_SECONDS) for name in names if name.startswith(_SECONDS)]
