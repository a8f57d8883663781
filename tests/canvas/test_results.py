"""The page's view of nodes that ran, with the parts of ComfyUI that they talk to."""

import gc
import io
import threading
import weakref
from unittest.mock import Mock

import pytest
import torch
from PIL import Image

from comfyui_otca.canvas import ownership, results
from comfyui_otca.host import extras, paths
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.training import CREDIT, FUSION, MODEL, PROMPTS, RUN, SAMPLER, SAVE, STACK
from comfyui_otca.trainer.run import record
from comfyui_otca.trainer.workflow import lineage
from comfyui_otca.trainer.workflow.running import Workflow


@pytest.fixture(autouse=True)
def _forget():
    results.results_by_node.clear()
    results.looks_by_node.clear()
    results.runs_by_canvas.clear()
    results.recent_canvases.clear()


@pytest.fixture
def ran(small_workflow, comfyui):
    """A whole iteration on the canvas: (workflow, its outputs)."""
    workflow = small_workflow()
    queued(comfyui, workflow.graph, None)
    with torch.inference_mode():
        return workflow, workflow.run()


@pytest.fixture
def weighed(small_workflow, comfyui):
    """The canvas down to the credit."""
    workflow = small_workflow()
    with torch.inference_mode():
        return workflow, workflow.run(targets=[CREDIT])


def test_what_nodes_show_arrives_by_message_and_can_be_asked_for(ran, comfyui):
    workflow, _ = ran
    kinds = {STACK: "scores", CREDIT: "credit", FUSION: "advantages", RUN: "run"}
    owner = ("otca.result", MODEL, "owner")
    for node, kind in kinds.items():
        (data,) = workflow.ui[node][f"otca_{kind}"]
        assert data["node"] == node and results.last_results(node) == {kind: data}
    assert workflow.ui[FUSION]["otca_advantages"][0]["credit_node"] == CREDIT
    (run,) = workflow.ui[RUN]["otca_run"]
    told = {
        "node": RUN,
        "run": "otca",
        "iteration": 1,
        "changes": [],
        "brake": None,
        "drawn": lineage.advanced(workflow.graph),
    }
    assert run == {**told, "workflow_id": None, "made_by": lineage.fingerprint(workflow.graph, RUN)}
    events = [(event, data["node"], data["kind"]) for event, data in comfyui.events]
    assert sorted(events) == sorted([("otca.result", node, kind) for node, kind in kinds.items()] + [owner] * 2)
    assert results.last_results("99") == {}


def test_without_matplotlib_nodes_go_on_and_their_pictures_say_what_draws_them(monkeypatch, small_workflow, comfyui):
    found = extras.installed
    monkeypatch.setattr(extras, "installed", lambda name: None if name == "matplotlib" else found(name))
    workflow = small_workflow()
    queued(comfyui, workflow.graph, None)
    outputs = workflow.run()
    for node in (STACK, CREDIT, FUSION, RUN):
        picture = outputs[node][-1]
        assert picture.shape[0] == 1 and picture.shape[2:] == (480, 3) and 0.5 < picture.mean() < 1, (
            "lines of text on white"
        )
    folder = paths.run_folder("otca")
    assert (folder / "metrics.jsonl").is_file() and not (folder / "rewards.png").exists()


def queued(comfyui, graph, canvas):
    """ComfyUI executes that prompt now."""
    comfyui.running[0] = (1, "id", graph, {"extra_pnginfo": {"workflow": {"id": canvas}}}, [])


def test_a_run_is_at_work_while_its_own_prompt_is(small_workflow, comfyui, monkeypatch):
    """Two canvases whose nodes have the same ids, one run each; and the first is queued again after the second."""
    monkeypatch.setattr(results, "picture", lambda draw: None)
    one, other = (small_workflow({"OTCA_TrainingRun": {"run_name": name}}) for name in ("one", "other"))
    at_work, seen = lambda: (results.run_at_work("one"), results.run_at_work("other")), []
    monkeypatch.setattr(record.Run, "record", lambda *_, **__: seen.append(at_work()))
    for workflow, canvas in ((one, "first canvas"), (other, "second canvas")):
        queued(comfyui, workflow.graph, canvas)
        with torch.inference_mode():
            workflow.run(targets=[RUN])
    assert seen == [(True, False), (False, True)], "while it evaluates"
    queued(comfyui, one.graph, "first canvas")
    assert results.run_at_work("one") and not results.run_at_work("other")
    queued(comfyui, {RUN: {"class_type": "OTCA_PreviewSteps", "inputs": {}}}, "first canvas")
    assert not results.run_at_work("one"), "a part of the graph, without the run"
    comfyui.running.clear()
    assert not results.run_at_work("one")


def test_only_the_last_workflows_are_remembered(comfyui, monkeypatch):
    monkeypatch.setattr(results, "MOST_WORKFLOWS", 2)
    for canvas in ("a", "b", "a", "c"):
        queued(comfyui, {}, canvas)
        results.makes_run(RUN, f"run of {canvas}")
        results.shown(CREDIT, (), {"credit": dict})
    known = {canvas: bool(results.last_results(CREDIT, canvas)) for canvas in "abc"}
    assert known == {"a": True, "b": False, "c": True}, "a ran again after b"
    assert sorted(results.runs_by_canvas.values()) == ["run of a", "run of c"]


def test_results_are_shown_for_the_graph_that_made_them(small_workflow, comfyui, monkeypatch):
    """R3: a freshly opened copy of a template showed what an older one had made, since both had one id."""
    monkeypatch.setattr(results, "picture", lambda draw: None)
    workflow = small_workflow()
    queued(comfyui, workflow.graph, "a")
    with torch.inference_mode():
        workflow.run()

    def shown(changes=None, canvas="a"):
        graph = workflow.graph
        for (node, name), value in (changes or {}).items():
            graph[node]["inputs"][name] = value
        return set(results.results_of(graph, canvas))

    everything = {MODEL, STACK, CREDIT, FUSION, RUN}
    assert shown() == everything
    assert shown({(SAMPLER, "seed"): 99, (PROMPTS, "index"): 7}) == everything, "the next iteration's seeds"
    assert shown(canvas="another") == set()
    assert shown({(CREDIT, "w_min"): 0.125}) == {MODEL, STACK}, "credit, and all below it, would be others"
    assert shown({(SAMPLER, "steps"): 5}) == {MODEL}
    assert shown({(RUN, "run_name"): "another"}) == everything - {RUN}, "whose curves they are"


def test_headlessly_nothing_is_kept(writes_to, small_workflow, tmp_path):
    from comfyui_otca.canvas import results

    writes_to(tmp_path / "run")
    workflow = small_workflow()
    workflow.run()
    assert results.results_by_node == {} and set(workflow.ui) == {SAVE}, "Save LoRA says where it saved"
    assert results.looks_by_node == {}, "whose predictions a click would decode"


def test_preview_is_what_the_model_saw(weighed):
    _, outputs = weighed
    trajectories = outputs[SAMPLER][0]
    picture = Image.open(io.BytesIO(results.preview_png(CREDIT, 4, 3))).convert("RGB")
    # At the last step x̂0 is the final latent, so its preview is the sampled picture itself.
    shown = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).reshape(40, 40, 3)
    assert torch.equal(shown, (trajectories.images[4] * 255).round().byte())
    earlier = results.preview_png(CREDIT, 4, 0)
    assert earlier != results.preview_png(CREDIT, 4, 3)
    assert earlier == results.preview_png(CREDIT, 3, 0), (
        "one group shares its noise, so step 0 predicts one and the same"
    )
    for sample, step in ((6, 0), (-1, 0), (0, 4), (0, -1)):
        with pytest.raises(LookupError, match=f"sample {sample}, step {step}: there are 6 samples and 4 steps"):
            results.preview_png(CREDIT, sample, step)


def test_pictures_of_the_last_iteration_stay_while_the_next_is_sampled(weighed):
    """C8: ComfyUI's cache drops the trajectories when the next prompt starts, and the next heatmap is minutes away."""
    workflow, outputs = weighed
    before = results.preview_png(CREDIT, 4, 1)
    trajectories = weakref.ref(outputs[SAMPLER][0])
    drop(workflow, outputs, SAMPLER, CREDIT, FUSION)
    assert trajectories() is None, "its latents and log-probabilities are not kept"
    assert results.preview_png(CREDIT, 4, 1) == before
    workflow.set("SDESampler.seed", 99)
    with torch.inference_mode():
        workflow.run(targets=[CREDIT])
    assert results.preview_png(CREDIT, 4, 1) != before, "another iteration's"


def drop(workflow, outputs, *nodes):
    """As ComfyUI's cache does."""
    for node in nodes:
        outputs.pop(node, None)
        workflow.cached_outputs.pop(node, None)
    gc.collect()


def test_pictures_keep_no_model_alive(weighed):
    workflow, outputs = weighed
    (look,) = results.looks_by_node.values()
    outputs.clear()
    workflow.cached_outputs.clear()
    gc.collect()
    assert look.model() is None and look.predictions() is None
    with pytest.raises(LookupError, match="no longer in memory. Fix: run the graph again"):
        results.preview_png(CREDIT, 0, 0)
    with pytest.raises(LookupError):
        results.preview_png("99", 0, 0)


def test_pictures_are_held_of_the_workflow_that_ran_last(small_workflow, comfyui):
    held = []
    for canvas in ("a", "b"):
        workflow = small_workflow()
        queued(comfyui, workflow.graph, canvas)
        with torch.inference_mode():
            outputs = workflow.run(targets=[CREDIT])
        drop(workflow, outputs, SAMPLER, CREDIT)
        held.append(workflow)  # and with it the model
    made_by = lineage.fingerprint(workflow.graph, CREDIT)
    assert results.preview_png(CREDIT, 0, 0, "b", made_by)
    with pytest.raises(LookupError, match="another workflow has run since"):
        results.preview_png(CREDIT, 0, 0, "a", made_by)


def test_pictures_that_take_too_much_memory_are_only_borrowed(small_workflow, comfyui, monkeypatch):
    monkeypatch.setattr(results, "MOST_KEPT_BYTES", 100)
    workflow = small_workflow()
    with torch.inference_mode():
        outputs = workflow.run(targets=[CREDIT])
    assert results.preview_png(CREDIT, 0, 0)
    drop(workflow, outputs, SAMPLER, CREDIT)
    with pytest.raises(LookupError, match="not kept while the next iteration is sampled. Fix: look again"):
        results.preview_png(CREDIT, 0, 0)


def test_release_waits_for_the_prompt(comfyui):
    comfyui.running[0] = (1, "id", {SAMPLER: {"class_type": "OTCA_SDESampler", "inputs": {}}}, {}, [])
    with pytest.raises(results.Busy, match="a prompt that uses the models is running. Fix: "):
        results.release()
    results.make_room_for_others()
    comfyui.running[0] = (1, "id", {SAMPLER: {"class_type": "KSampler", "inputs": {}}}, {}, [])
    results.release()
    comfyui.loaded.append("a model that the prompt computes with")
    results.make_room_for_others()
    assert comfyui.flags == [("unload_models", True)] and not comfyui.unloaded, "ComfyUI does it between two prompts"


def test_a_prompt_takes_up_no_model_while_its_run_is_let_go(comfyui, monkeypatch):
    """Seen before: it sampled for a run whose folder was free already, and was then told that nothing would record it."""
    order = []
    prompt = threading.Thread(
        target=results.belongs, args=(Mock(), {SAMPLER: {"class_type": "KSampler", "inputs": {}}}, SAMPLER, None)
    )
    monkeypatch.setattr(ownership, "take_up", lambda *_: order.append("taken up"))
    monkeypatch.setattr(ownership, "let_go", lambda run: (prompt.start(), prompt.join(0.2), order.append("let go")))
    monkeypatch.setattr(record, "run_at", lambda folder: folder)
    results.let_go("otca")
    prompt.join()
    assert order == ["let go", "taken up"]


def test_new_credit_makes_old_advantages_void(ran):
    workflow, _ = ran
    workflow.set("TCDWeights.w_min", 0.9)
    with torch.inference_mode():
        workflow.run(targets=[CREDIT])
    assert set(results.last_results(CREDIT)) == {"credit"} and results.last_results(FUSION) == {}


def test_of_several_words_on_one_credit_the_last_is_kept(small_graph, comfyui):
    graph = small_graph()
    graph["20"] = {"class_type": "OTCA_BestOfN", "inputs": {"advantages": [FUSION, 0], "best": 1, "worst": 1}}
    workflow = Workflow(graph, NODE_CLASS_MAPPINGS)
    with torch.inference_mode():
        workflow.run(targets=["20"])
        data = results.last_results("20")["advantages"]
        assert results.last_results(FUSION) == {} and data["credit_node"] == CREDIT and data["valid"].count(False) == 2
        workflow.set("20.best", 2)
        workflow.run(targets=["20"])
    assert all(results.last_results("20")["advantages"]["valid"])


def test_results_say_which_canvas_they_are_of(small_workflow, comfyui):
    workflow = small_workflow()
    queued(comfyui, {}, "the canvas")
    with torch.inference_mode():
        workflow.run(targets=[CREDIT])
    assert results.last_results(CREDIT, "the canvas")["credit"]["workflow_id"] == "the canvas"
    assert results.last_results(CREDIT, "another") == {} and results.last_results(CREDIT) == {}
    assert results.preview_png(CREDIT, 0, 0, "the canvas")
    with pytest.raises(LookupError):
        results.preview_png(CREDIT, 0, 0, "another")
    workflow.set("TCDWeights.w_min", 0.9)
    comfyui.running[0] = (1, "id", workflow.graph, {}, [])  # queued by a script
    with torch.inference_mode():
        workflow.run(targets=[CREDIT])
    assert results.last_results(CREDIT)["credit"]["workflow_id"] is None
    graph = workflow.graph
    assert CREDIT in results.results_of(graph, "any canvas")
    graph[CREDIT]["inputs"]["w_min"] = 0.125
    assert CREDIT not in results.results_of(graph, "any canvas"), "another graph"
