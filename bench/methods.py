"""Writes the workflow of every method that bench/COMPARISON.md compares, for the scenes world or the shapes world.

    python -m comfyui_otca.bench.methods FOLDER [--world shapes]

One base graph (uniform credit, weighted advantages, GRPO) and a table of what each method changes in it, so that whoever wants to
know how two methods differ reads two entries. `otca compare FOLDER/*.json` trains them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

PROMPTS = Path(__file__).resolve().parents[1] / "assets" / "prompts"
SIZE = 40  # pixels a side, in both worlds

Graph = dict[str, dict[str, Any]]


def node(class_type: str, /, **inputs: Any) -> dict[str, Any]:
    return {"class_type": f"OTCA_{class_type}", "inputs": inputs}


# What is trained on in each world, and what is held out.
REWARDS: dict[str, Graph] = {
    "scenes": {
        "judge": node("RewardScenes", coefficient=1.0, name="judge", strict=True),
        "clip_t": node("RewardClipT", model="scenes-clip", coefficient=0.5),
        "sharpness": node("RewardSharpness", coefficient=0.1),
        "grade": node("RewardScenes", coefficient=1.0, name="grade", held_out=True),
    },
    "shapes": {
        "judge": node("RewardShapesAccuracy", coefficient=1.0, held_out=False, name="judge"),
        "colorfulness": node("RewardColorfulness", coefficient=1.0),
        "sharpness": node("RewardSharpness", coefficient=1.0),
        "clip_t": node("RewardClipT", model="shapes-clip", coefficient=1.0, held_out=True),
    },
}


def sampler(world: str) -> dict[str, Any]:
    return node(
        "SDESampler",
        model=["model", 0],
        prompts=["prompts", 0],
        group_size=12,
        steps=8,
        width=SIZE,
        height=SIZE,
        kind="dance_sde",
        eta=0.5,
        shift=0.0,
        guidance=3.5,
        seed=0,
        # Where objects stand follows from the first noise: members of a group that share it hardly differ there.
        shared_noise=world == "shapes",
        keep_graph="on",  # "auto" looks at the free memory, and trainings of one comparison should cost the same
    )


def base(world: str) -> Graph:
    """Uniform GRPO: seven of eight steps, four prompts of twelve samples."""
    rewards = REWARDS[world]
    stack = {f"reward_{number}": [name, 0] for number, name in enumerate(rewards, 1)}
    evaluation = (PROMPTS / f"{world}_eval.txt").read_text(encoding="utf-8").strip()
    return {
        "model": node("LoadFlowModel", model=f"{world}-flux", lora_rank=16, lora_alpha=16.0, seed=0, dtype="auto"),
        "prompts": node(
            "PromptDataset",
            prompts="",
            file=f"{world}_train.txt",
            prompts_per_iteration=4,
            index=0,
            shuffle=True,
            seed=0,
        ),
        "sampler": sampler(world),
        **deepcopy(rewards),
        "stack": node("RewardStack", trajectories=["sampler", 0], **stack),
        "credit": node("UniformWeights", trajectories=["sampler", 0], timestep_fraction=1.0, seed=0),
        "fusion": node(
            "WeightedFuse", scores=["stack", 0], credit=["credit", 0], mode="weighted_advantages", std_scope="group"
        ),
        "update": node(
            "GRPOStep",
            model=["model", 0],
            trajectories=["sampler", 0],
            advantages=["fusion", 0],
            learning_rate=6e-4,
            clip_range=1e-4,
            kl_coefficient=0.0,
        ),
        "run": node(
            "TrainingRun",
            model=["update", 0],
            report=["update", 1],
            run_name="compared",
            iterations=48,
            checkpoint_every=25,
            evaluate_every=12,
            evaluation_prompts=evaluation,
            evaluation_seeds=2,
            evaluation_steps=8,
        ),
    }


def changed(**nodes: dict[str, Any] | None) -> Callable[[Graph], None]:
    """Other inputs of these nodes; a node with another `class_type` takes its place, and None takes it out."""

    def change(graph: Graph) -> None:
        for name, new in nodes.items():
            if new is None:
                del graph[name]
            else:
                graph[name] = new if "class_type" in new else graph[name] | {"inputs": graph[name]["inputs"] | new}

    return change


def credit(kind: str, **inputs: Any) -> dict[str, Any]:
    return node(kind, trajectories=["sampler", 0], **inputs)


def moca(**inputs: Any) -> dict[str, Any]:
    literal = {"exploration": "literal", "recenter": "none", "std_scope": "group"}
    return node("MOCAFuse", scores=["stack", 0], credit=["credit", 0], **literal | inputs)


TCD = credit("TCDWeights", w_min=0.5, floor="affine", normalize="mean")
CENTERED = moca(exploration="centered", recenter="group")
FLOW_SDE = {"kind": "flow_sde", "eta": 0.7}
LEARNED = credit(
    "LearnedCredit", scores=["stack", 0], model=["model", 0], measure_every=10, groups=2, decay=0.8, w_min=0.5
)


def grpo_on(steps: int) -> dict[str, Any]:
    """So many steps of each sample are trained; a kept graph would hold all of them."""
    return {"sampler": {"keep_graph": "off"}, "update": {"sampled_steps": steps}}


def matching(loss: str, levels: int = 4, steps: int = 8, **inputs: Any) -> dict[str, Any]:
    """Forward-process updates on deterministic samples, at so many noise levels of each."""
    update = node(
        "MatchingStep",
        model=["model", 0],
        trajectories=["sampler", 0],
        advantages=["fusion", 0],
        learning_rate=6e-4,
        loss=loss,
        sampled_steps=levels,
        **{"beta": 0.0, "kl_coefficient": 1e-4} | inputs,
    )
    how = {"kind": "ode", "steps": steps, "shared_noise": False, "keep_graph": "off"}
    return {"sampler": how, "update": update}


def vipo(graph: Graph) -> None:
    """The world's CLIP says where in the picture the credit belongs."""
    spatial = credit(
        "SpatialCredit",
        credit=["credit", 0],
        model=graph["clip_t"]["inputs"]["model"],
        components=3,
        smoothing=1.0,
        floor=0.0,
    )
    changed(spatial=spatial, fusion={"credit": ["spatial", 0]})(graph)


METHODS: dict[str, Callable[[Graph], None]] = {
    "uniform": changed(),
    "uniform_2_prompts": changed(prompts={"prompts_per_iteration": 2}),
    "uniform_1_prompt": changed(prompts={"prompts_per_iteration": 1}),
    "uniform_8_prompts": changed(prompts={"prompts_per_iteration": 8}),
    "uniform_5_steps": changed(sampler={"steps": 5}),
    "uniform_5_steps_2_prompts": changed(sampler={"steps": 5}, prompts={"prompts_per_iteration": 2}),
    "sampled_2": changed(**grpo_on(2)),
    "sampled_3": changed(**grpo_on(3)),
    "sampled_4": changed(**grpo_on(4)),
    "sampled_3_2_prompts": changed(**grpo_on(3), prompts={"prompts_per_iteration": 2}),
    "otca": changed(credit=TCD, fusion=moca()),
    "otca_centered": changed(credit=TCD, fusion=CENTERED),
    "tcd_only": changed(credit=TCD),
    "moca_only": changed(fusion=moca()),
    "learned_credit": changed(credit=LEARNED),
    "learned_credit_sampled_3": changed(credit=LEARNED, **grpo_on(3)),
    "nft": changed(**matching("nft", old_policy="gradual")),
    "nft_on_policy": changed(**matching("nft", old_policy="on_policy")),
    "awm": changed(**matching("awm", old_policy="on_policy")),
    "awm_2": changed(**matching("awm", levels=2, old_policy="on_policy")),
    "awm_5_steps": changed(**matching("awm", steps=5, old_policy="on_policy")),
    "awm_5_steps_2": changed(**matching("awm", levels=2, steps=5, old_policy="on_policy")),
    "awm_5_steps_2_prompts": changed(
        **matching("awm", steps=5, old_policy="on_policy"), prompts={"prompts_per_iteration": 2}
    ),
    "awm_5_steps_otca": changed(**matching("awm", steps=5, old_policy="on_policy"), credit=TCD, fusion=CENTERED),
    "awm_5_steps_learned_credit": changed(**matching("awm", steps=5, old_policy="on_policy"), credit=LEARNED),
    "awm_learned_credit": changed(**matching("awm", old_policy="on_policy"), credit=LEARNED),
    "dgpo": changed(**matching("dgpo", old_policy="gradual")),
    "dpo": changed(**matching("dpo", old_policy="on_policy")),
    "dppo": changed(update={"objective": "dppo", "clip_range": 1e-5, "epochs": 2}, sampler={"keep_graph": "off"}),
    "clipped_2_epochs": changed(update={"epochs": 2}, sampler={"keep_graph": "off"}),
    "precise": changed(sampler={"kind": "precise"}),
    "mix_grpo": changed(
        window=node("MixGRPOWindow", iteration=0, steps=8, length=4, mode="progressive", every=25, stride=1),
        sampler={**FLOW_SDE, "window_start": ["window", 0], "window_length": ["window", 1]},
    ),
    "pcpo": changed(sampler=FLOW_SDE, credit=credit("PCPOWeights"), update={"objective": "log_hinge"}),
    "stepwise_flow_grpo": changed(
        sampler={"kind": "ddim_sde", "eta": 0.7},
        fusion=node(
            "StepwiseGain",
            model=["model", 0],
            trajectories=["sampler", 0],
            scores=["stack", 0],
            tweedie_steps=5,
            per_step=False,
            fusion="weighted_advantages",
        ),
        credit=None,
    ),
    "vipo": vipo,
    # The structure of two public trainers, with as many prompts to an iteration as make the budget more than a few iterations.
    "flow_grpo_public": changed(
        sampler={**FLOW_SDE, "group_size": 24, "steps": 10, "shared_noise": False},
        fusion={"mode": "weighted_sum", "std_scope": "batch"},
        update={"kl_coefficient": 0.04},
    ),
    "dance_grpo_public": changed(
        sampler={"eta": 0.3, "steps": 16, "shared_noise": True}, credit={"timestep_fraction": 0.6}
    ),
}


def graph(method: str, world: str) -> Graph:
    made = base(world)
    METHODS[method](made)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m comfyui_otca.bench.methods", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--world", choices=list(REWARDS), default="scenes")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for method in METHODS:
        text = json.dumps(graph(method, arguments.world), indent=1)
        (arguments.folder / f"{method}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
