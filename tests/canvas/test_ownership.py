"""Whose adapter is trained on the canvas. ComfyUI hands one model to all workflows whose loaders have the same inputs."""

import functools
import json
import re
import shutil
import sys
import types

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from comfyui_otca.__main__ import main
from comfyui_otca.canvas import ownership, results
from comfyui_otca.host import claim
from comfyui_otca.host.json_files import read_json as read_object
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.processes import apart
from comfyui_otca.tests.training import CREDIT, FUSION, MODEL, PROMPTS, RUN, SAMPLER, SAVE, STACK, STEP, rows, untimed
from comfyui_otca.trainer.families import configured
from comfyui_otca.trainer.policy import lora
from comfyui_otca.trainer.policy.files import read_metadata
from comfyui_otca.trainer.run import record
from comfyui_otca.trainer.run.folder import RunError
from comfyui_otca.trainer.workflow import lineage
from comfyui_otca.trainer.workflow.running import NodeError

UNIFORM = {"class_type": "OTCA_StepCredit", "inputs": {"trajectories": [SAMPLER, 0], "method": "uniform"}}
RARELY = {
    "checkpoint_every": 100,
    "evaluate_every": 100,
    "evaluation_prompts": "a red circle on a blue background",
    "evaluation_seeds": 1,
}


@pytest.fixture(scope="session")
def load_model(load_toy):
    return load_toy


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "files" / "otca"


class Tab:
    """A workflow on the canvas; `hold` keeps prompts and noise, as ComfyUI's cache then keeps the trajectories."""

    def __init__(self, workflow, model):
        self.workflow, self.given, self.prompts = workflow, {MODEL: (model,)}, 0

    def queue(self, hold=False, targets=None):
        self.prompts += not hold
        overrides = {(node, name): value + self.prompts - 1 for node, name, value in self.workflow.advancing()}
        with torch.inference_mode():
            return self.workflow.run(overrides=overrides, targets=targets, results=self.given)


@pytest.fixture
def tabs(small_workflow, comfyui, monkeypatch, model):
    """tabs(run's name, changes): tabs of one ComfyUI, all with the same model."""
    monkeypatch.setattr(results, "picture", lambda draw: None)

    def open_tab(name, changes=None):
        changes = changes or {}
        run = {**RARELY, "run_name": name, **changes.get("OTCA_TrainingRun", {})}
        return Tab(small_workflow({**changes, "OTCA_TrainingRun": run}), model)

    return open_tab


def owner(comfyui):
    """What Load Flow Model shows."""
    return [data["data"]["text"] for _, data in comfyui.events if data["kind"] == "owner"]


def test_another_name_begins_with_a_fresh_adapter(tabs, runs, comfyui):
    """R1: after an iteration of one run, another's first iteration is a fresh process's, to the bit."""
    tabs("one").queue()
    tabs("two").queue()
    assert untimed(runs / "one") == untimed(runs / "two")
    assert owner(comfyui) == ["new run one", "one, iteration 1", "new run two", "two, iteration 1"]
    assert read_object(runs / "two" / "checkpoints" / "000001" / "state.json")["otca_run"] == "two"


def test_two_tabs_in_turns_are_two_runs(tabs, runs, comfyui):
    """Each goes on where it stood, and both are what one alone would have been."""
    one, two, alone = tabs("one"), tabs("two"), tabs("alone")
    for tab in (one, two, one, two, one, two):
        tab.queue()
    for _ in range(3):
        alone.queue()
    assert untimed(runs / "one") == untimed(runs / "two") == untimed(runs / "alone")
    assert [row["iteration"] for row in rows(runs / "one")] == [1, 2, 3]
    assert sorted(path.name for path in runs.iterdir()) == ["alone", "one", "two"]


def test_all_weights_belong_to_a_run_too(tabs, runs, load_model):
    """What a run has learned is saved when another takes its model, though no checkpoint is due yet."""
    full = {"OTCA_LoadFlowModel": {"training": "full"}, "OTCA_TrainingRun": {"checkpoint_every": 100}}
    shared = load_model(training="full")
    one, two = (Tab(tabs(name, full).workflow, shared) for name in ("one", "two"))
    for tab in (one, one, two, one):
        tab.queue(targets=[RUN])
    assert untimed(runs / "one")[:1] == untimed(runs / "two")
    assert [row["iteration"] for row in rows(runs / "one")] == [1, 2, 3]


def test_a_model_that_was_loaded_again_goes_on_where_the_run_stands(tabs, runs, load_model):
    """As after ComfyUI's cache was emptied, or with another device; and the model before does not go on under its name."""
    one, alone = tabs("one"), tabs("alone")
    one.queue()
    again = Tab(one.workflow, load_model())
    again.prompts = one.prompts
    again.queue()
    one.prompts = again.prompts
    one.queue()
    for _ in range(3):
        alone.queue()
    assert untimed(runs / "one") == untimed(runs / "alone")
    assert record.run_of(again.given[MODEL][0]) is None and record.run_of(one.given[MODEL][0]).folder.name == "alone"


def test_somebody_elses_files_are_not_written_over(tabs, runs):
    """F2: a new run takes no folder that holds what it would write."""
    (runs / "one").mkdir(parents=True)
    (runs / "one" / "lora.safetensors").write_bytes(b"mine")
    tabs("one").queue()
    assert [path.name for path in (runs / "one").iterdir()] == ["lora.safetensors"]
    assert (runs / "one" / "lora.safetensors").read_bytes() == b"mine"
    assert len(rows(runs / "one-2")) == 1


def test_a_folder_that_could_not_be_opened_is_not_kept(small_workflow, runs, comfyui, monkeypatch, model):
    """Its claim was: nobody else could go on with it after it was mended, until ComfyUI ended."""
    monkeypatch.setattr(results, "picture", lambda draw: None)
    tab = Tab(small_workflow({"OTCA_TrainingRun": RARELY}), model)
    tab.queue()
    metrics = runs / "otca" / "metrics.jsonl"
    metrics.write_text("[]\n" + metrics.read_text())
    record.open_runs.clear()
    ownership.forget()
    claim.take(runs / "otca").release()
    fresh = {"OTCA_LoadFlowModel": {"resume_run": "otca"}, "OTCA_TrainingRun": RARELY}
    with pytest.raises(NodeError, match="metrics.jsonl is damaged: line 1"), torch.inference_mode():
        small_workflow(fresh).run()
    assert claim.holder(runs / "otca") is None


def test_the_canvas_itself_is_saved_with_the_first_iteration(small_workflow, runs, comfyui, monkeypatch):
    """Seen before: not until a value changed, so that going on after a restart lost layout, groups and notes."""
    monkeypatch.setattr(results, "picture", lambda draw: None)
    record_node = NODE_CLASS_MAPPINGS["OTCA_TrainingRun"]
    workflow = small_workflow({"OTCA_TrainingRun": RARELY})
    with torch.inference_mode():
        made = workflow.run(targets=workflow.find("GRPOStep"))
        inputs = {**workflow.graph[RUN]["inputs"], "model": made[STEP][0], "report": made[STEP][1]}
        canvas = {"workflow": {"id": "a", "nodes": [1]}}
        record_node().record(**inputs, prompt=workflow.graph, extra_pnginfo=canvas, node_id=RUN)
    assert read_object(runs / "otca" / "canvas.json") == canvas["workflow"]


def test_of_two_training_runs_each_has_its_own_changes():
    chain = {
        "step{0}": {"class_type": "OTCA_GRPOStep", "inputs": {"learning_rate": 1e-3}},
        "run{0}": {"class_type": "OTCA_TrainingRun", "inputs": {"report": ["step{0}", 1], "run_name": "{0}"}},
    }
    text = json.dumps(chain)
    before = json.loads(text.replace("{0}", "a")) | json.loads(text.replace("{0}", "b"))
    now = json.loads(json.dumps(before))
    now["stepb"]["inputs"]["learning_rate"] = 2e-3
    now["runb"]["inputs"] |= {"iterations": 9, "stop_after_decline": 0}
    assert lineage.changes(before, now, "runa") == []
    assert lineage.changes(before, now, "runb") == [
        {"node": "OTCA_GRPOStep", "input": "learning_rate", "before": 1e-3, "now": 2e-3}
    ]


def test_a_changed_value_is_an_event_of_the_same_run(tabs, runs):
    tab = tabs("one")
    tab.queue()
    tab.workflow.set("9.w_min", 0.125)
    tab.workflow.set("GRPOStep.learning_rate", 5e-4)
    tab.queue()
    tab.queue()
    assert sorted(path.name for path in runs.iterdir()) == ["one"]
    (event,) = rows(runs / "one", "changes.jsonl")
    assert event["iteration"] == 2
    assert event["changes"] == [
        {"node": "GRPO Step", "input": "learning_rate", "before": 1e-3, "now": 5e-4},
        {"node": "TCD Weights", "input": "w_min", "before": 0.5, "now": 0.125},
    ]
    saved = read_object(runs / "one" / "workflow.json")
    assert saved[CREDIT]["inputs"]["w_min"] == 0.125, "the graph that ran"
    assert saved[SAMPLER]["inputs"]["seed"] == tab.workflow.graph[SAMPLER]["inputs"]["seed"], "as the run began with it"


def test_another_structure_is_another_run(tabs, runs, comfyui):
    tab = tabs("one")
    tab.queue()
    graph = tab.workflow.graph
    graph[CREDIT] = UNIFORM
    other = Tab(type(tab.workflow)(graph, tab.workflow.node_classes), tab.given[MODEL][0])
    other.queue()
    tab.queue()
    assert [len(rows(runs / name)) for name in ("one", "one-2")] == [2, 1]
    assert "new run one-2" in owner(comfyui)
    assert read_object(runs / "one-2" / "workflow.json")[CREDIT]["class_type"] == "OTCA_StepCredit"
    assert rows(runs / "one-2")[0]["reward/colorfulness/mean"] == rows(runs / "one")[0]["reward/colorfulness/mean"]


def linked(tab, target, value, through=None):
    """The tab's graph with a constant of a core node in place of an input: `target` is (node, input)."""
    graph = tab.workflow.graph
    graph["90"] = {"class_type": "PrimitiveString", "inputs": {"value": value}}
    if through:
        graph["91"] = {"class_type": through, "inputs": {"switch": True, "on_true": ["90", 0]}}
    graph[target[0]]["inputs"][target[1]] = ["91" if through else "90", 0]
    return graph


@pytest.mark.parametrize("through", [None, "ComfySwitchNode"])
def test_a_linked_value_that_decides_what_is_trained_is_structure(tabs, through):
    """Seen before: one run went on over another base model, whose path came through a link. What is tuned is none."""
    decides = [(MODEL, "path"), (MODEL, "lora_rank"), ("5", "held_out"), (SAMPLER, "model")]
    for target in [*decides, (CREDIT, "w_min"), (STEP, "learning_rate"), (PROMPTS, "prompts"), ("4", "coefficient")]:
        tab = tabs("one")
        one, other = (lineage.structure(linked(tab, target, value, through), RUN) for value in ("a", "b"))
        assert (one != other) == (target in decides), target


def _headless(*arguments):
    """A command, in a process where no ComfyUI is."""
    sys.modules.pop("server")
    return main(list(arguments))


def test_a_folder_that_is_another_s_by_now_is_not_written(tabs, runs, small_graph, tmp_path):
    """It was removed while ComfyUI had it in hand, and a training begun in its place: that one was written over."""
    tab = tabs("one")
    tab.queue()
    shutil.rmtree(runs / "one")
    given = tmp_path / "given.json"
    given.write_text(json.dumps(small_graph({"OTCA_TrainingRun": {**RARELY, "iterations": 1}})))
    other = apart(functools.partial(_headless, "train", str(given), "--output", str(runs / "one")), tmp_path / "log")
    other.join(300)
    assert other.exitcode == 0, (tmp_path / "log").read_text()
    there = {path: path.read_bytes() for path in (runs / "one").rglob("*") if path.is_file()}
    with pytest.raises(NodeError, match="is not this run's any more.*Fix: on the canvas press New run"):
        tab.queue()
    assert {path: path.read_bytes() for path in (runs / "one").rglob("*") if path.is_file()} == there


def test_a_run_to_resume_without_a_checkpoint_is_refused(tabs, runs, small_workflow):
    tabs("one").queue()
    shutil.rmtree(runs / "one" / "checkpoints")
    (runs / "one" / "checkpoints").mkdir()
    lines = (runs / "one" / "metrics.jsonl").read_bytes()
    record.open_runs.clear()
    changes = {"OTCA_LoadFlowModel": {"resume_run": "one"}, "OTCA_TrainingRun": {**RARELY, "run_name": "one"}}
    with pytest.raises(NodeError, match="has no checkpoint. Fix: "), torch.inference_mode():
        small_workflow(changes).run()
    assert (runs / "one" / "metrics.jsonl").read_bytes() == lines


def test_a_graph_that_records_nothing_writes_over_no_run_s_adapter(tabs, tmp_path, comfyui):
    tab = tabs("one")
    tab.queue()
    file = tmp_path / "loras" / "otca_lora.safetensors"
    before = file.read_bytes()
    comfyui.running[0] = (1, "id", tab.workflow.graph, {}, [SAVE])  # Training Run is muted, or was refused
    tab.queue(targets=[SAVE])
    assert file.read_bytes() == before and (tmp_path / "loras" / "otca_lora-2.safetensors").is_file()


def is_run_s_own(folder, loras):
    """Whether Save LoRA has one file, which is the run's adapter as it stands."""
    [file] = loras.iterdir()
    saved, own = load_file(file), load_file(folder / "lora.safetensors")
    return read_metadata(file)["otca_run"] == folder.name and all(torch.equal(saved[name], own[name]) for name in own)


def test_a_run_s_file_goes_on_whatever_the_numbers_of_its_nodes_are(tabs, runs, tmp_path, comfyui):
    """In a subgraph, a copy and a paste they are others: another file was written, and the run's own stayed as it was."""
    one = tabs("one")
    comfyui.running[0] = (1, "id", one.workflow.graph, {}, [RUN, SAVE])
    one.queue()
    for prefix in ("5:", "7"):
        graph = json.loads(re.sub(r'"(\d+)"', rf'"{prefix}\1"', json.dumps(one.workflow.graph)))
        comfyui.running[0] = (1, "id", graph, {}, [f"{prefix}12", f"{prefix}13"])
        pasted = Tab(type(one.workflow)(graph, one.workflow.node_classes), None)
        pasted.given, pasted.prompts = {f"{prefix}1": one.given[MODEL]}, one.prompts
        pasted.queue()
        one.prompts = pasted.prompts
        assert is_run_s_own(runs / "one", tmp_path / "loras")
    comfyui.running[0] = (1, "id", one.workflow.graph, {}, [RUN, SAVE])
    one.queue()
    assert is_run_s_own(runs / "one", tmp_path / "loras") and len(rows(runs / "one")) == 4


def test_a_file_of_another_name_says_why(tabs, tmp_path):
    """Who loads the file that the input names would have an older adapter."""
    one, two = tabs("one"), tabs("two")
    one.queue()
    two.queue()
    shown = two.workflow.ui[SAVE]
    assert shown["text"] == [str(tmp_path / "loras" / "otca_lora-two.safetensors")]
    assert shown["otca_elsewhere"] == [
        "otca_lora stays as it is, since it is not of run two; otca_lora-two was written. Fix: give another filename, or move "
        "that file elsewhere"
    ]
    assert "otca_elsewhere" not in one.workflow.ui[SAVE]


def test_a_folder_that_waits_in_the_queue_is_taken(tabs, runs):
    (runs / "one").mkdir(parents=True)
    own = psutil.Process()
    status = {"status": "queued", "pid": own.pid, "process_started": own.create_time(), "total": 3}
    (runs / "one" / "status.json").write_text(json.dumps(status))
    tabs("one").queue()
    assert read_object(runs / "one" / "status.json") == status and len(rows(runs / "one-2")) == 1


def test_a_graph_that_failed_before_its_first_iteration_has_no_run(tabs, runs, comfyui):
    """Mended, and so of another structure, it begins under the name that it asks for."""
    tab = tabs("one", {"OTCA_RewardColorfulness": {"name": "twin"}, "OTCA_RewardSharpness": {"name": "twin"}})
    with pytest.raises(NodeError, match="share a name"):
        tab.queue()
    tab.workflow.set("RewardSharpness.name", "other")
    tab.queue()
    assert sorted(path.name for path in runs.iterdir()) == ["one"] and len(rows(runs / "one")) == 1
    tab.workflow.set("RewardSharpness.name", "twin")
    with pytest.raises(NodeError, match="share a name"):
        tab.queue()
    assert owner(comfyui)[-1] == "new run one-2", "the name is the mended graph's by now"


def test_while_samples_are_held_the_adapter_stays(tabs, runs, monkeypatch):
    from comfyui_otca.trainer import rollout

    sampled = []
    sample = rollout.sample
    monkeypatch.setattr(rollout, "sample", lambda *a, **k: sampled.append(1) or sample(*a, **k))
    tab = tabs("one")
    tab.queue()
    tab.workflow.set("9.w_min", 0.25)
    tab.queue(hold=True)
    assert len(sampled) == 1 and len(rows(runs / "one")) == 2
    tab.queue(hold=True, targets=[FUSION])  # GRPO Step and what follows are muted
    assert len(sampled) == 1


def test_a_rewired_graph_is_not_recorded_with_held_samples(tabs, runs):
    """Nor is anything trained: the samples are the first run's."""
    tab = tabs("one")
    tab.queue()
    model = tab.given[MODEL][0]
    before = {name: value.clone() for name, value in model.policy.trainable_named().items()}
    del tab.workflow.declared_graph[STACK]["inputs"]["reward_3"]
    tab.workflow._read_nodes()
    with pytest.raises(NodeError, match="these samples belong to run one.*Fix: let the seed of SDE Sampler move on"):
        tab.queue(hold=True)
    assert all(torch.equal(before[name], value) for name, value in model.policy.trainable_named().items())
    assert len(rows(runs / "one")) == 1
    tab.queue()
    assert len(rows(runs / "one-2")) == 1


def test_which_run_goes_on_is_said_before_it_does(tabs, runs, small_workflow):
    """A graph that was opened again went on with the old run, and after a restart with a new one, without a word."""

    def said(tab, resume_run="", **names):
        graph = {id_: {**entry, "inputs": {**entry["inputs"]}} for id_, entry in tab.workflow.graph.items()}
        graph[MODEL]["inputs"]["resume_run"] = resume_run
        graph[RUN]["inputs"] |= names
        return results.coming(graph).get(RUN)

    def told(run, iteration=0, other=None):
        """The inputs that advance stand, after so many iterations, at what they were plus that many."""
        at = ((SAMPLER, "seed", 7 + iteration), (PROMPTS, "index", iteration)) if iteration else ()
        return {"run": run, "iteration": iteration, "other": other, "at": at, "still": False}

    seeds = {"OTCA_SDESampler": {"seed": 7}}
    one, two = tabs("one", seeds), tabs("two", seeds)
    assert said(one) == told("one")
    both = results.coming(one.workflow.graph | {"90": one.workflow.graph[RUN]}).values()
    assert len(both) == 2 and all("Training Runs of the same samples" in row["problem"] for row in both)
    one.queue(), one.queue(), two.queue()
    assert said(one) == told("one", 2)
    assert said(two) == told("two", 1)
    assert said(tabs("one", seeds)) == said(one), "another tab of the same graph"
    another = said(tabs("one", {**seeds, "OTCA_LoadFlowModel": {"lora_rank": 2}}))
    assert another == told("one-2"), "its adapter has another form"

    for run in list(record.open_runs.values()):  # as if ComfyUI was started again
        record.close_run(run)
    ownership.forget()
    assert said(one) == told("one", 2), "a restart is no new run"
    assert said(one, resume_run="one") == told("one", 2)
    shutil.copytree(runs / "one", runs / "one-2", dirs_exist_ok=True)
    assert said(one) == told("one", 2), "and a copy by hand is not its run"
    shutil.rmtree(runs / "one-2")
    bypassed = tabs("one", seeds)
    del bypassed.workflow.declared_graph[STACK]["inputs"]["reward_3"]
    assert said(bypassed) == told("one-2", other=("one", 2)), "it asks: its adapter fits, its method is another"
    one.queue()
    assert len(rows(runs / "one")) == 3 and said(bypassed) == told("one-2", other=("one", 3))
    (runs / "one" / "workflow.json").write_text('{"1": {"class_type": "KSampler", "inputs": {}}}')
    assert said(bypassed) == told("one-2"), "a run of another graph by that name"
    (runs / "one" / "workflow.json").write_text("[]")
    assert said(bypassed) == told("one-2"), "one that cannot be read is nobody's"
    assert "cannot come through a link" in said(one, run_name=["20", 0])["problem"], (
        "and no run that it will not go on with"
    )
    assert "run_name = '' is empty" in said(one, run_name="")["problem"]
    assert said(tabs("still", {"OTCA_GRPOStep": {"learning_rate": 0.0}}))["still"] is True


def test_where_a_run_goes_on_is_found_in_a_graph_with_other_ids(tabs, runs):
    """As in a subgraph: what moves on is found by the way that leads there. A value that comes by a link is not the input's."""
    one = tabs("one", {"OTCA_PromptDataset": {"index": 40}})
    one.queue(), one.queue()
    pasted = json.loads(re.sub(r'"(\d+)"', r'"5:\1"', json.dumps(one.workflow.graph)))
    assert ownership.coming(pasted, "5:12").at == (("5:3", "seed", 2), ("5:2", "index", 42))
    pasted["5:2"]["inputs"]["index"] = ["5:9", 0]
    assert lineage.stands_at(one.workflow.graph, 2, pasted, "5:12") == (("5:3", "seed", 2),)


def test_without_a_training_run_the_adapter_stays_as_it_is(tabs, runs, comfyui):
    """What the graph samples, it samples from what the last one left."""
    one = tabs("one")
    one.queue()
    model = one.given[MODEL][0]
    learned = {name: value.clone() for name, value in model.policy.trainable_named().items()}
    graph = tabs("two").workflow.graph
    del graph[STEP], graph[RUN], graph[SAVE]
    Tab(type(one.workflow)(graph, one.workflow.node_classes), model).queue(targets=[CREDIT])
    assert all(torch.equal(learned[name], value) for name, value in model.policy.trainable_named().items())
    assert owner(comfyui)[-1] == "one, iteration 1: no Training Run records it"
    assert not (runs / "two").exists()


def test_an_update_that_nothing_records_is_undone(tabs, runs, caplog):
    """A run is what its record says: its next iteration is the one that it would have been."""
    one, alone = tabs("one"), tabs("alone")
    one.queue()
    one.prompts += 1
    graph = one.workflow.graph
    del graph[RUN], graph[SAVE]
    loose = Tab(type(one.workflow)(graph, one.workflow.node_classes), one.given[MODEL][0])
    loose.queue(targets=[STEP])
    one.prompts -= 1
    one.queue()
    assert "an update that no iteration records is undone" in caplog.text
    for _ in range(2):
        alone.queue()
    assert untimed(runs / "one") == untimed(runs / "alone")


def test_a_name_has_to_be_known_before_sampling(tabs, runs):
    """F2: a linked name was never checked, and whole run folders were written anywhere."""
    tab = tabs("one")
    graph, model = tab.workflow.graph, tab.given[MODEL][0]
    graph["20"] = {"class_type": "PrimitiveString", "inputs": {"value": "../x"}}
    for name in (["20", 0], "../x", "/tmp/x", "a/b", "..", "", "C:\\x", "x\\y", "NUL", 7, None):
        graph[RUN]["inputs"]["run_name"] = name
        with pytest.raises(RunError, match=r"Training Run \(node 12\), input run_name = .*Fix: "):
            ownership.take_up(model, graph, SAMPLER)
        assert record.run_of(model) is None and not runs.exists()


def test_a_lora_file_to_start_from(tabs, small_workflow, load_model, perturb, tmp_path, comfyui, monkeypatch):
    monkeypatch.setattr(configured, "check_start", lambda *_: None)  # of the folder, for whose model a toy stands here
    trained = perturb(load_model())
    lora.save(trained, tmp_path / "loras" / "mine.safetensors", {})
    workflow = small_workflow(
        {"OTCA_LoadFlowModel": {"start_from": "mine.safetensors"}, "OTCA_TrainingRun": {**RARELY, "run_name": "one"}}
    )
    with torch.inference_mode():
        model = workflow.run(targets=[MODEL])[MODEL][0]
        workflow.run(targets=[CREDIT])
    for name, value in trained.policy.trainable_named().items():
        torch.testing.assert_close(value, model.policy.trainable_named()[name], rtol=0, atol=1e-6)
    assert owner(comfyui) == ["new run one, from mine.safetensors"]
    Tab(tabs("two").workflow, model).queue(targets=[CREDIT])
    assert torch.equal(model.policy.trainable_named()[name], value) or torch.allclose(
        model.policy.trainable_named()[name], value, atol=1e-6
    )


def test_a_lora_file_that_does_not_fit_is_refused_when_queued(small_workflow, tmp_path, comfyui):
    """As training would refuse it: validate said that it was ready."""
    layer, width = "transformer.transformer_blocks.0.attn.to_q", 128  # of shapes-flux
    (tmp_path / "loras").mkdir()
    for name, of in (("mine", layer), ("other", layer.replace("to_q", "to_z"))):
        weights = {f"{of}.lora_A.weight": torch.ones(4, width), f"{of}.lora_B.weight": torch.ones(width, 4)}
        save_file(weights, tmp_path / "loras" / f"{name}.safetensors")
    (tmp_path / "loras" / "junk.safetensors").write_bytes(b"junk")

    def refused(**changes):
        (problem,) = small_workflow({"OTCA_LoadFlowModel": changes}).validate()
        assert problem.fix
        return str(problem)

    assert "needs rank 4 here, and lora_rank is 2" in refused(start_from="mine.safetensors", lora_rank=2)
    assert not small_workflow({"OTCA_LoadFlowModel": {"start_from": "mine.safetensors", "lora_rank": 4}}).validate()
    assert "here is no such layer" in refused(start_from="other.safetensors")
    assert "is truncated or no safetensors file" in refused(start_from="junk.safetensors")
    assert "out of range" in refused(lora_rank=0)


def test_a_run_overwrites_its_own_adapter_only(tabs, runs, tmp_path):
    """Also after ComfyUI was started again, and never another run's, though the model is the same."""
    one, two = tabs("one"), tabs("two")
    begun = one.workflow.graph[SAMPLER]["inputs"]["seed"]
    one.queue()
    one.queue()
    two.queue()
    files = {path.name: read_metadata(path)["otca_run"] for path in (tmp_path / "loras").iterdir()}
    assert files == {"otca_lora.safetensors": "one", "otca_lora-two.safetensors": "two"}
    # A headless training adds the number of its iteration to the seeds in the saved graph.
    assert read_object(runs / "one" / "workflow.json")[SAMPLER]["inputs"]["seed"] == begun


def test_runs_without_a_checkpoint_yet_and_runs_that_go_meanwhile_are_no_error(runs, monkeypatch):
    for name in ("one", "one-2", "one-3"):
        (runs / name / "checkpoints").mkdir(parents=True)
    shutil.rmtree(runs / "one-2" / "checkpoints")
    monkeypatch.setattr(ownership, "run_at", lambda folder: types.SimpleNamespace(iteration=1))
    monkeypatch.setattr(ownership.claim, "ours", lambda folder: True)
    monkeypatch.setattr(
        ownership.checkpoint, "run_id", lambda folder: shutil.rmtree(runs / "one-3", ignore_errors=True)
    )
    assert {folder.name for folder in ownership.earlier_runs(runs / "one")} == {"one", "one-2"}
