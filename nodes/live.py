"""What the page can ask of the nodes after they ran: their last results, a preview of one step, and to free memory.

ComfyUI's own message carries a result to the page once; a reloaded page finds it here. Trajectories and models are only
borrowed from ComfyUI's cache, by weak references: looking at them keeps nothing alive.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..trainer import host, resident
from . import payloads

if TYPE_CHECKING:
    from ..trainer.types import Trajectories

EVENT = "otca.result"

_results: dict[str, dict[str, dict]] = {}
_trajectories: dict[str, weakref.ref[Trajectories]] = {}


class Busy(RuntimeError):
    """A prompt is running, and what was asked would disturb it."""


def shown(node: str, kind: str, result: tuple, payload: Callable[[], dict], trajectories: Trajectories | None = None):
    """A node's return value: on the canvas with `payload` for the page, headlessly the bare result.

    Args:
        node: the node's id.
        kind: credit, advantages, scores or run.
        trajectories: those that `preview_png` of this node shows.
    """
    if not host.in_comfyui():
        return result
    data = payload() | {"workflow_id": host.running_workflow_id()}
    if kind == "credit":  # advantages are about a credit that is no more
        for results in _results.values():
            if results.get("advantages", {}).get("credit_node") == node:
                del results["advantages"]
    _results.setdefault(node, {})[kind] = data
    if trajectories is not None:
        _trajectories[node] = weakref.ref(trajectories)
    host.tell(EVENT, {"node": node, "kind": kind, "data": data})
    return {"ui": {f"otca_{kind}": [data]}, "result": result}


def last_results(node: str) -> dict[str, dict]:
    """What that node last showed, by kind."""
    return _results.get(node, {})


def preview_png(node: str, sample: int, step: int) -> bytes:
    """x̂0 of one sample as the model saw it at one denoising step, decoded.

    Raises:
        LookupError: nothing (any more) to look at, or no such sample or step.
    """
    from ..trainer import plots

    trajectories = _trajectories.get(node, lambda: None)()
    if trajectories is None or trajectories.predictions is None:
        raise LookupError(f"the trajectories of node {node} are no longer in memory. Fix: run the graph again")
    samples, steps = trajectories.predictions.shape[:2]
    if not (0 <= sample < samples and 0 <= step < steps):
        raise LookupError(f"sample {sample}, step {step}: there are {samples} samples and {steps} steps, from 0")
    image = plots.stills(trajectories.decode(trajectories.predictions[sample, step][None]))[0]
    file = io.BytesIO()
    payloads.picture_of(image).save(file, "PNG")
    return file.getvalue()


def release() -> int:
    """Moves our models to main memory, where they keep what they learned until they are used again; returns how many left.

    Raises:
        Busy: a prompt with our nodes is running.
    """
    # Asked under the lock: a prompt that starts after this question waits until all have left, then takes them back.
    with resident.moving:
        if host.our_prompt_running():
            raise Busy("a prompt that uses the models is running. Fix: stop it, or wait until it has finished")
        return resident.release_all()
