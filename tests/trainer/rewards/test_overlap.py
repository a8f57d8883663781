"""Scoring while the next samples are made: the same numbers, and no thread that outlives what began it."""

from __future__ import annotations

import gc
import json
import signal
import threading
import time
import weakref
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from comfyui_otca.host import stopping
from comfyui_otca.tests.processes import together
from comfyui_otca.tests.training import train
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.rewards import RewardError, overlap, reward_class
from comfyui_otca.trainer.rewards.base import Reward
from comfyui_otca.trainer.rewards.overlap import Overlap
from comfyui_otca.trainer.run import record
from comfyui_otca.trainer.types import Prompts
from comfyui_otca.trainer.workflow.running import NodeError

pytestmark = pytest.mark.anywhere

PROMPTS = Prompts(("a red circle", "a blue square"), (0, 1))
PATIENCE = 30
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("otca-rewards")]


class Telling(Reward):
    """The mean of each picture; remembers what it was asked, and in which thread."""

    told = staticmethod(lambda: None)

    def __init__(self, name="mean", held_out=False):
        super().__init__(name, held_out=held_out)
        self.asked, self.rested = [], 0

    def score(self, images, prompts):
        self.asked.append((threading.current_thread() is threading.main_thread(), len(images), list(prompts)))
        self.told()
        return images.mean((1, 2, 3))

    def rest(self):
        self.rested += 1


@pytest.fixture(scope="module")
def toy(load_toy):
    return load_toy()


@pytest.fixture
def overlapped(toy, small_settings):
    """overlapped(Overlap, on_step): two groups of three, in parts of two."""

    def take(own, on_step=lambda: None):
        settings = small_settings(batch_size=2)
        return rollout.sample(toy, PROMPTS, settings, group_size=3, seed=7, on_step=on_step, overlap=own)

    return take


def stack(trajectories, *rewards, overlap=True):
    from comfyui_otca.nodes.rewards.stack import RewardStack

    sockets = {f"reward_{number}": reward for number, reward in enumerate(rewards, 1)}
    returned = RewardStack().score(trajectories, overlap=overlap, **sockets)
    return (returned["result"] if isinstance(returned, dict) else returned)[0]


# -- one rollout -------------------------------------------------------------------------------------------------------


def test_the_first_rollout_is_scored_by_the_stack_and_the_next_ones_ahead(overlapped, toy):
    own, first, second = Overlap(), Telling(), Telling("watched", held_out=True)
    before = stack(overlapped(own), second, first)
    parts = [(2, ["a red circle"] * 2), (2, ["a red circle", "a blue square"]), (2, ["a blue square"] * 2)]
    assert first.asked == second.asked == [(True, *part) for part in parts]
    trajectories = overlapped(own)
    assert first.asked[3:] == second.asked[3:] == [(False, *part) for part in parts]
    scores = stack(trajectories, second, first)
    assert len(first.asked) == len(second.asked) == 6, "the stack takes what is known"
    assert torch.equal(scores.values, before.values) and torch.equal(scores.held_out, before.held_out)
    assert scores.names == ("mean",) and scores.held_out_names == ("watched",) and scores.rewards == (first, second)
    torch.testing.assert_close(scores.values[:, 0], trajectories.images.mean((1, 2, 3)))
    assert torch.equal(trajectories.images, toy.decode(trajectories.final, 2))
    assert scores.seconds.keys() == before.seconds.keys() and before.waited is None
    assert 0 <= scores.waited and first.rested >= 2 <= second.rested
    assert stack(trajectories, second, first).waited is None and len(first.asked) == 9, "given out once"


def test_a_part_is_scored_before_the_next_one_is_complete(overlapped):
    """Without overlap this would wait for ever."""
    own, calls, reward, scored = Overlap(), [], Telling(), threading.Event()

    def on_step():
        calls.append(None)
        if len(calls) == 4 + 4 + 2:  # the last part's second step of four
            assert scored.wait(PATIENCE)

    stack(overlapped(own), reward)
    reward.told = scored.set
    overlapped(own, on_step)
    assert len(calls) == 12


def test_whoever_was_not_asked_is_asked_by_the_stack_and_rewards_are_only_borrowed(overlapped):
    own, first, second = Overlap(), Telling(), Telling()
    stack(overlapped(own), first)
    assert stack(overlapped(own), second).values.shape == (6, 1)
    assert [alone for alone, *_ in second.asked] == [True] * 3, "these were not the stack's rewards any more"
    taken, other = overlapped(own), overlapped(Overlap())
    other = stack(replace(other, overlap=own), second)
    assert len(second.asked) == 9 and torch.equal(other.values, stack(taken, second).values), "other pictures"
    overlapped(own)
    gone = weakref.ref(second)
    del second, other
    gc.collect()
    assert gone() is None
    overlapped(own)


def test_switched_off_nobody_scores_ahead(overlapped):
    """Nor does a second stack take anything from the first."""
    own, reward = Overlap(), Telling()
    stack(overlapped(own), reward)
    stack(overlapped(own), reward, overlap=False)
    assert [count for _, count, _ in reward.asked] == [2, 2, 2, 2, 2, 2, 6], "all at once, as ever"
    overlapped(own)
    assert len(reward.asked) == 7
    own, first, second = Overlap(), Telling(), Telling()
    for _ in range(2):
        trajectories = overlapped(own)
        stack(trajectories, second, overlap=False)
        stack(trajectories, first)
        stack(trajectories, second, overlap=False)
    assert [alone for alone, *_ in first.asked] == [True] * 3 + [False] * 3
    assert [count for _, count, _ in second.asked] == [6] * 4


def test_a_failure_is_told_by_the_stack_and_once(overlapped, caplog):
    class Shaky(Telling):
        broken = False

        def score(self, images, prompts):
            super().score(images, prompts)
            if self.broken:
                raise OSError("the scorer's disk is gone")
            return torch.tensor([0.5, torch.nan if "blue" in prompts[0] else 1.0])

    own, reward = Overlap(), Shaky()
    for _ in range(2):
        caplog.clear()
        scores = stack(overlapped(own), reward)
        assert scores.values.isnan()[:, 0].tolist() == [False] * 5 + [True], "numbered as in the rollout"
        assert "reward 'mean' gave nan for sample 5" in caplog.text
    reward.broken = True
    trajectories = overlapped(own)
    assert len(reward.asked) == 7, "the first part's failure spares the others"
    with pytest.raises(RewardError, match="reward 'mean' failed: OSError: the scorer's disk is gone"):
        stack(trajectories, reward)
    reward.broken = False
    assert stack(trajectories, reward).values[:5].isfinite().all(), "as it would be when queued again"


# -- stopping ----------------------------------------------------------------------------------------------------------


class Patient(Telling):
    """Waits, as a reward does that asks a server, until somebody asks to stop."""

    def __init__(self):
        super().__init__()
        self.began = threading.Event()

    def score(self, images, prompts):
        if threading.current_thread() is threading.main_thread():
            return super().score(images, prompts)
        self.began.set()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            stopping.check_stop()
            time.sleep(0.01)
        raise AssertionError("nobody said to stop")


@pytest.mark.parametrize("calls", [6, 12], ids=["amid sampling", "waiting for scores"])
def test_a_stop_ends_the_thread_too(overlapped, calls):
    own, reward, made = Overlap(), Patient(), []
    stack(overlapped(own), reward)

    def on_step():
        made.append(None)
        if len(made) == calls:
            assert reward.began.wait(PATIENCE)
            stopping.request.signal = signal.SIGINT
        if len(made) < 12:
            stopping.check_stop()

    with pytest.raises(stopping.Stopped, match="signal 2"):
        overlapped(own, on_step)
    stopping.request.signal = None
    assert own.take(torch.zeros(1), [reward]) is None


def test_comfyuis_interrupt_is_met_by_the_thread_that_runs_the_graph(overlapped, comfyui):
    """ComfyUI tells of it once: a helper that asked would take it away. An error of the sampler ends the thread too."""
    own, reward = Overlap(), Patient()
    stack(overlapped(own), reward)
    comfyui.checks, comfyui.interrupt_after = 0, 9
    with pytest.raises(comfyui.Interrupt):
        overlapped(own, stopping.check_stop)
    assert comfyui.checks == 9
    comfyui.interrupt_after = None
    reward.began.clear()

    def on_step():
        if reward.began.is_set():
            raise MemoryError("the accelerator is full")

    with pytest.raises(MemoryError):
        overlapped(own, on_step)


# -- whole trainings ---------------------------------------------------------------------------------------------------

ON = {
    "OTCA_SDESampler": {"batch_size": 2},
    "OTCA_RewardStack": {"overlap": True},
    "OTCA_TrainingRun": {
        "iterations": 2,
        "evaluate_every": 2,
        "evaluation_prompts": "a red circle",
        "evaluation_steps": 2,
    },
}


def _train(workflow, folder, overlapping=True):
    """Its exit code, its lines, and how many samples were in each part that was scored during sampling."""
    record.open_runs.clear()
    parts, own, expect = [], overlap.Scored.score_ready, Overlap.expect
    overlap.Scored.score_ready = lambda self, images, *rest: parts.append(len(images)) or own(self, images, *rest)
    if not overlapping:
        Overlap.expect = lambda self, rewards: None
    try:
        code = train(workflow, folder)
    finally:
        overlap.Scored.score_ready, Overlap.expect = own, expect
    return code, [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()], parts


def test_a_training_is_the_same_bit_for_bit(small_workflow, tmp_path):
    code, lines, parts = _train(small_workflow(ON), tmp_path / "ahead")
    plain_code, plain, none = _train(small_workflow(ON), tmp_path / "plain", overlapping=False)
    assert code == plain_code == 0 and parts == [2, 2, 2] and none == []
    for ours, row in zip(lines, plain, strict=True):
        assert {k: v for k, v in ours.items() if v != row[k]}.keys() <= {
            k for k in row if k.startswith(("seconds", "samples"))
        }
        phases = sum(ours[f"seconds/{phase}"] for phase in ("rollout", "reward", "credit", "update"))
        assert ours["seconds/iteration"] == pytest.approx(phases)
        assert ours["diversity"] == row["diversity"] > 0
    first, second = (load_file(tmp_path / name / "lora.safetensors") for name in ("ahead", "plain"))
    assert first.keys() == second.keys() and all(torch.equal(second[name], value) for name, value in first.items())


@pytest.mark.host  # forks
def test_two_processes_score_ahead(small_workflow, tmp_path):
    """Three samples each, in parts of two and one."""
    (code, lines, parts), (_, _, others) = together(2, _train, small_workflow(ON), tmp_path / "two")
    assert code == 0 and parts == others == [2, 1]
    _, alone, _ = _train(small_workflow(ON), tmp_path / "one")
    for name in ("reward/clip_t/mean", "held_out/accuracy/mean", "z/group_mean", "gradient_norm"):
        assert lines[1][name] == pytest.approx(alone[1][name], rel=1e-3, abs=1e-4), name


def test_the_canvas_names_the_stack_where_a_reward_fails_ahead(writes_to, small_workflow, tmp_path):
    writes_to(tmp_path)
    workflow = small_workflow(ON)
    seed = next((node, name, value) for node, name, value in workflow.advancing() if name == "seed")
    workflow.run()
    broken, own = reward_class("clip_t"), reward_class("clip_t").score

    def score(self, images, prompts):
        raise OSError("the scorer's disk is gone")

    broken.score = score
    try:
        with pytest.raises(NodeError, match='"Reward Stack".*the scorer\'s disk is gone'):
            workflow.run(overrides={seed[:2]: seed[2] + 1})
    finally:
        broken.score = own
    ran = []
    workflow.run(overrides={seed[:2]: seed[2] + 1}, on_node=lambda node, cached: cached or ran.append(node))
    assert workflow.find("SDESampler")[0] not in ran and workflow.find("RewardStack")[0] in ran
