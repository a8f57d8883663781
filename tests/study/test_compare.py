"""`otca compare`: what is refused, which trainings are begun, gone on with and left alone, and what is chosen and written."""

from __future__ import annotations

import functools
import json
import math
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.host import stopping
from comfyui_otca.study import compare
from comfyui_otca.study import trainings as processes
from comfyui_otca.study.compare import choose
from comfyui_otca.study.trainings import Settings, run, trainings
from comfyui_otca.trainer.run import budget, record
from comfyui_otca.trainer.run.budget import Budget
from comfyui_otca.trainer.run.folder import RunError, json_line

PROMPTS = "a red circle\na blue square"
ALIKE = Settings(2, seeds=range(2), evaluate_every=1, prompts=PROMPTS, evaluation_seeds=2, tuning_iterations=2)
FORWARDS = replace(ALIKE, budget=Budget("forwards", 100, 2), evaluation_steps=4)


def finish(training, rise, held_out=(0.5, 0.75)):
    """Writes what a training leaves behind whose one trained reward rises by so many standard deviations.

    `held_out`: what a second reward gave the two pictures at the end, of which it gave 0.5 and 0.75 before training.
    """
    folder, last = training.folder, training.iterations
    folder.mkdir(parents=True, exist_ok=True)
    if training.budget:
        training.budget.write(folder)
        last = 2
    written = {
        "workflow": training.workflow.graph,
        "status": {"status": "finished", "total": training.iterations},
        "diversity": {f"shapes-clip, {training.length}": 0.5, "shapes-clip, before training": 0.6},
    }
    for name, content in written.items():
        (folder / f"{name}.json").write_text(json.dumps(content))

    def evaluation(iteration, judged):
        mean = 1 + 2 * rise * iteration / last
        trained = {"mean": mean, "std": 2, "held_out": False, "values": [mean, None]}
        judge = {"mean": sum(judged) / 2, "std": 1, "held_out": True, "values": judged}
        rewards = {name: {**own, "standard_error": 0.5} for name, own in (("a", trained), ("judge", judge))}
        return {"iteration": iteration, "rewards": rewards}

    evaluations = [evaluation(0, [0.5, 0.75]), evaluation(last, list(held_out))]
    figures = {"seconds/iteration": 1, "seconds/used": 2, "forwards/all": 24, "forwards/with_gradient": 14}
    rows = [{"iteration": number + 1, **figures} for number in range(last)]
    for name, lines in (("evaluation", evaluations), ("metrics", rows)):
        (folder / f"{name}.jsonl").write_text("".join(map(json_line, lines)))


# --- which trainings -------------------------------------------------------------------------------------------------


def test_all_start_alike(both, tmp_path):
    found = trainings(both(), {"otca": (1e-4, 2e-4), "uniform": (3e-4,)}, (7, 8), ALIKE, tmp_path)
    places = ["otca/lr0.0001", "otca/lr0.0002", "uniform/lr0.0003"]
    assert [str(own.folder.relative_to(tmp_path)) for own in found] == [
        f"{place}/seed{seed}" for seed in (7, 8) for place in places
    ]
    for own in found:
        nodes = {entry["class_type"]: entry["inputs"] for entry in own.workflow.graph.values()}
        for node in ("OTCA_LoadFlowModel", "OTCA_PromptDataset", "OTCA_SDESampler"):
            assert nodes[node]["seed"] == own.seed
        assert nodes["OTCA_GRPOStep"]["learning_rate"] == own.rate
        run = nodes["OTCA_TrainingRun"]
        assert (run["iterations"], run["evaluate_every"], run["evaluation_seeds"]) == (2, 1, 2)
        assert run["evaluation_prompts"] == ALIKE.prompts and run["stop_after_decline"] == 0
        assert not own.workflow.validate()


class Child:
    """In place of a process: what `ends` does with its folder and log gives its exit code; None goes on for ever."""

    ends = staticmethod(lambda folder, log: 0)
    begun = []

    def __init__(self, command, stdout, env, **_):
        assert command[2] == "train" and command[4] == "--resume"
        self.folder, self.stopped = Path(command[3]), False
        self.begun.append(self.folder)
        self.threads = env["OMP_NUM_THREADS"]
        self.code = self.ends(self.folder, stdout)

    def poll(self):
        return self.code

    def terminate(self):
        self.stopped = True

    def wait(self):
        assert self.stopped


@pytest.fixture
def child(monkeypatch):
    """Child, in place of every process; `child.begun` are the folders."""

    class Own(Child):
        begun = []

    monkeypatch.setattr("subprocess.Popen", Own)
    monkeypatch.setattr(processes, "GLANCE", 0.0)
    return Own


def test_what_is_finished_is_left_alone_and_what_is_longer_goes_on(both, child, tmp_path):
    first, second, *_ = trainings(both(), {"otca": (1e-4,), "uniform": (1e-4,)}, (0,), ALIKE, tmp_path)
    finish(first, 1.0)
    assert run([first, second], ALIKE, print).keys() == {str(second)}, "it wrote nothing, so it failed"
    assert child.begun == [second.folder]
    assert json.loads((second.folder / "workflow.json").read_text()) == second.workflow.graph
    longer, _ = trainings(both(), {"otca": (1e-4,), "uniform": (1e-4,)}, (0,), replace(ALIKE, iterations=3), tmp_path)
    run([longer], ALIKE, print)
    assert child.begun[1:] == [first.folder]
    rarer = replace(ALIKE, iterations=4, evaluate_every=4)
    run(trainings({"otca": both()["otca"]}, {"otca": (1e-4,)}, (0,), rarer, tmp_path), rarer, print)
    assert child.begun[2:] == [first.folder], "evaluated less often, which changes nothing of the training"
    shorter = trainings(both(), {"otca": (1e-4,), "uniform": (1e-4,)}, (0,), replace(ALIKE, iterations=1), tmp_path)
    with pytest.raises(RunError, match="iterations: 4 -> 1. Fix: choose another --output"):
        run(shorter, ALIKE, print)


def test_another_training_in_the_folder_is_refused(both, child, tmp_path):
    rates = {"otca": (1e-4,), "uniform": (1e-4,)}
    finish(trainings(both(), rates, (0,), ALIKE, tmp_path)[1], 1.0)
    changed = both({"OTCA_GRPOStep": {"clip_range": 0.25}})
    with pytest.raises(RunError, match=r"was trained otherwise: 11.clip_range: 0.0001 -> 0.25. Fix: "):
        run(trainings(changed, rates, (0,), ALIKE, tmp_path), ALIKE, print)
    assert child.begun == []


def test_a_failure_is_named_and_the_others_go_on(both, child, tmp_path):
    all_ = trainings(both(), {"otca": (1e-4,), "uniform": (1e-4,)}, range(2), ALIKE, tmp_path)

    def ends(folder, log):
        if folder == all_[1].folder:
            log.write("iteration 1\notca: the reward is on fire\n")
            return 1
        own = next(own for own in all_ if own.folder == folder)
        finish(own, 1.0)
        return 0

    child.ends = staticmethod(ends)
    said = []
    failed = run(all_, replace(ALIKE, jobs=3), said.append)
    assert child.begun == [own.folder for own in all_] and failed.keys() == {str(all_[1])}
    assert "the reward is on fire" in failed[str(all_[1])] and "train.log" in failed[str(all_[1])]
    assert any("the reward is on fire" in line for line in said)


def test_a_stop_is_passed_on(both, child, monkeypatch, tmp_path):
    all_ = trainings(both(), {"otca": (1e-4,), "uniform": (1e-4,)}, (0,), ALIKE, tmp_path)
    children = []

    def ends(folder, log):
        stopping.request.signal = signal.SIGTERM

    child.ends = staticmethod(ends)
    monkeypatch.setattr(child, "terminate", lambda self: (children.append(self.folder), setattr(self, "stopped", True)))
    with pytest.raises(stopping.Stopped):
        run(all_, ALIKE, print)
    assert children == child.begun == [all_[0].folder], "one at a time, and no other after it"


def test_whom_a_killed_comparison_left_behind_is_waited_for(both, child, monkeypatch, tmp_path):
    [own] = trainings({"otca": both()["otca"]}, {"otca": (1e-4,)}, (0,), ALIKE, tmp_path)
    answers = iter(["process 4711", "process 4711", None])

    def holder(folder):
        if (answer := next(answers)) is None:
            finish(own, 1.0)
        return answer

    monkeypatch.setattr(processes.claim, "holder", holder)
    monkeypatch.setattr(processes.claim, "lives", lambda found: True)
    said = []
    assert run([own], ALIKE, said.append) == {} and child.begun == []
    assert "process 4711 still trains it" in said[0]


def test_a_real_process(both, tmp_path):
    settings = replace(ALIKE, iterations=1, evaluation_seeds=1)
    [own] = trainings({"otca": both()["otca"]}, {"otca": (1e-4,)}, (3,), settings, tmp_path)
    assert run([own], settings, print) == {} and own.finished
    assert "done after 1 iterations" in (own.folder / "train.log").read_text()


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_a_budget_is_the_same_for_all(both, child, tmp_path):
    first, second = trainings(both(), {"otca": (1e-4,), "uniform": (1e-4,)}, (0,), FORWARDS, tmp_path)
    inputs = first.workflow.graph["12"]["inputs"]
    assert inputs["iterations"] == 10**6 and inputs["checkpoint_every"] == 25 and inputs["evaluation_steps"] == 4
    finish(first, 1.0)  # 2 iterations of 24 + 2 · 14
    assert first.finished and not second.finished and (first.length, str(first.budget)) == ("100 forwards",) * 2
    run([first, second], FORWARDS, print)
    assert child.begun == [second.folder] and budget.read(second.folder) == FORWARDS.budget


def test_a_larger_budget_goes_on_and_another_one_is_refused(both, child, tmp_path):
    def one(changed):
        [own] = trainings({"otca": both()["otca"]}, {"otca": (1e-4,)}, (0,), changed, tmp_path)
        return own

    finish(one(FORWARDS), 1.0)
    larger = replace(FORWARDS, budget=Budget("forwards", 105, 2))
    assert not one(larger).finished
    assert processes.state(one(larger)) == "ended early: it was trained for 1000000 iterations"
    run([one(larger)], larger, print)
    assert child.begun == [one(larger).folder] and budget.read(one(larger).folder) == larger.budget
    for other, words in (
        (FORWARDS, "was trained for 105 forwards, and not for 100 forwards"),
        (replace(FORWARDS, budget=Budget("seconds", 200, 2)), "for 105 forwards, and not for 200 seconds"),
        (ALIKE, "for 105 forwards, and not for 2 iterations"),
    ):
        with pytest.raises(RunError, match=f"{words}. Fix: choose another --output"):
            run([one(other)], other, print)
    (one(FORWARDS).folder / "budget.json").unlink()
    with pytest.raises(RunError, match="for a number of iterations, and not for 100 forwards"):
        run([one(FORWARDS)], FORWARDS, print)


def diverge(training):
    training.folder.mkdir(parents=True)
    error = 'NodeError: node 11 "GRPO Step" failed: NonFiniteUpdate: 10 updates in a row. Fix: lower learning_rate'
    (training.folder / "status.json").write_text(json.dumps({"status": "failed", "error": error}))
    (training.folder / "workflow.json").write_text(json.dumps(training.workflow.graph))
    (training.folder / "metrics.jsonl").write_text('{"iteration": 1}\n{"iteration": 2}\n')


def test_what_diverged_is_told_and_not_tried_again(both, child, tmp_path):
    first, second = trainings(both(), {"otca": (1e-4,), "uniform": (1e-4,)}, (0,), ALIKE, tmp_path)
    diverge(first)
    finish(second, 1.0)
    assert run([first, second], ALIKE, print) == {} and child.begun == []
    assert processes.state(first).startswith("diverged after 2 iterations: NodeError: ")
    table, complete = compare.compare(
        both(), "uniform", replace(ALIKE, learning_rates=(1e-4,), seeds=(0,)), tmp_path, print
    )
    assert complete and "- otca, learning rate 0.0001, seed 0: diverged after 2 iterations: " in table
    facts = json.loads((tmp_path / "comparison.json").read_text())["facts"]
    assert facts["diverged"] == {"otca": 1}


def test_a_rate_at_which_a_training_diverged_is_out(both, tmp_path):
    tuning = trainings({"otca": both()["otca"]}, {"otca": (1e-4, 2e-4)}, (1000, 1001), ALIKE, tmp_path)
    for own in tuning:
        if (own.rate, own.seed) == (2e-4, 1001):
            diverge(own)
        else:
            finish(own, own.rate * 1e4)
    sweep = choose(tuning, (1000, 1001))
    assert sweep.chosen == {"otca": 1e-4} and sweep.diverged == {"otca": [2e-4]}


# --- learning rates --------------------------------------------------------------------------------------------------


def test_the_best_rate_of_all_seeds_is_chosen(both, tmp_path):
    rates = (1e-4, 2e-4, 4e-4)
    tuning = trainings(both(), {"otca": rates, "uniform": (5e-5, *rates)}, (1000, 1001), ALIKE, tmp_path)
    rises = {
        ("otca", 1e-4): (1.0, 1.0),
        ("otca", 2e-4): (3.0, 0.0),  # the best mean
        ("otca", 4e-4): (9.0, None),  # failed once
        ("uniform", 1e-4): (1.0, 2.0),
        ("uniform", 2e-4): (2.0, 1.0),  # no better, and higher
        ("uniform", 4e-4): (None, None),
        ("uniform", 5e-5): (math.nan, 9.0),  # ended without a score
    }
    for own in tuning:
        if (rise := rises[own.name, own.rate][own.seed - 1000]) is not None:
            finish(own, rise)
    sweep = choose(tuning, (1000, 1001))
    assert sweep.chosen == {"otca": 2e-4, "uniform": 1e-4}
    assert sweep.scores["otca"] == pytest.approx({1e-4: 1.0, 2e-4: 1.5})
    assert sweep.rates == {"otca": list(rates), "uniform": [5e-5, *rates]}, "also those that nobody could score"
    assert sweep.length == "2 iterations"
    none = choose([own for own in tuning if (own.name, own.rate) == ("uniform", 4e-4)], (1000, 1001))
    assert none.scores == {"uniform": {}} and none.chosen == {}


def test_a_rate_at_which_the_rewards_were_hacked_is_the_last_choice(both, tmp_path):
    rates = (1e-4, 2e-4, 4e-4)
    tuning = trainings(both(), {"otca": rates, "uniform": rates}, (1000,), ALIKE, tmp_path)
    # Differences 0.25 and -0.25: mean 0; -0.25 and 0: mean -0.125, standard error 0.125; -0.25 and -0.125: -0.1875, 0.0625.
    judged = {1e-4: (0.75, 0.5), 2e-4: (0.25, 0.75), 4e-4: (0.25, 0.625)}
    for own in tuning:
        finish(own, own.rate * 1e4, judged[own.rate] if own.name == "otca" else judged[4e-4])
    sweep = choose(tuning, (1000,))
    assert sweep.declined == {"otca": [4e-4], "uniform": list(rates)}
    assert sweep.chosen == {"otca": 2e-4, "uniform": 4e-4}


# --- the command -----------------------------------------------------------------------------------------------------


def reported(small_workflow, tmp_path, name="otca", seed=0):
    """A finished training where `otca compare --report` of `asked` looks for it."""
    workflow = small_workflow(source=f"{name}.json")
    prompts = small_workflow().graph["12"]["inputs"]["evaluation_prompts"]
    settings = replace(ALIKE, prompts=prompts, evaluate_every=2)
    [own] = trainings({name: workflow}, {name: (1e-3,)}, (seed,), settings, tmp_path / "out")
    finish(own, 1.0)


@pytest.fixture
def asked(small_graph, tmp_path):
    """asked(…): the exit code of `otca compare` of both small workflows, into tmp_path / "out"."""
    for name in ("otca", "uniform"):
        (tmp_path / f"{name}.json").write_text(json.dumps(small_graph(source=f"{name}.json")))
    files = [f"otca={tmp_path / 'otca.json'}", f"uniform={tmp_path / 'uniform.json'}"]
    output = ["--output", tmp_path / "out"]

    def run(*options, common=("--iterations", 2, "--seeds", 2, "--evaluate-every", 2)):
        return main([str(part) for part in ["compare", *files, *output, *common, *options]])

    return run


@pytest.fixture
def in_process(monkeypatch):
    """Trainings in this process; a list of the folders that were trained."""
    begun = []

    class Process:
        def __init__(self, command, **_):
            begun.append(Path(command[3]))
            record.open_runs.clear()
            self.code = main(command[2:])

        def poll(self):
            return self.code

    monkeypatch.setattr("subprocess.Popen", Process)
    monkeypatch.setattr(processes, "GLANCE", 0.0)
    return begun


@pytest.mark.painted
def test_two_workflows_two_seeds(asked, in_process, tmp_path, capsys):
    assert asked("--baseline", "uniform") == 0
    folder = tmp_path / "out"
    assert (folder / "comparison.md").read_text() in capsys.readouterr().out
    assert in_process == [folder / name / "lr0.001" / f"seed{seed}" for seed in (0, 1) for name in ("otca", "uniform")]
    content = json.loads((folder / "comparison.json").read_text())
    otca, uniform = content["workflows"]
    assert (otca["name"], uniform["name"], uniform["difference"]) == ("otca", "uniform", None)
    assert otca["samples"] == uniform["samples"] == 6 and otca["curve"][0]["mean"] == 0
    # Without a KL term, 4 calls are made after the first update alone, which compare it with the untrained model.
    assert otca["used"]["forwards"] == [0, 24 + 20 + 2 * 2 * 14] and otca["used"]["seconds"][1] > 0
    finals = {}
    for name in ("otca", "uniform"):
        for seed in (0, 1):
            place = folder / name / "lr0.001" / f"seed{seed}" / "evaluation.jsonl"
            first, *_, last = [json.loads(line)["rewards"] for line in place.read_text().splitlines()]
            rises = [(last[k]["mean"] - first[k]["mean"]) / first[k]["std"] for k in first if k != "accuracy"]
            finals[name, seed] = sum(rises) / 3
    assert otca["final"]["mean"] == pytest.approx(
        (finals["otca", 0] + finals["otca", 1]) / 2, rel=0.01
    )  # means are float32
    differences = [finals["otca", seed] - finals["uniform", seed] for seed in (0, 1)]
    assert otca["difference"]["mean"] == pytest.approx(sum(differences) / 2, rel=0.01)
    assert 0 < content["facts"]["untrained_diversity"] < 1 and 0 < otca["diversity"]["mean"] < 1
    assert otca["forwards"] == 22 and otca["held_out"].keys() == {"accuracy"}
    assert (folder / "comparison.png").stat().st_size > 20_000

    before = (folder / "comparison.json").read_text()
    assert asked("--baseline", "uniform") == 0
    assert len(in_process) == 4 and (folder / "comparison.json").read_text() == before, "nothing was trained again"


def test_a_report_of_what_is_finished(asked, small_workflow, tmp_path, capsys):
    assert asked("--report") == 2
    assert "no training of the baseline otca is finished" in capsys.readouterr().err
    reported(small_workflow, tmp_path)
    assert asked("--report") == 1, "not everything is finished"
    assert "- uniform, learning rate 0.001, seed 1: not trained yet" in capsys.readouterr().out
    assert asked("--report", "--evaluation-seeds", 3) == 2
    assert "evaluation_seeds: 2 -> 3. Fix: choose another --output" in capsys.readouterr().err


def test_a_sweep_trains_its_own_seeds_and_the_best_rate(asked, child, small_workflow, tmp_path, capsys):
    child.ends = finishes(small_workflow, tmp_path, replace(ALIKE, evaluate_every=2))
    assert asked("--learning-rates", "2e-4", "1e-4", "--tuning-seeds", 1, "--jobs", 2) == 0
    told = [str(place.relative_to(tmp_path / "out")) for place in child.begun]
    tuned = [f"{name}/lr{rate}/seed1000" for name in ("otca", "uniform") for rate in ("0.0001", "0.0002")]
    compared = [f"{name}/seed{seed}" for seed in (0, 1) for name in ("otca/lr0.0002", "uniform/lr0.0001")]
    assert told == tuned + compared
    assert "| otca | +0.10 | **+0.20** | at an edge of the sweep |" in capsys.readouterr().out


def finishes(small_workflow, tmp_path, common):
    """For `child.ends`: every training ends at once; otca rises by its rate · 1000, uniform by 0.1."""
    both = {"otca": small_workflow(), "uniform": small_workflow(source="uniform.json")}

    def ends(folder, log):
        _, name, rate, seed = folder.relative_to(tmp_path).parts
        rate, seed = float(rate[2:]), int(seed[4:])
        settings = replace(common, prompts=both["otca"].graph["12"]["inputs"]["evaluation_prompts"])
        [own] = trainings({name: both[name]}, {name: (rate,)}, (seed,), settings, tmp_path / "out")
        finish(own, rate * 1000 if name == "otca" else 0.1)
        return 0

    return staticmethod(ends)


@pytest.fixture
def budgeted(asked):
    """As `asked`, with a budget of 100 forwards."""
    return functools.partial(asked, common=("--forwards", 100, "--evaluations", 2))


def test_a_screening_takes_one_seed_which_a_sweep_takes_over(budgeted, child, small_workflow, tmp_path, capsys):
    child.ends = finishes(small_workflow, tmp_path, FORWARDS)
    out = tmp_path / "out"

    def begun():
        """The folders of the trainings that were begun since this was asked last."""
        own = [str(place.relative_to(out)) for place in child.begun]
        child.begun.clear()
        return own

    assert budgeted("--screen", "--learning-rates", "2e-4", "--rates", "otca=1e-4") == 0
    assert begun() == ["otca/lr0.0001/seed1000", "uniform/lr0.0002/seed1000"]
    assert capsys.readouterr().out.count("Screening, without verdict") == 1
    assert (out / "screening.png").is_file() and not (out / "comparison.md").exists()
    assert json.loads((out / "screening.json").read_text())["facts"]["length"] == "100 forwards"

    sweep = ("--rates", "uniform=2e-4", "--rates", "otca=1e-4,2e-4", "--tuning-seeds", 1)
    assert budgeted(*sweep, "--seeds", 1, "--only", "otca") == 1, "uniform is left"
    assert begun() == ["otca/lr0.0002/seed1000", "otca/lr0.0002/seed0"]
    capsys.readouterr()
    assert budgeted(*sweep, "--seeds", 1) == 0
    assert begun() == ["uniform/lr0.0002/seed0"]
    printed = capsys.readouterr().out
    assert "learning rates are chosen by 1 trainings each, so by luck too. Fix: --tuning-seeds 3" in printed
    assert "| otca | +0.10 | **+0.20** | at an edge of the sweep |" in printed
    assert "| uniform | 0.0002 (not tuned) | 1 | +0.10 |" in printed


def test_five_seeds_unless_told_otherwise(budgeted, child, small_workflow, tmp_path):
    child.ends = finishes(small_workflow, tmp_path, FORWARDS)
    assert budgeted() == 0
    assert sorted(place.name for place in child.begun) == sorted([f"seed{seed}" for seed in range(5)] * 2)


def test_sizes_may_differ_under_a_budget_alone(budgeted, asked, child, small_workflow, tmp_path, capsys):
    child.ends = finishes(small_workflow, tmp_path, FORWARDS)
    path = tmp_path / "uniform.json"
    graph = json.loads(path.read_text())
    for entry in graph.values():
        if entry["class_type"] == "OTCA_SDESampler":
            entry["inputs"]["group_size"] = 4
    path.write_text(json.dumps(graph))
    assert asked() == 2 and "OTCA_SDESampler.group_size is 4, not 3" in capsys.readouterr().err
    assert asked("--report", common=("--seconds", "4", "--evaluations", "2")) == 2
    assert "no training of the baseline otca is finished" in capsys.readouterr().err


def test_a_judge_or_a_score_of_no_such_reward_is_named(budgeted, child, small_workflow, tmp_path, capsys):
    child.ends = finishes(small_workflow, tmp_path, FORWARDS)
    assert budgeted("--seeds", 1, "--judge", "a") == 2
    assert "--judge 'a' is not a held-out reward. Fix: leave it out, or one of judge" in capsys.readouterr().err
    assert budgeted("--seeds", 1, "--score", "nothing") == 2
    assert "--score 'nothing' is not a reward of it. Fix: some of a, " in capsys.readouterr().err


def test_who_has_no_seed_in_common_with_the_baseline_is_told_apart(asked, small_workflow, tmp_path, capsys):
    reported(small_workflow, tmp_path)
    reported(small_workflow, tmp_path, "uniform", 1)
    (tmp_path / "out" / "otca" / "lr0.001" / "seed1").mkdir()
    (tmp_path / "out" / "otca" / "lr0.001" / "seed1" / "status.json").write_text(
        '{"status": "failed", "error": "fire"}'
    )
    assert asked("--report") == 1
    printed = capsys.readouterr().out
    assert "- uniform: it has finished no seed that otca has finished too" in printed
    assert "- otca, learning rate 0.001, seed 1: failed: fire" in printed
    assert "- uniform, learning rate 0.001, seed 0: not trained yet" in printed


BAD_OPTIONS = [
    ("--seed 999 --learning-rates 1e-4 2e-4", "from 1000 on, 1000 among them.* Fix: another --seed"),
    ("--learning-rates 0 1e-4", "otca: learning rates must be above 0, not 0, 0.0001"),
    ("--rates gone=1e-4", "'gone' is not a workflow. Fix: one of otca, uniform"),
    ("--only gone", "'gone' is not a workflow. Fix: one of otca, uniform"),
    ("--screen --learning-rates 1e-4 2e-4", "--screen takes one seed. Fix: leave out --seeds"),
    ("--evaluations 5", "--evaluations does not go with iterations. Fix: leave it out, or give --forwards or"),
    ("--features gone", "model 'gone' was not found"),
    ("--set TrainingRun.evaluation_prompts=one --evaluation-seeds 1", "one picture has no spread.*Fix: "),
    ("--baseline gone", "--baseline 'gone' is not a workflow. Fix: one of otca, uniform"),
    ("--set TrainingRun.evaluation_prompts=", "Fix: --prompts FILE"),
    ("--set TCDWeights.w_min=0.2", "the graph has no node 'TCDWeights'"),
]


def test_bad_options_are_named(asked, capsys, monkeypatch):
    for options, words in BAD_OPTIONS:
        assert asked(*options.split()) == 2
        assert re.search(words, capsys.readouterr().err), options
    monkeypatch.setenv("RANK", "0")
    assert asked() == 2 and "without torchrun" in capsys.readouterr().err


def test_nothing_is_nan_in_json(tmp_path, both):
    [own] = trainings({"otca": both()["otca"]}, {"otca": (1e-4,)}, (0,), ALIKE, tmp_path)
    finish(own, 1.0)
    compare.compare(
        {"otca": both()["otca"]}, "otca", replace(ALIKE, learning_rates=(1e-4,), seeds=(0,)), tmp_path, print
    )
    assert not re.search("NaN|Infinity", text := (tmp_path / "comparison.json").read_text())
    assert json.loads(text)["workflows"][0]["final"] == {"mean": 1.0, "low": None, "high": None, "count": 1, "p": None}
