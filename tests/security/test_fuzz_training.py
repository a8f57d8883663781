"""What validate accepts, train trains: graphs changed by chance within what their nodes declare, each for one iteration."""

from __future__ import annotations

import itertools
import json

from comfyui_otca.__main__ import main
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from comfyui_otca.trainer.checks import preflight
from comfyui_otca.trainer.workflow.problem import errors
from comfyui_otca.trainer.workflow.running import Workflow

from .strangers import EXAMPLES, GENTLE, changed

# What is seen only when a training begins (see preflight), and what would take long: at most, or instead.
MOST = {
    "OTCA_PromptDataset": {"prompts_per_iteration": 2},
    "OTCA_LoadFlowModel": {"lora_rank": 8, "max_sequence_length": 16},
    "OTCA_SDESampler": {"group_size": 4, "steps": 5, "width": 80, "height": 80},
    "OTCA_MyPictures": {"pairs_per_iteration": 2, "width": 80, "height": 80, "levels": 8},
    "OTCA_GRPOStep": {"epochs": 2},
    "OTCA_MatchingStep": {"epochs": 2, "sampled_steps": 4},
    "OTCA_StepwiseGain": {"tweedie_steps": 2},
    "OTCA_TrainingRun": {"iterations": 1, "evaluation_seeds": 1, "evaluation_steps": 2},
    "OTCA_MixGRPOWindow": {"steps": 5},
}
INSTEAD = {
    "OTCA_ModelMemory": {"quantize": "none", "attention": "auto", "compile": False},
    "OTCA_TrainingRun": {"wandb_project": "", "evaluation_prompts": "a red circle on a white background"},
}


def bounded(graph):
    for entry in graph.values():
        inputs = entry["inputs"]
        for name, most in MOST.get(entry["class_type"], {}).items():
            if isinstance(inputs.get(name), int):
                inputs[name] = min(inputs[name], most)
        for name, value in INSTEAD.get(entry["class_type"], {}).items():
            if name in inputs:
                inputs[name] = value
    return graph


def validates(graph):
    return not errors(preflight.problems(Workflow(graph, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS)))


def accepted():
    """(seed, graph) of the graphs that validate accepts, by the number that makes each."""
    examples = [bounded(graph) for graph in EXAMPLES]
    examples = [graph for graph in examples if validates(graph)]
    for seed in itertools.count():
        graph = bounded(changed(seed, examples, GENTLE, most=5))
        if validates(graph):
            yield seed, graph


def test_what_is_accepted_is_trained(real_model, tmp_path, capsys, everything):
    disagreements = []
    for seed, graph in itertools.islice(accepted(), 300 if everything else 6):
        path, run = tmp_path / f"{seed}.json", tmp_path / f"run{seed}"
        path.write_text(json.dumps(graph))
        code = main(["train", str(path), "--output", str(run), "--device", "cpu"])
        said = capsys.readouterr().err
        if code or len((run / "metrics.jsonl").read_text().splitlines()) != 1:
            disagreements.append(f"{seed}: exit {code}: {said}")
    assert not disagreements, "\n".join(disagreements)
