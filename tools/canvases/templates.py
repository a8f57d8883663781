"""The templates by the names that people see, in the order of the list."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ...tests.comfyui.server import WORKFLOWS
from .files import LOADERS

NOTES = Path(__file__).resolve().parents[1] / "notes"


@dataclass(frozen=True)
class Template:
    """A saved canvas.

    Attributes:
        name: as in the code: its note is notes/<name>.md, its pictures are named by it.
        title: what people see: workflows/<title>.json. Plain letters only, since it is a file's name on every system.
        graph: the exported graph that it shows, workflows/api/<graph>.json. Empty: the one of its own name.
        rewards_inside: its rewards stand in a subgraph.
    """

    name: str
    title: str
    graph: str = ""
    rewards_inside: bool = False

    @property
    def api(self) -> Path:
        """The exported graph."""
        return WORKFLOWS / "api" / f"{self.graph or self.name}.json"

    @property
    def canvas(self) -> Path:
        """The saved canvas."""
        return WORKFLOWS / f"{self.title}.json"

    @property
    def picture(self) -> Path:
        """What the list of templates shows of it."""
        return self.canvas.with_suffix(".jpg")

    @property
    def notes(self) -> dict[str, str]:
        """The texts of its notes by their titles: one that is called Read me, or the numbered ones of a tour."""
        if not (NOTES / self.name).is_dir():
            return {"Read me": (NOTES / f"{self.name}.md").read_text(encoding="utf-8")}
        texts = [path.read_text(encoding="utf-8") for path in sorted((NOTES / self.name).glob("*.md"))]
        return {title.removeprefix("# "): body.strip() for title, _, body in (text.partition("\n") for text in texts)}

    @property
    def needs_files(self) -> bool:
        """Whether its models or rewards do not come with the pack."""
        nodes = json.loads(self.api.read_text(encoding="utf-8")).values()
        values = [value for node in nodes for value in node["inputs"].values() if isinstance(value, str)]
        return any(node["class_type"] in LOADERS for node in nodes) or any("/" in v or ".pt" in v for v in values)


TEMPLATES = {
    template.name: template
    for template in (
        Template("quickstart", "01 Quickstart - CPU, four minutes", rewards_inside=True),
        Template("tour", "02 Tour - one iteration in eight notes", graph="quickstart", rewards_inside=True),
        Template("quickstart_comfyui", "03 Train what ComfyUI loaded - CPU, tiny model"),
        Template("z_image", "11 Z-Image Turbo"),
        Template("qwen_image", "12 Qwen-Image"),
        Template("krea2", "13 Krea 2"),
        Template("flux2_klein", "14 FLUX.2 klein"),
        Template("flux1", "15 FLUX.1 dev"),
        Template("wan22_5b", "16 Video - Wan 2.2 5B"),
        Template("wan22_14b", "17 Video - Wan 2.2 14B"),
        Template("preference_pairs", "21 Preference pairs - DPO from a folder of pictures"),
        Template("six_rewards", "22 Six rewards at once - CPU"),
        Template("otca", "31 Method - OTCA, the graph of the paper"),
        Template("matching", "32 Method - Matching Step"),
        Template("mix_grpo", "33 Method - MixGRPO"),
        Template("stepwise_flow_grpo", "34 Method - Stepwise-Flow-GRPO"),
        Template("vipo", "35 Method - VIPO"),
        Template("otca_flux", "41 Model folder - FLUX.1"),
        Template("otca_sd3", "42 Model folder - SD3.5"),
        Template("otca_wan22_video", "43 Model folder - Wan 2.2 video"),
    )
}
