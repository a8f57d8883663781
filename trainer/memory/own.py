"""The settings that a model is made for: size, steps, guidance and prompts, by the name of its file or folder.

The values are those of our own template of that model (docs/models.md), since it is counted with them. A new node on the canvas
gets them when a model is connected, and a picture of another size is warned of. A model that is not listed has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..types import DATASET_NODE, LOAD_NODE, TRAJECTORY_NODES
from ..workflow import lineage
from . import needs

# Of the pixels that a picture model is made for, how few and how many it makes without grids or seams: FLUX that was trained at
# 768 x 768, 0.56 of them, showed grids at 1024 x 1024 (DanceGRPO, issue 36).
FEW, MANY = 0.6, 2.0


@dataclass(frozen=True)
class Own:
    """The settings that one model is made for.

    Attributes:
        width, height: in pixels.
        steps, guidance: None if its variants differ.
        prompts: the list of those that it has learned; "" of a model that knows more than one list can hold.
        video: it makes videos of many sizes.
    """

    width: int
    height: int
    steps: int | None = None
    guidance: float | None = None
    prompts: str = ""
    video: bool = False

    def values(self, class_type: str) -> dict[str, Any]:
        """{input: value} for Prompt Dataset or one of TRAJECTORY_NODES, as far as it is known."""
        if class_type == DATASET_NODE:
            return {"file": self.prompts} if self.prompts else {}
        steps = "steps" if class_type == TRAJECTORY_NODES[0] else "levels"
        settings = {"width": self.width, "height": self.height, steps: self.steps, "guidance": self.guidance}
        return {name: value for name, value in settings.items() if value is not None}


# By how the name of a file begins; the first row that fits.
FILES = {
    "z_image_turbo": Own(1024, 1024, 8, 1.0),
    "z_image": Own(1024, 1024),
    "qwen_image": Own(1024, 1024, 6, 4.0),
    "krea2_raw": Own(1024, 1024, 6, 3.5),
    "krea2": Own(1024, 1024),
    "flux-2-klein-base": Own(1024, 1024),
    "flux-2-klein": Own(1024, 1024, 4, 1.0),
    "flux1-schnell": Own(1024, 1024, 4),
    "flux_schnell": Own(1024, 1024, 4),
    "flux": Own(1024, 1024, 12, 3.5),
    "wan2.2_ti2v_5b": Own(640, 352, 8, 5.0, video=True),
    "wan2.2_t2v": Own(416, 240, 8, 3.5, video=True),
}
FOLDERS = {
    "shapes-flux": Own(40, 40, 8, 3.5, "shapes_train.txt"),
    "scenes-flux": Own(40, 40, 5, 3.5, "scenes_train.txt"),
    "edit-flux": Own(40, 40, 5, 3.5, "edit_train.jsonl"),
}
EMBEDDED = {name: replace(own, guidance=1.0) for name, own in FOLDERS.items()}  # as ComfyUI means guidance
EMBEDDED_NODE = "OTCA_EmbeddedModel"


def of_file(name: str) -> Own | None:
    plain = name.replace("\\", "/").rsplit("/", 1)[-1].lower()
    return next((own for begins, own in FILES.items() if plain.startswith(begins)), None)


def of(graph: Mapping[str, Mapping], node: str) -> Own | None:
    """The settings that the model of one of TRAJECTORY_NODES is made for; None if that is not known."""
    loader = lineage.loader_above(graph, node)
    if loader is None:
        return None
    inputs = graph[loader]["inputs"]
    if graph[loader]["class_type"] == LOAD_NODE:
        return None if inputs.get("path") else FOLDERS.get(str(inputs.get("model")))
    if files := needs.Files.of(graph, inputs).networks:
        return of_file(files[0][0].name)
    embedded = [
        graph[id_]["inputs"] for id_ in lineage.above(graph, loader) if graph[id_]["class_type"] == EMBEDDED_NODE
    ]
    return EMBEDDED.get(str(embedded[0].get("model"))) if embedded else None


def far(own: Own, width: int, height: int) -> str:
    """The risk of a picture of that size; "" for nothing."""
    part = width * height / (own.width * own.height)
    if own.video or FEW <= part <= MANY:
        return ""
    made = f"{own.width} x {own.height}"
    return f"{width} x {height} is far from {made}, which this model is made for: it may learn grids or seams that show at {made}"
