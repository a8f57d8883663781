"""What re-runs when an input changes, and training under ComfyUI's inference mode."""

from __future__ import annotations

import copy

import pytest
import torch

from comfyui_otca import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from comfyui_otca.host import paths
from comfyui_otca.nodes import listed
from comfyui_otca.trainer.memory import needs
from comfyui_otca.trainer.workflow import lineage
from comfyui_otca.trainer.workflow.running import NodeError, Workflow


@pytest.mark.parametrize("name", ["otca.json", "mix_grpo.json", "six_rewards.json", "stepwise_flow_grpo.json"])
def test_shipped_workflows_are_clean(small_workflow, name):
    assert small_workflow(source=name).validate() == []
    path = paths.ASSETS.parent / "workflows" / "api" / name
    assert Workflow.load(path, NODE_CLASS_MAPPINGS).validate() == []


# --- caching --------------------------------------------------------------------------------------------------------


@pytest.fixture
def classes_that_ran(writes_to, tmp_path):
    writes_to(tmp_path / "run")

    def run(workflow, **arguments):
        seen = []
        workflow.run(on_node=lambda node_id, cached: cached or seen.append(node_id), **arguments)
        return {workflow.graph[node_id]["class_type"].removeprefix("OTCA_") for node_id in seen}

    return run


BELOW_FUSION = {"MOCAFuse", "GRPOStep", "TrainingRun", "SaveLoRA"}


def test_only_what_hangs_below_runs_again(small_workflow, classes_that_ran):
    workflow = small_workflow()
    everything = {entry["class_type"].removeprefix("OTCA_") for entry in workflow.graph.values()}
    assert classes_that_ran(workflow) == everything
    assert classes_that_ran(workflow) == set(), "re-queueing an unchanged graph trains nothing"
    workflow.set("TCDWeights.w_min", 0.25)
    assert classes_that_ran(workflow) == {"TCDWeights", *BELOW_FUSION}
    workflow.set("MOCAFuse.recenter", "group")
    assert classes_that_ran(workflow) == BELOW_FUSION
    workflow.set("GRPOStep.learning_rate", 2e-3)
    assert classes_that_ran(workflow) == BELOW_FUSION - {"MOCAFuse"}
    workflow.set("RewardColorfulness.coefficient", 2.0)
    assert classes_that_ran(workflow) == {"RewardColorfulness", "RewardStack", *BELOW_FUSION}
    seed = workflow.find("SDESampler")[0]
    below_sampler = {"SDESampler", "RewardStack", "TCDWeights", *BELOW_FUSION}
    assert classes_that_ran(workflow, overrides={(seed, "seed"): 5}) == below_sampler


def test_where_the_credit_goes_is_no_matter_to_the_scores(small_workflow, classes_that_ran, tmp_path, monkeypatch):
    from comfyui_otca.trainer.networks.features import PatchFeatures

    loaded, load = [], PatchFeatures.__init__
    monkeypatch.setattr(PatchFeatures, "__init__", lambda self, *args: loaded.append(load(self, *args)))
    workflow = small_workflow(source="vipo.json")
    below = {"SpatialCredit", "WeightedFuse", "GRPOStep", "TrainingRun", "SaveLoRA"}
    assert classes_that_ran(workflow) > below
    workflow.set("SpatialCredit.floor", 0.5)
    assert classes_that_ran(workflow) == below
    workflow.set("StepCredit.timestep_fraction", 0.5)
    assert classes_that_ran(workflow) == {"StepCredit", *below}
    assert len(loaded) == 1, "the vision model is loaded once"


def test_a_second_spatial_credit_adds_to_the_first(writes_to, small_graph, tmp_path):
    writes_to(tmp_path / "run")
    graph = small_graph(source="vipo.json")
    graph["15"] = {"class_type": "OTCA_SpatialCredit", "inputs": {**graph["14"]["inputs"], "credit": ["14", 0]}}
    graph["15"]["inputs"] |= {"components": 1}
    made = Workflow(graph, NODE_CLASS_MAPPINGS).run(targets=["14", "15"])
    graph["14"]["inputs"]["components"] = 1
    alone = Workflow(graph, NODE_CLASS_MAPPINGS).run(targets=["14"])["14"][0].spatial
    both = made["14"][0].spatial * alone
    torch.testing.assert_close(made["15"][0].spatial, both / both.mean((1, 2), keepdim=True))


def test_combined_credit_trains(writes_to, small_graph, tmp_path):
    """TCD says when by the samples, PCPO scales the ratio, VIPO says where."""
    writes_to(tmp_path / "run")
    graph = small_graph({"OTCA_GRPOStep": {"objective": "log_hinge", "epochs": 2, "clip_range": 1e-5}}, "vipo.json")
    sampled = {"trajectories": ["3", 0]}
    for node, name, inputs in (
        ("9", "TCDWeights", {"w_min": 0.0, "floor": "affine", "normalize": "mean"}),
        ("15", "StepCredit", {"method": "pcpo"}),
        ("16", "CombineCredit", {"credit_1": ["14", 0], "credit_2": ["15", 0]}),
    ):
        graph[node] = {"class_type": f"OTCA_{name}", "inputs": {**sampled, **inputs}}
    graph["10"]["inputs"]["credit"] = ["16", 0]
    workflow = Workflow(graph, NODE_CLASS_MAPPINGS)
    assert workflow.validate() == []
    made = workflow.run(targets=["9", "11", "14", "15", "16"])
    tcd, spatial, pcpo, both = (made[node][0] for node in ("9", "14", "15", "16"))
    torch.testing.assert_close((both.weights, both.spatial), (tcd.weights, spatial.spatial))
    assert both.ratio_scale == pcpo.ratio_scale and len(set(both.ratio_scale)) == 3
    report = made["11"][1]
    assert report.advantages.credit.node == "16" and report.metrics["gradient_norm"] > 0
    # Of two epochs the first is on-policy and the second has left the margin somewhere.
    assert report.metrics["clip/high"] + report.metrics["clip/low"] > 0 and report.metrics["ratio/mean"] != 1


def test_a_credit_that_measures_says_what_it_needs():
    links = {"trajectories": "OTCA_TRAJECTORIES"}
    asked = NODE_CLASS_MAPPINGS["OTCA_StepCredit"].VALIDATE_INPUTS
    assert asked(links, "pcpo") is True and asked({**links, "model": "OTCA_MODEL"}, "inverse_variance") is True
    assert "needs model and scores. Fix: connect model and scores, or choose uniform" in asked(links, "learned")
    assert asked({"trajectories": "OTCA_SCORES"}, "uniform").startswith("trajectories receives OTCA_SCORES")


def test_without_a_credit_all_steps_count_alike(writes_to, small_graph, tmp_path):
    """MOCA's λ too is as with Step Credit, since it goes by the latents."""
    writes_to(tmp_path / "run")
    graph = small_graph()
    graph["9"] = {"class_type": "OTCA_StepCredit", "inputs": {"trajectories": ["3", 0], "method": "uniform"}}
    graph["13"] = copy.deepcopy(graph["10"])
    del graph["13"]["inputs"]["credit"]
    graph["14"] = {**graph["13"], "class_type": "OTCA_WeightedFuse"}
    graph["14"]["inputs"] = {"scores": ["8", 0], "mode": "weighted_advantages", "std_scope": "group"}
    graph["15"] = {"class_type": "OTCA_SpatialCredit", "inputs": {"trajectories": ["3", 0], "model": "shapes-clip"}}
    graph["15"]["inputs"] |= {"components": 3, "smoothing": 1.0, "floor": 0.0}
    made = Workflow(graph, NODE_CLASS_MAPPINGS).run(targets=["10", "13", "14", "15"])
    given, left_out, summed = (made[node][0] for node in ("10", "13", "14"))
    torch.testing.assert_close(left_out.step_advantage, given.step_advantage)
    assert left_out.step_advantage.std(1).max() == 0 and summed.step_advantage.std(1).max() == 0
    assert (made["15"][0].weights == 1).all() and left_out.credit.sigmas == given.credit.sigmas


def test_without_prompts_those_of_a_preset_are_taken():
    take = NODE_CLASS_MAPPINGS["OTCA_PromptDataset"]().take
    [found] = take(" ", 3, 0, False, 0)
    lines = (paths.ASSETS / "prompts" / "general.txt").read_text(encoding="utf-8").splitlines()
    assert list(found.texts) == [line for line in lines if line and not line.startswith("#")][:3]
    assert take("a red circle", 1, 0, False, 0)[0].texts == ("a red circle",)


def test_a_new_loader_begins_with_a_model_that_needs_no_pictures():
    offered = NODE_CLASS_MAPPINGS["OTCA_LoadFlowModel"].INPUT_TYPES()["required"]["model"][0]
    assert offered == ["scenes-flux", "shapes-flux", "edit-flux"]


def test_an_edited_prompt_file_is_read_again(small_workflow, classes_that_ran, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("a red circle\n")
    workflow = small_workflow({"OTCA_PromptDataset": {"file": str(file)}})
    targets = workflow.find("PromptDataset")
    assert classes_that_ran(workflow, targets=targets) == {"PromptDataset"}
    assert classes_that_ran(workflow, targets=targets) == set()
    file.write_text("a red circle\na blue square\n")
    assert classes_that_ran(workflow, targets=targets) == {"PromptDataset"}
    assert set(workflow.run(targets=targets)[targets[0]][0].texts) == {"a red circle", "a blue square"}


def test_changed_weights_train_on_the_cached_trajectories(writes_to, small_workflow, tmp_path):
    """On the canvas: the second update is off-policy, and says so."""
    writes_to(tmp_path / "run")
    workflow = small_workflow()
    step = workflow.find("GRPOStep")[0]
    first = workflow.run()[step][1].metrics
    workflow.set("TCDWeights.w_min", 0.0)
    second = workflow.run()[step][1].metrics
    assert first["policy/staleness"] == 0 and second["policy/staleness"] == 1 and second["ratio/mean"] != 1


# --- the surroundings of ComfyUI ------------------------------------------------------------------------------------


def trained(workflow, overrides=None):
    step, loader = workflow.find("GRPOStep")[0], workflow.find("LoadFlowModel")[0]
    outputs = workflow.run(overrides=overrides)
    return outputs[loader][0], outputs[step][1]


@pytest.mark.parametrize("keep_graph", ["auto", "on", "off"])
def test_training_under_inference_mode(writes_to, small_workflow, real_model, tmp_path, keep_graph):
    writes_to(tmp_path / "run")
    workflow = small_workflow({"OTCA_SDESampler": {"keep_graph": keep_graph}})
    with torch.inference_mode():
        model = workflow.run(targets=workflow.find("LoadFlowModel"))[workflow.find("LoadFlowModel")[0]][0]
        before = [parameter.detach().clone() for parameter in model.policy.trainable_parameters()]
        same, report = trained(workflow)
        assert torch.is_inference_mode_enabled()
    assert same is model and report.metrics["gradient_norm"] > 0 and model.policy.version == 1
    moved = [not torch.equal(a, b) for a, b in zip(model.policy.trainable_parameters(), before, strict=True)]
    assert any(moved)
    assert not any(parameter.is_inference() for parameter in model.transformer.parameters())
    assert not report.trajectories.latents.is_inference()
    # … and autograd works on all of it afterwards.
    condition = model.embeddings(report.trajectories.prompts)
    model.velocity(report.trajectories.latents[[0, 3], 1], 0.7, condition, 3.5).square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.policy.trainable_parameters())
    with torch.inference_mode():
        workflow.set("TCDWeights.w_min", 0.9)
        assert trained(workflow)[1].metrics["policy/staleness"] == 1


def test_the_model_that_is_trained_is_the_one_that_sampled(small_workflow):
    graph = small_workflow().graph
    (loader,) = [node for node, entry in graph.items() if entry["class_type"] == "OTCA_LoadFlowModel"]
    (step,) = [node for node, entry in graph.items() if entry["class_type"] == "OTCA_GRPOStep"]
    graph["other"] = graph[loader]
    graph[step]["inputs"]["model"] = ["other", 0]
    with pytest.raises(NodeError, match="GRPO Step.*model: it is not the one that sampled these trajectories. Fix: "):
        Workflow(graph, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS).run(targets=[step])


def test_an_input_that_is_no_more_is_named_unless_it_has_the_value_that_is_meant(small_workflow):
    inputs = {"weight_decay": 1e-4, "max_grad_norm": 0.5, "retries": 7}
    told, harmless = small_workflow({"OTCA_GRPOStep": inputs}).validate()
    assert (told.input, told.severity, told.value) == ("max_grad_norm", "error", 0.5)
    assert told.message == "this input was removed, and is 1.0 for everybody" and told.fix.startswith("take it out")
    assert (harmless.input, harmless.severity) == ("retries", "warning")
    linked = small_workflow({"OTCA_SDESampler": {"train_last_step": ["1", 0]}}).validate()
    assert [problem.severity for problem in linked] == ["error"]


@pytest.mark.painted
def test_pictures_and_files_in_comfyui(small_workflow, comfyui, tmp_path):
    # Of four steps one is left out, and the bars should know.
    workflow = small_workflow({"OTCA_SDESampler": {"window_length": 2, "fraction_after_window": 0.5}})
    comfyui.loaded.append("a checkpoint of somebody else's")
    with torch.inference_mode():
        outputs = workflow.run()
    assert comfyui.unloaded == 1, "ComfyUI's own models are asked to leave"
    images = 0
    for node_id, values in outputs.items():
        for type_, value in zip(workflow.node_class(node_id).RETURN_TYPES, values, strict=True):
            if type_ == "IMAGE":
                images += 1
                assert value.ndim == 4 and value.shape[-1] == 3 and value.dtype == torch.float32, node_id
                assert 0 <= value.min() < value.max() <= 1, node_id
    assert images == 5
    [sampler_id] = workflow.find("SDESampler")
    sampler = outputs[sampler_id]
    assert sampler[0].kept == [], "the update has used them up, so that what the canvas's cache keeps is light"
    assert len(comfyui.bars) == 4, "sampling, scoring, updating, evaluating"
    assert all(0 < bar.value <= bar.total for bar in comfyui.bars)
    sampling, scoring, _, evaluating = comfyui.bars
    assert all(bar.value == bar.total for bar in (sampling, scoring, evaluating))
    assert (tmp_path / "files/otca/otca/metrics.jsonl").is_file()
    assert (tmp_path / "loras/otca_lora.safetensors").is_file()
    assert workflow.ui[workflow.find("SaveLoRA")[0]] == {"text": [str(tmp_path / "loras/otca_lora.safetensors")]}
    alone = Workflow(
        {id_: workflow.graph[id_] for id_ in lineage.above(workflow.graph, sampler_id)}, NODE_CLASS_MAPPINGS
    )
    assert alone.run(targets=[sampler_id])[sampler_id][0].kept is None, "nor is anything kept for no update"


def test_the_bar_of_a_kept_graph(small_workflow, comfyui):
    batches = {"OTCA_GRPOStep": {"batch_size": 2}, "OTCA_SDESampler": {"keep_graph": "on"}}
    workflow = small_workflow(batches)
    with torch.inference_mode():
        workflow.run(targets=workflow.find("GRPOStep"))
    assert (comfyui.bars[-1].value, comfyui.bars[-1].total) == (3, 3), "one pass a trained step"


@pytest.mark.parametrize(("sampled", "updated", "kept"), [(0, 0, True), (2, 2, True), (2, 0, False), (1, 2, False)])
def test_no_graph_is_kept_of_calls_smaller_than_the_updates(small_workflow, sampled, updated, kept):
    """As the light counts it: many small backward passes take longer than few calls of the update's own."""
    workflow = small_workflow({"OTCA_SDESampler": {"batch_size": sampled}, "OTCA_GRPOStep": {"batch_size": updated}})
    [sampler] = workflow.find("SDESampler")
    with torch.inference_mode():
        trajectories = workflow.run(targets=[sampler])[sampler][0]
    assert (trajectories.kept is not None) == kept
    assert needs.iteration(workflow.graph, off=None).kept_calls == (None if kept else 0)


def test_comfyuis_stop_button(small_workflow, comfyui):
    workflow = small_workflow()
    comfyui.interrupt_after = 3
    with torch.inference_mode(), pytest.raises(comfyui.Interrupt):
        workflow.run()
    comfyui.interrupt_after = None
    with torch.inference_mode():
        model, report = trained(workflow)
    assert model.policy.version == 1 and report.metrics["gradient_norm"] > 0


@pytest.mark.parametrize("keep_graph", ["off", "on"])
def test_comfyuis_stop_button_amid_the_update(small_workflow, comfyui, keep_graph):
    """The queue goes on with the cached trajectories, as if nothing had happened."""
    settings = {"OTCA_SDESampler": {"keep_graph": keep_graph}}
    whole = small_workflow({**settings, "OTCA_TrainingRun": {"run_name": "whole"}})
    workflow = small_workflow(settings)
    with torch.inference_mode():
        expected, _ = trained(whole)
        workflow.run(targets=workflow.find("MOCAFuse"))
        comfyui.interrupt_after = comfyui.checks + 2
        with pytest.raises(comfyui.Interrupt):
            workflow.run()
        comfyui.interrupt_after = None
        model, _ = trained(workflow)
    for one, other in zip(model.policy.trainable_parameters(), expected.policy.trainable_parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_two_rewards_of_one_name(writes_to, small_graph, tmp_path):
    writes_to(tmp_path / "run")
    graph = small_graph()
    graph["71"] = {"class_type": "OTCA_RewardColorfulness", "inputs": {"coefficient": 1.0}}
    stack = next(entry for entry in graph.values() if entry["class_type"] == "OTCA_RewardStack")
    stack["inputs"]["reward_8"] = ["71", 0]
    workflow = Workflow(graph, NODE_CLASS_MAPPINGS)
    with pytest.raises(NodeError, match="share a name.*Fix: "):
        workflow.run()
    graph["71"]["inputs"]["name"] = "second"
    workflow = Workflow(graph, NODE_CLASS_MAPPINGS)
    report = workflow.run()[workflow.find("GRPOStep")[0]][1]
    first, second = (report.metrics[f"reward/{name}/mean"] for name in ("colorfulness", "second"))
    assert first == pytest.approx(second, abs=1e-6)


def test_what_runs_code_is_listed_only_with_the_users_word(monkeypatch):
    for value, given in (("", False), (" ", False), ("/rewards", True)):
        monkeypatch.setenv("OTCA_ALLOW_PYTHON_REWARDS", value)
        assert listed().keys() == NODE_CLASS_MAPPINGS.keys() - (set() if given else {"OTCA_RewardPython"})
