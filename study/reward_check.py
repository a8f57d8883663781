"""`otca rewards check`: are these the published weights of a reward, and does this version score by them as it should?

For whoever has the files. What can be known without them is compared: layout and sizes, a public hash, orders that any right
model has on five pictures drawn here, a second implementation on the same weights. The scores go into a file that can be
contributed to REFERENCES, so that everybody else's files are compared with them, too.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..host import paths
from ..host.files import sha256
from ..host.json_files import read_json
from ..trainer.networks import RewardError
from ..trainer.networks.published import Published
from ..trainer.rewards.base import score
from ..trainer.rewards.shapes import PALETTE, Scene
from .reward_references import reference
from .scoring import parse_reward

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

RIGHT, WRONG, UNKNOWN = "right", "WRONG", "not known"
TOLERANCE = 1e-3  # of a score, between two implementations or two machines
REFERENCES = paths.ASSETS / "reward_references"
SIDE, BLUR = 512, 64  # pixels of a picture, and of its blur: nothing is left to be recognised
SCENES = (
    Scene("red", "circle", "white"),
    Scene("blue", "square", "yellow"),
    Scene("green", "triangle", "black"),
    Scene("purple", "circle", "green"),
    Scene("white", "square", "red"),
)
# The option that names the file or folder, and what else is known of each kind.
PATHS = {"clip_t": "model", "aesthetic": "path", "pickscore": "path", "hpsv2": "path", "image_reward": "path"}
READS_NO_PROMPT = ("aesthetic",)
ON_A_CLIP = ("aesthetic",)  # which is another file, named by an option
_VIT_H = {"vision": [1280, 32, 14, 224], "text": [1024, 24], "vocabulary": 49408, "projection": 1024}
_VIT_L = {"vision": [1024, 24, 14, 224], "text": [768, 12], "vocabulary": 49408, "projection": 768}
# Width, layers, patch and side of the picture's tower; width and layers of the text's. CLIP-T takes any CLIP.
SIZES = {
    "aesthetic": _VIT_L,
    "pickscore": _VIT_H,
    "hpsv2": _VIT_H,
    "image_reward": {"vision": [1024, 24, 16, 224], "text": [768, 12], "vocabulary": 30524},
}
HASHES = {
    "aesthetic": "21dd590f3ccdc646f0d53120778b296013b096a035a2718c9cb0d511bff0f1e0"
}  # SHA-256, as many projects pin it
_SIGNS = {  # a tensor that only files of this kind have
    "aesthetic": "layers.7.weight",
    "hpsv2": "visual.conv1.weight",
    "image_reward": "blip.visual_encoder.cls_token",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: RIGHT, WRONG or UNKNOWN, and in words."""

    what: str
    verdict: str
    text: str


@dataclass(frozen=True)
class Checked:
    """All findings on one file or folder, and what may be contributed: None where it could not be loaded."""

    path: Path
    kind: str
    findings: tuple[Finding, ...]
    record: dict | None

    @property
    def wrong(self) -> bool:
        return any(finding.verdict == WRONG for finding in self.findings)


def check(path: Path, kind: str = "", options: Mapping[str, str] | None = None, device: str = "cpu") -> Checked:
    """Everything about one file or folder.

    Args:
        kind: a key of PATHS; empty: by what is in the file.
        options: of the reward, as where its tokenizer is.

    Raises:
        FileNotFoundError, ValueError: it is not there, of no known kind, or an option is wrong.
    """
    path = Path(path).expanduser().resolve()
    kind = kind or recognised(path)
    settings = {**(options or {}), PATHS[kind]: str(path), "device": device, "dtype": "float32"}
    try:
        reward: Any = parse_reward(f"{kind}:" + ",".join(f"{name}={value}" for name, value in settings.items()))
    except RewardError as error:
        return Checked(path, kind, (Finding("layout", WRONG, str(error)),), None)
    files = [*files_of(path), *(files_of(reward.network.path) if kind in ON_A_CLIP else ())]
    scores, sizes = _scores(reward), _sizes(reward.network)
    hashes = {file.name: sha256(file) for file in files}
    record = {
        "version": 1,
        "kind": kind,
        "files": {file.name: {"bytes": file.stat().st_size, "sha256": hashes[file.name]} for file in files},
        "sizes": sizes,
        "scores": {name: [None if v != v else round(v, 6) for v in column.tolist()] for name, column in scores.items()},
        "made_with": versions(device),
    }
    findings = (
        Finding(
            "layout", RIGHT, f"loads as {kind}: {sum(p.numel() for p in _parameters(reward.network)):,} parameters"
        ),
        _size_finding(kind, sizes),
        _hash_finding(kind, hashes[path.name] if path.is_file() else ""),
        *_orders(kind, scores),
        *_second(kind, reward, path, scores),
        _reference_finding(kind, record),
    )
    return Checked(path, kind, findings, {**record, "findings": [asdict(finding) for finding in findings]})


def recognised(path: Path) -> str:
    """The kind of a file by its tensors, of a folder by its config.json.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is of none of these kinds.
    """
    if path.is_dir():
        if (path / "config.json").is_file() and read_json(path / "config.json").get("model_type") == "clip":
            return "pickscore" if "pickscore" in path.name.lower() else "clip_t"
        raise ValueError(
            f"{path} is no folder of a CLIP model. Fix: --kind, one of {', '.join(PATHS)}, or another folder"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there. Fix: the path of a file or folder with published weights")
    content = Published("a reward of these kinds", path.name, "whole", "where its authors publish it").read(path)
    names = content.get("state_dict", content)
    for kind, sign in _SIGNS.items():
        if sign in names:
            return kind
    first = ", ".join(sorted(map(str, names))[:3])
    raise ValueError(f"{path} is no known reward: its tensors begin {first}. Fix: --kind, one of {', '.join(PATHS)}")


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else [*sorted(path.glob("*.safetensors")), path / "config.json"]


# -- the pictures and their scores --------------------------------------------------------------------------------------------


def drawn(scene: Scene) -> Image:
    """A plain picture of the scene, as sharp as its pixels."""
    from PIL import Image, ImageDraw

    assert scene.color is not None and scene.background is not None  # as those of SCENES have
    picture = Image.new("RGB", (SIDE, SIDE), PALETTE[scene.background])
    pen, ink, near, far = ImageDraw.Draw(picture), PALETTE[scene.color], SIDE // 4, SIDE * 3 // 4
    if scene.shape == "circle":
        pen.ellipse((near, near, far, far), fill=ink)
    elif scene.shape == "square":
        pen.rectangle((near, near, far, far), fill=ink)
    else:
        pen.polygon([(SIDE // 2, near), (near, far), (far, far)], fill=ink)
    return picture


@functools.cache
def pictures() -> tuple[list[Image], list[Image]]:
    """The five pictures, sharp and blurred."""
    from PIL import ImageFilter

    sharp = [drawn(scene) for scene in SCENES]
    return sharp, [picture.filter(ImageFilter.GaussianBlur(BLUR)) for picture in sharp]


def _tensor(images: Sequence[Image]) -> Tensor:
    import numpy as np

    return torch.stack([torch.from_numpy(np.array(image)) / 255 for image in images])


def _scores(reward: Any) -> dict[str, Tensor]:
    """`own`: of each sharp picture and its prompt; `blurred`: of the blurred one; `other k`: by the prompt of the k-th next."""
    sharp, blurred = map(_tensor, pictures())
    prompts = [scene.caption for scene in SCENES]

    def asked(images, prompts):
        return score([reward], images, prompts)[:, 0]

    shifted = {f"other {k}": asked(sharp, prompts[k:] + prompts[:k]) for k in range(1, len(SCENES))}
    return {"own": asked(sharp, prompts), "blurred": asked(blurred, prompts), **shifted}


# -- findings -----------------------------------------------------------------------------------------------------------------


def _parameters(network: Any) -> Iterator[torch.nn.Parameter]:
    for part in network._networks():
        yield from part.parameters()


def _sizes(network: Any) -> dict[str, Any]:
    if hasattr(network, "vision"):  # BLIP's two towers
        vision, text, more = network.vision.config, network.text.config, {}
    else:
        config = network.model.config
        vision, text, more = config.vision_config, config.text_config, {"projection": config.projection_dim}
    return {
        "vision": [vision.hidden_size, vision.num_hidden_layers, vision.patch_size, vision.image_size],
        "text": [text.hidden_size, text.num_hidden_layers],
        "vocabulary": text.vocab_size,
        **more,
    }


def _size_finding(kind: str, sizes: Mapping[str, Any]) -> Finding:
    wanted = SIZES.get(kind)
    if wanted is None:
        return Finding("sizes", RIGHT, f"{kind} takes any CLIP; this one: {_listed(sizes)}")
    wrong = {name: value for name, value in wanted.items() if sizes[name] != value}
    if wrong:
        here = {name: sizes[name] for name in wrong}
        return Finding("sizes", WRONG, f"{_listed(here)}, where the published model has {_listed(wrong)}")
    return Finding("sizes", RIGHT, f"those of the published model: {_listed(sizes)}")


def _listed(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {'×'.join(map(str, v)) if isinstance(v, list) else v}" for name, v in sizes.items())


def _hash_finding(kind: str, found: str) -> Finding:
    wanted = HASHES.get(kind)
    if wanted is None:
        return Finding("hash", UNKNOWN, f"no public hash of {kind} is known to this version")
    if found == wanted:
        return Finding("hash", RIGHT, f"SHA-256 {found[:12]}…, as it was published")
    return Finding("hash", WRONG, f"SHA-256 {found[:12]}…, where the published file has {wanted[:12]}…")


def _orders(kind: str, scores: Mapping[str, Tensor]) -> Iterator[Finding]:
    own, count = scores["own"], len(SCENES)
    if kind not in READS_NO_PROMPT:
        others = torch.stack([column for name, column in scores.items() if name.startswith("other")])
        right, above = int((own > others.mean(0)).sum()), int((own > others).sum())
        text = (
            f"{right} of {count} pictures score higher by their own prompt than by the mean of the wrong ones "
            f"({above} of {others.numel()} single comparisons)"
        )
        yield Finding("right prompt above wrong", RIGHT if right == count else WRONG, text)
    gain = (own - scores["blurred"]).mean().item()
    text = f"the sharp pictures score {gain:+.4g} against the blurred ones, in the mean"
    yield Finding("sharp above blurred", RIGHT if gain > 0 else WRONG, text)


def _second(kind: str, reward: Any, path: Path, scores: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Our scores against those of other implementations, of every sharp picture by its own prompt and by a wrong one."""
    sharp, _ = pictures()
    prompts = [scene.caption for scene in SCENES]
    asked = (sharp * 2, prompts + prompts[1:] + prompts[:1])
    ours = torch.cat([scores["own"], scores["other 1"]])
    name, implementation = reference(kind, reward.network, path if kind == "aesthetic" else None)
    with torch.no_grad():
        yield _agreement(name, ours, implementation(*asked))
    if kind != "hpsv2":
        return
    if importlib.util.find_spec("hpsv2") is None:
        yield Finding("authors' package", UNKNOWN, "hpsv2 is not installed here")
        return
    try:
        package = parse_reward(f"hpsv2:path={path},provider=hpsv2,device=cpu")
        theirs = score([package], _tensor(asked[0]), asked[1])[:, 0]
    except RewardError as error:
        yield Finding("authors' package", UNKNOWN, str(error))
        return
    yield _agreement("package hpsv2", ours, theirs)


def _agreement(name: str, ours: Tensor, theirs: Tensor) -> Finding:
    apart = (ours - theirs).abs().max().item()
    text = f"{name}: the largest difference of {len(ours)} scores is {apart:.1e}, allowed are {TOLERANCE:g}"
    return Finding("second implementation", RIGHT if apart <= TOLERANCE else WRONG, text)


def _reference_finding(kind: str, record: Mapping) -> Finding:
    """Against the scores that somebody contributed."""
    known = {file.name: read_json(file) for file in sorted(REFERENCES.glob(f"{kind}-*.json"))}
    if not known:
        return Finding("reference", UNKNOWN, f"nobody has contributed one of {kind} yet: you could be the first")
    name = next((name for name, each in known.items() if _hashes(each) == _hashes(record)), None)
    if name is None:
        return Finding("reference", UNKNOWN, f"those that are there are of other files: {', '.join(known)}")
    ours, theirs = (
        [torch.tensor(column, dtype=torch.float64) for _, column in _columns(each)] for each in (record, known[name])
    )
    apart = (torch.cat(ours) - torch.cat(theirs)).abs().max().item()
    text = f"the largest difference from {name} is {apart:.1e}, allowed are {TOLERANCE:g}"
    return Finding("reference", RIGHT if apart <= TOLERANCE else WRONG, text)


def _hashes(record: Mapping) -> list[str]:
    """Of its files, whatever their names."""
    return sorted(file["sha256"] for file in record["files"].values())


def _columns(record: Mapping) -> list[tuple[str, list[float]]]:
    """Its scores by name, NaN where there is none."""
    return sorted((name, [math.nan if v is None else v for v in column]) for name, column in record["scores"].items())


# -- what is written ----------------------------------------------------------------------------------------------------------


def versions(device: str) -> dict[str, str]:
    names = ("torch", "transformers", "pillow")
    found = {name: importlib.metadata.version(name) for name in names}
    return {**found, "python": platform.python_version(), "machine": platform.machine(), "device": device}


def table(checked: Checked) -> str:
    """Markdown: a row a finding."""
    rows = [f"| {finding.what} | {finding.verdict} | {finding.text} |" for finding in checked.findings]
    return "\n".join([f"{checked.path.name}: {checked.kind}", "", "| what | verdict | found |", "|---|---|---|", *rows])


def write_reference(checked: Checked, folder: Path) -> Path:
    assert checked.record is not None
    first = next(iter(checked.record["files"].values()))["sha256"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{checked.kind}-{first[:8]}.json"
    path.write_text(json.dumps(checked.record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
