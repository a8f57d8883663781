"""A model of diffusers by its configurations alone: what it is built of, on no device and without a weight."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...host import extras
from ...host.paths import ASSETS
from ..families.folder import check_model_folder, library_class, read_index, read_object
from ..families.options import FlowModelError

Part = tuple[str, str, Mapping[str, Any]]  # library, class, configuration
NO_LIMIT = 10**6  # tokens: more than any family takes
LONGEST = 512  # tokens, if neither the tokenizer nor the family says fewer


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A pipeline's configurations.

    Attributes:
        pipeline: the class's name in diffusers, a row of `sizes.RULES`.
        parts: by component: the library, the class and its configuration.
        settings: plain entries of model_index.json, such as Wan's boundary.
        tokens: what the tokenizer of each component takes at most.
        scheduler: its class and configuration; which it is makes no difference to memory.
        name: what a person knows it by.
        folder: where it was read; None for a published model that is not here.
    """

    pipeline: str
    parts: Mapping[str, Part]
    settings: Mapping[str, Any] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=lambda: {"tokenizer": NO_LIMIT})
    scheduler: tuple[str, Mapping[str, Any]] = ("FlowMatchEulerDiscreteScheduler", {})
    name: str = ""
    folder: Path | None = None

    def networks(self) -> dict[str, Any]:
        """Each component on the meta device, as its class makes it."""
        with torch.device("meta"):
            return {name: self._network(name, *part).train(False) for name, part in self.parts.items()}

    def _network(self, name: str, library: str, kind: str, config: Mapping[str, Any]) -> nn.Module:
        cls = library_class((self.folder or Path(self.name)) / name, library, kind)
        own = deepcopy(dict(config))  # transformers writes defaults into what is nested in a configuration
        try:
            if library == "transformers":
                return cls._from_config(cls.config_class.from_dict(own))
            return cls.from_config(own)
        except (TypeError, ValueError, LookupError, RuntimeError, ArithmeticError) as error:
            raise FlowModelError(
                f"{self.name}: the configuration of {name} makes no {kind} ({error}). Fix: copy it again"
            ) from error

    def pipeline_of(self, networks: Mapping[str, nn.Module]):
        """The pipeline with these networks. Its tokenizers only count."""
        extras.check("The estimate of a model folder's memory", "diffusers")
        import diffusers

        from .meta import Words

        cls = getattr(diffusers, self.pipeline)
        kind, config = self.scheduler
        parts = {**self.settings, **networks, "scheduler": getattr(diffusers, kind).from_config(dict(config))}
        parts |= {name: Words(most) for name, most in self.tokens.items()}
        parameters = list(inspect.signature(cls.__init__).parameters.items())[1:]
        if "processor" in dict(parameters):  # of texts and pictures
            parts.setdefault("processor", Words(max(self.tokens.values())))
        return cls(**{name: parts.get(name) for name, it in parameters if name in parts or it.default is it.empty})


def of_folder(path: Path) -> Blueprint:
    """Raises FlowModelError if the folder belongs to no family, or its configurations cannot be read."""
    family = check_model_folder(path)
    index = read_index(path)
    parts, tokens = {}, {}
    for name, source in index.items():
        if not isinstance(source, list) or not source[0]:
            continue
        if name.startswith("tokenizer"):
            tokens[name] = read_object(path / name / "tokenizer_config.json").get("model_max_length", LONGEST)
        elif name != "scheduler" and (path / name / "config.json").is_file():
            parts[name] = (source[0], source[1], read_object(path / name / "config.json"))
    scheduler = index["scheduler"][1], read_object(path / "scheduler" / "scheduler_config.json")
    settings = {name: value for name, value in index.items() if name[0] != "_" and not isinstance(value, list)}
    return Blueprint(family, parts, settings, tokens, scheduler, path.name, path)


@functools.cache
def published() -> dict[str, Blueprint]:
    """Models by what their folders are called on huggingface.co, with the numbers that their makers published.

    What the classes of diffusers and transformers take without being told is not repeated: diffusers' defaults are those of
    FLUX.1, FLUX.2 dev, Wan 14 B, Z-Image, Qwen-Image and Krea 2, transformers' that of Mistral 3. Sources beside the folders:
    Wan 2.2's other two are in diffusers' convert_wan_to_diffusers.py, klein in Klein4BParams and Klein9BParams of
    github.com/black-forest-labs/flux2 (three layers of Qwen3 give the text), language models in ComfyUI 0.33 (llama.py,
    qwen_vl.py and qwen3vl.py of its text encoders). A test holds the counts of parameters that follow to the published ones.
    What memory does not depend on is left out or made up: schedulers, and what latents are scaled by.
    """
    rows = json.loads((ASSETS / "published_models.json").read_text(encoding="utf-8"))
    models = {}
    for name, model in rows["models"].items():
        parts = {component: tuple(rows["parts"][part]) for component, part in model["parts"].items()}
        models[name] = Blueprint(**{**model, "parts": parts, "name": name})
    return models
