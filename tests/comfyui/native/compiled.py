"""Blocks that torch compiles, of ComfyUI's networks: each function is a question, and returns figures."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from comfyui_otca.tests.comfyui import tiny
from comfyui_otca.tests.comfyui.native.made import Loss, Made, apart, attribute, furthest, make, trainable
from comfyui_otca.tests.comfyui.native.proofs import logged
from comfyui_otca.trainer.native import compiling

FORMS = {"off": {}, "on": {"checkpointing": "on"}, "kept": {"checkpointing": "on"}}


@contextmanager
def compiling_here() -> Iterator[None]:
    """torch's compiler from its start, without programs for a processor; and attention as on a GPU, which asks for no memory."""
    import comfy.ldm.modules.attention as attention

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    own = attention.optimized_attention
    with ExitStack() as stack:
        stack.enter_context(attribute(compiling, "BACKEND", "aot_eager"))
        for module in [each for name, each in sys.modules.items() if name.startswith("comfy.ldm.")]:
            for name in ("optimized_attention", "optimized_attention_masked"):
                if getattr(module, name, None) is own:
                    stack.enter_context(attribute(module, name, attention.attention_pytorch))
        yield
    torch._dynamo.reset()


def compiled(family: str, forms: list[str]) -> dict:
    """How far velocity, velocity without the adapter and gradient are from those of the plain blocks; and torch's counts."""
    with compiling_here(), logged() as lines:
        plain = _figures(make(family, all_layers=True))
        found = {form: _apart(_figures(_made(family, form), kept=int(form == "kept")), plain) for form in forms}
        counts = torch._dynamo.utils.counters
        return {
            "apart": found,
            "graphs": counts["stats"]["unique_graphs"],
            "breaks": sum(counts["graph_break"].values()),
            "log": [line for line in lines if "compile:" in line],
        }


def _made(family: str, form: str) -> Made:
    return make(family, all_layers=True, compile=True, **FORMS[form])


def _figures(made: Made, kept: int = 0) -> tuple:
    made.move()
    loss = Loss(made)
    for expert in made.model.wrapped.values():
        expert.kept_blocks = kept
    with torch.no_grad(), made.model.policy.reference():
        bare = loss.velocity()
    with torch.no_grad():
        return loss.velocity(), bare, loss.gradients()


def _apart(one: tuple, other: tuple) -> float:
    return max(apart(one[0], other[0]), apart(one[1], other[1]), furthest(one[2], other[2]))


def graphs_of_depth(family: str, depths: list[dict]) -> dict:
    """torch's graphs of the same network with other numbers of blocks; and after ComfyUI has taken the model away and back."""
    import comfy.model_management

    counts = []
    for depth in depths:
        form = tiny.FAMILIES[family]
        deeper = dataclasses.replace(form, network=form.network | depth)
        with compiling_here(), _family(family, deeper):
            made = _made(family, "off")
            _figures(made)
            stats = torch._dynamo.utils.counters["stats"]
            counts.append((len(made.model.wrapped["model"].blocks), stats["unique_graphs"]))
            comfy.model_management.unload_all_models()
            _figures(made)
            counts.append((len(made.model.wrapped["model"].blocks), stats["unique_graphs"]))
    return {"counts": counts}


@contextmanager
def _family(name: str, form) -> Iterator[None]:
    before = tiny.FAMILIES[name]
    tiny.FAMILIES[name] = form
    try:
        yield
    finally:
        tiny.FAMILIES[name] = before


def left_out(family: str) -> dict:
    """Blocks of weights in float8, and those behind another node: as without `compile`, and what is said."""
    stored = {"dtype": torch.float8_e4m3fn}
    with compiling_here():
        with logged() as lines:
            far = _apart(_figures(make(family, stored, compile=True)), _figures(make(family, stored)))
            fetched = [line for line in lines if "compile:" in line]
        with logged() as lines, torch.inference_mode(False):
            form = tiny.build(family)
            form.model.set_model_attn1_output_patch(lambda out, extra: out)
            _figures(trainable(form, compile=True))
            patched = [line for line in lines if "compile:" in line]
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return {"apart": far, "fetched": fetched, "patched": patched, "graphs": graphs}


def guarded(family: str) -> dict:
    """An update behind the comparison with finite differences, of compiled blocks."""
    with compiling_here():
        made = make(family, compile=True, check_gradients=True)
        taken = made.sample(seed=0)
        before = made.parameters()
        made.update(taken)
        return {"moved": not all(map(torch.equal, before, made.parameters()))}
