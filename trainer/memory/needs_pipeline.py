"""What the training of a workflow with Load Flow Model needs: its folder's configurations, rehearsed on the meta device."""

from __future__ import annotations

from collections.abc import Mapping

from ...host import search
from ..families.options import LoadOptions
from ..types import LOAD_NODE
from ..workflow import graph as api
from .case import Case
from .needs_iteration import iteration, plain, the_only
from .published import PUBLISHED


def read(graph: Mapping[str, Mapping]) -> tuple[Case, list[str]]:
    """The case of an API graph, and a line about the model: whether its folder is here.

    Raises:
        ValueError: the graph trains several models, or one that is neither here nor known by its name.
    """
    import torch

    from ..families.sizes import RULES
    from ..policy.adapters import Adapter
    from . import blueprint
    from .pipelines import PipelineCase

    node = the_only(graph, "Load Flow Model", LOAD_NODE)
    inputs = plain(node["inputs"])
    name = inputs.get("path") or inputs.get("model", "")
    try:
        folder = search.model(name, "model_index.json")
        found, line = blueprint.of_folder(folder), f"{name}: its configurations were read"
    except FileNotFoundError as error:
        known = blueprint.of_name(name)
        if known is None:
            raise ValueError(f"{error}. Known without their folder: {', '.join(PUBLISHED)}") from error
        found, line = known, f"{name}: not here, published configurations"
    memory = node["inputs"].get("memory")
    options = plain(graph[memory[0]]["inputs"]) if api.is_link(memory) else {}
    options |= {key: inputs[key] for key in ("max_sequence_length", "dtype") if key in inputs}
    loaded = LoadOptions(**{key: value for key, value in options.items() if key in LoadOptions.__dataclass_fields__})
    dtypes = {"float32": torch.float32, "float16": torch.float16}
    lora = inputs.get("training", "lora") == "lora"
    adapter = Adapter(inputs.get("lora_rank", 16), inputs.get("lora_alpha", 16.0), inputs.get("lora_targets", ""))
    guidance = RULES[found.pipeline].guidance
    case = PipelineCase(
        blueprint=found,
        adapter=adapter if lora else None,
        options=loaded,
        dtype=dtypes.get(loaded.dtype, torch.bfloat16),  # auto: what it is on a GPU
        iteration=iteration(graph, off=guidance and guidance.off),
    )
    return case, [line]
