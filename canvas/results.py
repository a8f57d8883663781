"""The page's questions to nodes that ran: their last results, a preview of one step, and to free memory.

ComfyUI's own message carries a result to the page once; a reloaded page finds it here. Models are only borrowed from ComfyUI's
cache, by weak references. So is what the pictures of the heatmap's cells are decoded from, except of the iteration that finished
last: the next prompt drops it from the cache long before there is another heatmap to look at.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..host import comfyui, devices, paths
from ..host.errors import Expected
from ..host.extras import MissingPackage
from ..trainer.types import RUN_NODE
from ..trainer.workflow import lineage
from . import here, payloads

if TYPE_CHECKING:
    from torch import Tensor

    from ..trainer.families.base import FlowModel
    from ..trainer.types import SamplerSettings, Trajectories

EVENT = "otca.result"

# By workflow and node: ids of nodes are the same in many workflows.
Place = tuple[str | None, str]
results_by_node: dict[Place, dict[str, dict]] = {}
looks_by_node: dict[Place, Look] = {}
runs_by_canvas: dict[Place, str] = {}  # by the Training Run node that makes it
recent_canvases: dict[str | None, None] = {}  # workflows, the last one that ran at the end
MOST_WORKFLOWS = 16
MOST_KEPT_BYTES = 2 * 2**30  # of main memory, for the pictures of the last iteration


class Look:
    """The latents that the pictures of a heatmap's cells are decoded from.

    Args:
        made_by: the fingerprint of the graph that sampled the trajectories.
    """

    def __init__(self, trajectories: Trajectories, predictions: Tensor, model: FlowModel, made_by: str):
        self.made_by, self.bytes = made_by, predictions.nbytes
        self.model = weakref.ref(model, lambda _: self.let_go())  # without it nothing can be decoded
        self._trajectories, self.texts = weakref.ref(trajectories), trajectories.texts
        self._kept = predictions if predictions.nbytes <= MOST_KEPT_BYTES else None

    def let_go(self) -> None:
        """From now on there is only what ComfyUI's cache still holds."""
        self._kept = None

    def predictions(self) -> Tensor | None:
        """[B, T, C, h, w], x̂0 at every step."""
        trajectories = self._trajectories()
        return self._kept if trajectories is None else trajectories.predictions

    def gone(self) -> str:
        """Why the predictions are missing."""
        if self.bytes <= MOST_KEPT_BYTES:
            return "another workflow has run since, and pictures are kept of one only. Fix: run the graph again"
        return (
            f"the pictures of its last iteration take {self.bytes / 2**30:.1f} GiB of main memory, and more than "
            f"{MOST_KEPT_BYTES / 2**30:.0f} GiB are not kept while the next iteration is sampled. Fix: look again when this "
            "iteration is done, or sample fewer pictures"
        )


class Busy(Expected, RuntimeError):
    """A prompt is running, and what was asked would disturb it."""


def shown(
    node: str, result: tuple, payloads: Mapping[str, Callable[[], dict]], trajectories: Trajectories | None = None
):
    """A node's return value: on the canvas with what the page shows, headlessly the bare result.

    `node`: the node's id.
    `payloads`: by kind (credit, advantages, scores or run; `shows_owner` shows the kind owner), in the order of showing.
    `trajectories`: those that `preview_png` of this node shows.
    """
    if not here():
        return result
    prompt = comfyui.running_prompt()
    ui = {f"otca_{kind}": [_show(node, kind, payload(), prompt)] for kind, payload in payloads.items()}
    if trajectories is not None:
        made_by = lineage.fingerprint(prompt, node) if node in prompt else ""
        # Predictions are held of one workflow, the one that ran last
        workflow = comfyui.running_workflow_id()
        for (of, _), look in looks_by_node.items():
            if of != workflow:
                look.let_go()
        looks_by_node.pop((workflow, node), None)
        if trajectories.predictions is not None and trajectories.model is not None:
            looks_by_node[workflow, node] = Look(trajectories, trajectories.predictions, trajectories.model, made_by)
    return {"ui": ui, "result": result}


def _show(node: str, kind: str, data: dict, prompt: Mapping) -> dict:
    """Remembers what a node shows, with what made it, and sends it to the page."""
    workflow = comfyui.running_workflow_id()
    # Forgets the workflow that ran longest ago if there are too many: a result holds pictures
    recent_canvases.pop(workflow, None)
    recent_canvases[workflow] = None
    if len(recent_canvases) > MOST_WORKFLOWS:
        oldest = next(iter(recent_canvases))
        del recent_canvases[oldest]
        for held in (results_by_node, looks_by_node, runs_by_canvas):
            for key in [key for key in held if key[0] == oldest]:
                del held[key]
    made_by = lineage.fingerprint(prompt, node) if node in prompt else ""
    below = lineage.runs_below(prompt, node) if node in prompt else []
    run = next(filter(None, (runs_by_canvas.get((workflow, recording)) for recording in below)), None)
    data = {"run": run, "drawn": lineage.advanced(prompt)} | data | {"workflow_id": workflow, "made_by": made_by}
    # Advantages of a credit that is no more, and those that another node below has changed since, would be shown again.
    credit = {"credit": node, "advantages": data.get("credit_node")}.get(kind)
    for (of, _), results in results_by_node.items():
        if credit and of == workflow and results.get("advantages", {}).get("credit_node") == credit:
            del results["advantages"]
    results_by_node.setdefault((workflow, node), {})[kind] = data
    comfyui.tell(EVENT, {"node": node, "kind": kind, "data": data})
    return data


def results_of(prompt: Mapping, workflow: str | None) -> dict[str, dict[str, dict]]:
    """{node: {kind: data}} of what the nodes of a graph last showed, as far as this very graph made it: with the same wiring
    and values. Results of a graph that a script queued have no workflow's id, and are shown in every graph that is the same."""
    results = {}
    for node in prompt:
        kinds = last_results(node, workflow)
        made_by = lineage.fingerprint(prompt, node) if kinds else ""
        if fitting := {kind: data for kind, data in kinds.items() if data["made_by"] == made_by}:
            results[node] = fitting
    return results


def last_results(node: str, workflow: str | None = None) -> dict[str, dict]:
    """The results that a node showed last, by kind; also what a script queued, whose graph has no workflow id."""
    return dict(results_by_node.get((workflow, node)) or results_by_node.get((None, node), {}))  # a prompt adds to them


def shows_owner(prompt: Mapping, node: str, text: str, memory: str | None = None) -> None:
    """Shows on the node that loads the model which run its adapter belongs to and, if given, what memory its training needs."""
    loader = lineage.loader_above(prompt, node)
    if loader is not None:
        _show(loader, "owner", {"node": loader, "text": text, "memory": memory}, prompt)


def belongs(model: FlowModel, prompt: Mapping | None, node: str, settings: SamplerSettings) -> None:
    """On the canvas, before a node samples: gives the model to the run that records what it is trained on, and says so."""
    from ..trainer.run.record import run_of
    from . import ownership

    if not here():
        return
    assert prompt is not None  # ComfyUI gives it
    with devices.moving:  # its run may be saved at this moment, to be let go
        shows_owner(prompt, node, ownership.take_up(model, prompt, node), model.memory_line(settings))
    if (run := run_of(model)) is not None:
        assert run.held.node is not None  # every run on the canvas has it
        makes_run(run.held.node, run.folder.name)


def coming(graph: Mapping) -> dict[str, dict]:
    """{Training Run node: which run the next prompt of the graph would go on with, or the problem that keeps it from one}."""
    from ..trainer.run.folder import RunError
    from . import ownership

    messages = {}
    for node, entry in graph.items():
        if entry["class_type"] == RUN_NODE:
            try:
                link = entry["inputs"].get("model")
                update = graph.get(link[0], {}) if isinstance(link, list) and link else {}
                still = {"still": update.get("inputs", {}).get("learning_rate") == 0}
                messages[node] = asdict(ownership.coming(graph, node)) | still
            except RunError as error:
                messages[node] = {"problem": str(error)}
    return messages


def makes_run(node: str, run: str) -> None:
    """Remembers which run a Training Run node writes. Called before sampling and before the evaluation, since both take long."""
    runs_by_canvas[comfyui.running_workflow_id(), node] = run


def run_at_work(run: str) -> bool:
    """Whether ComfyUI is executing a prompt of that run."""
    return any(runs_by_canvas.get(node) == run for node in comfyui.running_nodes(RUN_NODE))


def preview_png(node: str, sample: int, step: int, workflow: str | None = None, made_by: str = "") -> bytes:
    """x̂0 of one sample as the model saw it at one denoising step, decoded; `made_by` as the result says it that is looked at.

    Raises:
        LookupError: nothing (any more) to look at, or no such sample or step.
    """
    from ..trainer.pictures import grids

    look = looks_by_node.get((workflow, node)) or looks_by_node.get((None, node))
    if look is None or look.made_by != made_by or (model := look.model()) is None:
        raise LookupError(f"the trajectories of node {node} are no longer in memory. Fix: run the graph again")
    predictions = look.predictions()
    if predictions is None:
        raise LookupError(f"node {node}: {look.gone()}")
    samples, steps = predictions.shape[:2]
    if not (0 <= sample < samples and 0 <= step < steps):
        raise LookupError(f"sample {sample}, step {step}: there are {samples} samples and {steps} steps, from 0")
    image = grids.stills(model.decode(predictions[sample, step][None], 0, look.texts[sample : sample + 1]))[0]
    file = io.BytesIO()
    payloads.picture_of(image).save(file, "PNG")
    return file.getvalue()


def release() -> int:
    """Moves our models to main memory, where they keep what they learned until they are used again; returns how many left.

    Raises:
        Busy: a prompt with our nodes is running.
    """
    # Asked under the lock: a prompt that starts after this question waits until all have left, then takes them back.
    with devices.moving:
        if comfyui.our_prompt_running():
            raise Busy("a prompt that uses the models is running. Fix: stop it, or wait until it has finished")
        return devices.release_all()


def let_go(run: str) -> None:
    """A run that this process has made on the canvas ends here, complete on disk, so that its folder is free. The next prompt
    of its graph begins another one.

    Raises:
        Busy: a prompt with our nodes is running, or what it learned cannot be saved.
    """
    from ..trainer.run.record import run_at
    from . import ownership

    with devices.moving:
        opened = run_at(paths.runs_folder() / run)
        if opened is None:
            return
        if comfyui.our_prompt_running():
            raise Busy(
                f"run {run} is open on the canvas, and a prompt is running. Fix: stop it, or wait until it has ended"
            )
        ownership.let_go(opened)


def make_room_for_others() -> None:
    """Before another process trains here: our models leave, and ComfyUI's, unless a prompt of ours needs them."""
    try:
        release()
    except Busy:
        return
    comfyui.unload_soon()


def picture(draw: Callable):
    """The picture that a node shows, as ComfyUI's IMAGE: where there is no package to draw it, a picture that says so.
    Headlessly nothing is drawn."""
    if not here():
        return None
    from ..trainer.pictures import grids

    try:
        drawn = draw()
    except MissingPackage as missing:
        drawn = grids.note(str(missing))
    return grids.as_image(drawn)
