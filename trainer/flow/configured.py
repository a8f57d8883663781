"""A model folder by its configuration files and the headers of its weights: what can be known before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..workflow.problem import Misfit
from .files import NETWORKS, opened
from .folder import check_model_folder, read_object
from .options import FlowModelError
from .sizes import RULES, Config, LatentGrid


@dataclass(frozen=True)
class Configuration:
    """What a folder says of itself. `whole`: its transformer comes from the folder, and not from a single file."""

    folder: Path
    family: str
    grid: LatentGrid
    scheduler: Config
    whole: bool

    def shift(self, height: int, width: int) -> float:
        """The timestep shift that it asks for at this size, which it can make. Raises ValueError, with the fix, if it is none."""
        return RULES[self.family].shift(self.scheduler, self.grid, height, width)

    def lora_targets(self, text: str) -> Iterator[Misfit]:
        """Names as peft reads them: ends of module names. At least one must exist, and all must be layers with a matrix."""
        wanted = [name.strip() for name in text.split(",") if name.strip()]
        ends = tuple(f".{name}" for name in wanted)
        for expert in NETWORKS if wanted and self.whole else ():
            if not (self.folder / expert).is_dir():
                continue
            layers, others = modules(self.folder / expert)
            fitting = [name for name in layers if name in wanted or name.endswith(ends)]
            wrong = sorted(name for name in others if name in wanted or name.endswith(ends))
            if wrong or not fitting:
                what = f"name {wrong[0]}, which is no layer" if wrong else "fit no layer"
                message = f"lora_targets {what} of {expert} that an adapter can be put on"
                fix = f"leave it empty, or use ends of names such as {', '.join(sorted(layers)[:3])}"
                yield Misfit("lora_targets", message, fix)


def read_configuration(folder: Path, files: Mapping[str, Path]) -> Configuration:
    """Raises FlowModelError where the folder, or one of the single files instead of its own, cannot be used."""
    family = check_model_folder(folder, files)
    names = ("vae/config.json", "transformer/config.json", "scheduler/scheduler_config.json")
    vae, transformer, scheduler = (read_object(folder / name) for name in names)
    try:
        grid = RULES[family].grid(vae, transformer)
        grid.shape(*_some_size(grid))
        RULES[family].shift(scheduler, grid, *_some_size(grid))
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        reason = f"{type(error).__name__}: {error}".partition(". Fix: ")[0]  # of one size, and here none fits
        raise FlowModelError(
            f"{folder}: its configuration files say nothing that a {family} could be ({reason}). Fix: copy it again"
        ) from error
    return Configuration(folder, family, grid, scheduler, not any(name in files for name in NETWORKS))


def _some_size(grid: LatentGrid) -> tuple[int, int]:
    return grid.scale * grid.patch, grid.scale * grid.patch


def modules(folder: Path) -> tuple[set[str], set[str]]:
    """Names of a network's modules by the headers of its weight files: those with a matrix, and all others."""
    layers, others = set(), set()
    for file in sorted(folder.glob("*.safetensors")):
        with opened(file, "np") as content:
            for key in content.keys():
                module, _, kind = key.rpartition(".")
                if kind == "weight" and len(content.get_slice(key).get_shape()) > 1:
                    layers.add(module)
                parts = module.split(".")
                others |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return layers, others - layers
