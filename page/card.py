"""`otca card`: a run as a folder that its user can upload: model card, pictures, LoRA, workflow. Nothing is uploaded."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..bundle import contents
from ..host.access import wants
from ..host.comfyui import is_ours
from ..host.files import write_text
from ..nodes import NODE_CLASS_MAPPINGS
from ..study import prove
from ..study.statistics import number, plus_minus, table
from ..trainer.policy.files import ADAPTERS, header, read_metadata, read_tensors, write_tensors
from ..trainer.policy.lora import workflow_metadata
from ..trainer.run import budget
from ..trainer.run.folder import EVALUATIONS, METRICS, SAMPLES, WORKFLOW, RunError, json_line, read_lines
from ..trainer.types import SAMPLER_NODE, STEP_NODES
from ..trainer.workflow import graph as api
from ..trainer.workflow.running import Workflow
from . import proof

_README, _PICTURES, _PAIRS = "README.md", "pictures", 6
_BASES = ("diffusion_models", "checkpoints", "unet")  # folders of ComfyUI's models
_FLUX = "FLUX non-commercial licence: neither the base nor what is derived from it may be used commercially"
# By a pattern of the base's name, the first that fits: its id on the Hugging Face Hub, and what its licence restricts.
_KNOWN = (
    (r"flux[._-]?1.*krea", "black-forest-labs/FLUX.1-Krea-dev", _FLUX),
    (r"flux[._-]?1.*schnell|flux_schnell", "black-forest-labs/FLUX.1-schnell", ""),
    (r"flux[._-]?1.*dev|flux_dev", "black-forest-labs/FLUX.1-dev", _FLUX),
    (r"flux[._-]?2.*klein.*base.*4b", "black-forest-labs/FLUX.2-klein-base-4B", ""),
    (r"flux[._-]?2.*klein.*4b", "black-forest-labs/FLUX.2-klein-4B", ""),
    (r"flux[._-]?2.*klein.*base.*9b", "black-forest-labs/FLUX.2-klein-base-9B", _FLUX),
    (r"flux[._-]?2.*klein.*9b", "black-forest-labs/FLUX.2-klein-9B", _FLUX),
    (r"flux[._-]?2.*dev", "black-forest-labs/FLUX.2-dev", _FLUX),
    (
        r"(sd|stable-diffusion-)3",
        "",
        "Stability AI community licence: commercial use is free only below a yearly revenue, and asks for attribution",
    ),
    (
        r"hunyuan.?video",
        "tencent/HunyuanVideo",
        "Tencent community licence: it excludes the EU, the UK and South Korea, and restricts commercial use",
    ),
    (r"z.?image.?turbo", "Tongyi-MAI/Z-Image-Turbo", ""),
    (r"z.?image", "Tongyi-MAI/Z-Image", ""),
    (r"qwen.?image", "Qwen/Qwen-Image", ""),
    (r"wan2\.2.?t2v", "Wan-AI/Wan2.2-T2V-A14B", ""),
    (r"wan2\.2.?ti2v", "Wan-AI/Wan2.2-TI2V-5B", ""),
)


def make(workflow: Workflow, run: Path, target: Path) -> list[str]:
    """Writes the card of a run into a new folder, whole or not at all; returns lines for a person.

    Raises:
        RunError: that is not a run, or it has no adapter yet.
        WorkflowError: its workflow holds a key or a path that must not be passed on.
        ValueError: something is in the way.
    """
    files = adapters(run)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"--output {target} is not an empty folder. Fix: choose another --output, or remove it")
    collected = replace(contents.collect(contents.begun_from_runs(workflow)), run_name=run.resolve().name)
    history, evaluations = read_lines(run / METRICS), read_lines(run / EVALUATIONS)
    trained = bases(collected)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".otca-card-", dir=target.parent))
    try:
        weights = [_write_adapter(file, aside, collected.run_name, collected.graph) for file in files]
        pairs = _write_pairs(run, evaluations, aside)
        write_text(aside / WORKFLOW, json.dumps(collected.graph, indent=1, ensure_ascii=False))
        write_text(aside / EVALUATIONS, "".join(map(json_line, evaluations)))
        write_text(aside / _README, _readme(collected, trained, files[0], weights, history, evaluations, pairs))
        aside.chmod(0o755)
        if target.is_dir():
            target.rmdir()  # which removes no folder that is not empty
        aside.replace(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    warnings = [f"warning: {base}: {limits}" for base, _, limits in trained if limits]
    return [*warnings, f"{target}: fill in the licence in {_README}, then upload it by your own tools"]


def adapters(run: Path) -> list[Path]:
    """The files of a run's LoRA. Raises RunError if that is not a run, or it has none."""
    if not (run / WORKFLOW).is_file():
        raise RunError(f"{run} holds no run. Fix: give the folder that has its {WORKFLOW}")
    if files := [run / name for name in ADAPTERS if (run / name).is_file()]:
        return files
    raise RunError(
        f"{run} has no adapter: nothing was saved yet, or all weights were trained. Fix: train until the first checkpoint, or "
        "make a whole model by otca export"
    )


def bases(collected: contents.Contents) -> list[tuple[str, str, str]]:
    """(name, id on the hub or "", what its licence restricts) of what was trained."""
    named = wants.named(collected.graph, NODE_CLASS_MAPPINGS)
    names = [want.what for want in named if want.why == wants.MODEL and not want.linked]
    names += [model.name for model in collected.models if model.where in _BASES]
    rows = []
    for name in dict.fromkeys(names):
        _, hub, limits = next((row for row in _KNOWN if re.search(row[0], name.lower())), ("", "", ""))
        rows.append((name, name if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else hub, limits))
    return rows


def _write_adapter(file: Path, folder: Path, name: str, graph: Mapping[str, Mapping]) -> str:
    """The same tensors under the run's name; the header has the graph without paths, and no canvas, which may hold some."""
    target = f"{name}{file.stem.removeprefix(Path(ADAPTERS[0]).stem)}{file.suffix}"
    published = ("otca_iteration", "otca_base", "modelspec.", "ss_")
    kept = {key: value for key, value in read_metadata(file).items() if key.startswith(published)}
    metadata = {"format": "pt", **header(workflow_metadata(graph, None)), **kept, "modelspec.title": Path(target).stem}
    write_tensors(folder / target, read_tensors(file), metadata)
    return target


def _write_pairs(run: Path, evaluations: Sequence[Mapping], folder: Path) -> list[tuple[str, str]]:
    """(file, prompt) of pictures with before on the left and after on the right."""
    from PIL import Image

    pairs = []
    for number_, (prompt, before, after) in enumerate(proof.pairs(run / SAMPLES, evaluations, _PAIRS), 1):
        width, height = before.size
        both = Image.new("RGB", (2 * width + 8, height), "white")
        both.paste(before, (0, 0))
        both.paste(after, (width + 8, 0))
        (folder / _PICTURES).mkdir(exist_ok=True)
        name = f"{_PICTURES}/{number_}.jpg"
        both.save(folder / name, "JPEG", quality=92, subsampling=0)
        pairs.append((name, prompt))
    return pairs


# --- README.md --------------------------------------------------------------------------------------------------------


def _readme(
    collected: contents.Contents,
    bases: Sequence[tuple[str, str, str]],
    adapter: Path,
    weights: Sequence[str],
    history: Sequence[Mapping],
    evaluations: Sequence[Mapping],
    pairs: Sequence[tuple[str, str]],
) -> str:
    graph, name = collected.graph, collected.run_name
    of_diffusers = read_metadata(adapter).get("modelspec.implementation") != "comfyui"
    changes = prove.changes(evaluations)
    parts = [
        _head(graph, bases, of_diffusers, pairs),
        [f"# {cell_of(name)}"],
        [
            f"A LoRA of {', '.join(cell_of(base) for base, *_ in bases) or 'a flow-matching model'}, trained by reinforcement "
            "learning."
        ],
        [*map(cell_of, prove.verdict(changes, len(history)))],
        [f"**Licence of the base.** {cell_of(base)}: {limits}." for base, _, limits in bases if limits],
        ["| before, after: the same noise | prompt |", "|---|---|"] * bool(pairs)
        + [f"| ![before and after: {cell_of(prompt)}]({file}) | {cell_of(prompt)} |" for file, prompt in pairs],
        ["## Use", "", *_use(weights, of_diffusers)],
        ["## Recipe", "", *table(["what", "value"], _recipe(graph, adapter, history))],
        ["## Figures", "", *_figures(changes, evaluations)],
        [
            f"`{WORKFLOW}` is the graph that trained it, for *File → Open* in ComfyUI with "
            "[ComfyUI-OTCA](https://github.com/comfyui-otca/ComfyUI-OTCA), or for `otca train`; it is in the LoRA's header too."
        ],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _head(
    graph: Mapping[str, Mapping],
    bases: Sequence[tuple[str, str, str]],
    of_diffusers: bool,
    pairs: Sequence[tuple[str, str]],
) -> list[str]:
    """YAML, whose texts are written as JSON has them."""
    frames = [api.constants(entry).get("frames") for entry in graph.values() if is_ours(entry)]
    is_video = any(isinstance(count, int) and count > 1 for count in frames)
    kind = "text-to-video" if is_video else "text-to-image"
    hubs = list(dict.fromkeys(hub for _, hub, _ in bases if hub))
    lines = ["---", "# license: choose one that the base model's licence allows, and remove the #"]
    lines += ["base_model:", *(f"- {hub}" for hub in hubs)] if hubs else ["# base_model: its id on the Hub"]
    lines += [
        *(["base_model_relation: adapter"] if hubs else []),
        f"library_name: {'diffusers' if of_diffusers else 'comfyui'}",
        f"pipeline_tag: {kind}",
        "tags:",
        *(f"- {tag}" for tag in ("lora", kind, "flow-matching", "reinforcement-learning", "comfyui", "otca")),
    ]
    for file, prompt in pairs:
        lines += ["widget:"] * (file == pairs[0][0])
        lines += [f"- text: {json.dumps(prompt, ensure_ascii=False)}", "  output:", f"    url: {file}"]
    return [*lines, "---"]


def _use(weights: Sequence[str], of_diffusers: bool) -> list[str]:
    by_comfyui = (
        f"ComfyUI: put {' and '.join(f'`{file}`' for file in weights)} into `models/loras`, and use *Load LoRA*."
    )
    by_diffusers = (
        f'diffusers: `pipeline.load_lora_weights("FOLDER", weight_name="{weights[0]}")`.'
        if of_diffusers
        else "Its keys are ComfyUI's, `diffusion_model.…`. diffusers reads these for many families, not for all."
    )
    return [by_comfyui, "", by_diffusers]


def _recipe(graph: Mapping[str, Mapping], adapter: Path, history: Sequence[Mapping]) -> list[list[str]]:
    rows = []
    for entry in graph.values():
        values = api.constants(entry)
        if entry["class_type"].startswith("OTCA_Reward") and "coefficient" in values:
            shown = "held out" if values.get("held_out") else f"coefficient {values['coefficient']:g}"
            about = ", ".join(filter(None, (str(values.get("name") or ""), str(values.get("model") or ""), shown)))
            rows.append([api.title(entry), about])
    for kinds in ((SAMPLER_NODE,), STEP_NODES):
        for entry in graph.values():
            if entry["class_type"] in kinds:
                values = ", ".join(f"{key} {value}" for key, value in api.constants(entry).items() if key != "seed")
                rows.append([api.title(entry), values])
    rows.append(["LoRA rank", read_metadata(adapter).get("ss_network_dim", "unknown")])
    done = read_metadata(adapter).get("otca_iteration") or str(history[-1]["iteration"] if history else 0)
    rows.append(["iterations", done])
    costs = [cost for row in history if (cost := budget.cost(row, budget.FORWARDS)) is not None]
    rows.append(["forwards (a backward pass counts as two)", f"{sum(costs):,.0f}" if costs else "not measured"])
    return [[cell_of(cell) for cell in row] for row in rows]


def _figures(changes: Sequence[prove.Change], evaluations: Sequence[Mapping]) -> list[str]:
    if not changes:
        return ["Not measured: there are not two evaluations that can be compared."]
    rows = [
        [
            f"{cell_of(change.name)}{' (held out)' if change.held_out else ''}",
            number(change.before, ".3g", "–"),
            number(change.after, ".3g", "–"),
            plus_minus(change.change, "+.3g"),
        ]
        for change in changes
    ]
    note = f"{changes[0].change.count} pictures, on the same noises before and after {evaluations[-1]['iteration']} iterations"
    return [*table(["reward", "before", "after", "change"], rows), "", f"{note}; ± is 95 %, clustered by prompt."]


def cell_of(text: str) -> str:
    """A text in Markdown, where it is no more than text."""
    return re.sub(r"([\\|`*_\[\]<>!])", r"\\\1", " ".join(text.split()))
