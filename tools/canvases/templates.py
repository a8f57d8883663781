"""The templates by the names that people see, in the order of the list, and the addresses of the files that they load."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ...tests.comfyui.server import WORKFLOWS

# --- files ------------------------------------------------------------------------------------------------------------

# Where the files come from that the templates' loaders and rewards name: for ComfyUI's dialog of missing models. Names, addresses
# and folders of models are those of ComfyUI's own templates (package comfyui-workflow-templates 0.11.44), here by ours:
# image_z_image_turbo, image_qwen_image, image_krea2_turbo_t2i, image_flux2_klein_text_to_image, flux_dev_full_text_to_image,
# video_wan2_2_5B_ti2v, video_wan2_2_14B_t2v. One is not: their Krea 2 is Turbo, and Raw is the file beside it in its repository.

HUB = "https://huggingface.co/"
Z_IMAGE = HUB + "Comfy-Org/z_image_turbo/resolve/main/split_files/"
QWEN_IMAGE = HUB + "Comfy-Org/Qwen-Image_ComfyUI/resolve/main/split_files/"
KREA_2 = HUB + "Comfy-Org/Krea-2/resolve/main/"
KLEIN = HUB + "Comfy-Org/flux2-klein/resolve/main/split_files/"
FLUX_2 = HUB + "Comfy-Org/flux2-dev/resolve/main/split_files/"
FLUX_1 = HUB + "Comfy-Org/flux1-dev/resolve/main/"
FLUX_ENCODERS = HUB + "comfyanonymous/flux_text_encoders/resolve/main/"
LUMINA = HUB + "Comfy-Org/Lumina_Image_2.0_Repackaged/resolve/main/split_files/"
WAN_21 = HUB + "Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/"
HPS_V2 = HUB + "xswu/HPSv2/resolve/main/"
WAN_22 = HUB + "Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/"

MODELS, ENCODERS, VAE, REWARDS = "diffusion_models", "text_encoders", "vae", "otca_rewards"
# The one reward that is switched on in all of them: one file, with a gradient, that knows what people prefer.
HPS = (REWARDS, HPS_V2 + "HPS_v2.1_compressed.pt")

# By template: (folder of ComfyUI's models, address).
FILES = {
    "z_image": (
        (MODELS, Z_IMAGE + "diffusion_models/z_image_turbo_bf16.safetensors"),
        (ENCODERS, Z_IMAGE + "text_encoders/qwen_3_4b.safetensors"),
        (VAE, Z_IMAGE + "vae/ae.safetensors"),
    ),
    "qwen_image": (
        (MODELS, QWEN_IMAGE + "diffusion_models/qwen_image_fp8_e4m3fn.safetensors"),
        (ENCODERS, QWEN_IMAGE + "text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors"),
        (VAE, QWEN_IMAGE + "vae/qwen_image_vae.safetensors"),
    ),
    "krea2": (
        (MODELS, KREA_2 + "diffusion_models/krea2_raw_fp8_scaled.safetensors"),
        (ENCODERS, KREA_2 + "text_encoders/qwen3vl_4b_fp8_scaled.safetensors"),
        (VAE, KREA_2 + "vae/qwen_image_vae.safetensors"),
    ),
    "flux2_klein": (
        (MODELS, KLEIN + "diffusion_models/flux-2-klein-4b.safetensors"),
        (ENCODERS, KLEIN + "text_encoders/qwen_3_4b.safetensors"),
        (VAE, FLUX_2 + "vae/flux2-vae.safetensors"),
    ),
    "flux1": (
        (MODELS, FLUX_1 + "flux1-dev.safetensors"),
        (ENCODERS, FLUX_ENCODERS + "clip_l.safetensors"),
        (ENCODERS, FLUX_ENCODERS + "t5xxl_fp16.safetensors"),
        (VAE, LUMINA + "vae/ae.safetensors"),
    ),
    "wan22_5b": (
        (MODELS, WAN_22 + "diffusion_models/wan2.2_ti2v_5B_fp16.safetensors"),
        (ENCODERS, WAN_21 + "text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors"),
        (VAE, WAN_22 + "vae/wan2.2_vae.safetensors"),
    ),
    "wan22_14b": (
        (MODELS, WAN_22 + "diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors"),
        (MODELS, WAN_22 + "diffusion_models/wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors"),
        (ENCODERS, WAN_21 + "text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors"),
        (VAE, WAN_22 + "vae/wan_2.1_vae.safetensors"),
    ),
}
# The inputs by which nodes name files.
LOADERS = {
    "UNETLoader": ("unet_name",),
    "CLIPLoader": ("clip_name",),
    "DualCLIPLoader": ("clip_name1", "clip_name2"),
    "VAELoader": ("vae_name",),
    "OTCA_RewardHPSv2": ("path",),
}


def models_of(template: str, node: dict) -> list[dict[str, str]]:
    """`properties.models` of a node of the API graph: name, url and directory of each file that it loads."""
    places = {url.rsplit("/", 1)[1]: (url, folder) for folder, url in (HPS, *FILES.get(template, ()))}
    names = [node["inputs"][name] for name in LOADERS.get(node["class_type"], ())]
    return [{"name": name, "url": places[name][0], "directory": places[name][1]} for name in names]


# --- templates --------------------------------------------------------------------------------------------------------

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
        """The picture in the list of templates."""
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
        inputs = [item for node in nodes for item in node["inputs"].items() if item[0] != "evaluation_prompts"]
        values = [value for _, value in inputs if isinstance(value, str)]
        return any(node["class_type"] in LOADERS for node in nodes) or any("/" in v or ".pt" in v for v in values)


TEMPLATES = {
    template.name: template
    for template in (
        Template("quickstart", "01 Quickstart - CPU, no download", rewards_inside=True),
        Template("tour", "02 Tour - one iteration in eight notes", graph="quickstart", rewards_inside=True),
        Template("quickstart_comfyui", "03 Train what ComfyUI loaded - CPU, tiny model"),
        Template("rank_pictures", "04 Rank my pictures"),
        Template("my_taste", "05 Train on my taste - CPU, tiny model"),
        Template("my_pictures", "06 Learn from my pictures - CPU, tiny model"),
        Template("edit", "07 Train an edit model - CPU, tiny model"),
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
        Template("matching", "32 Method - Matching"),
        Template("reward_gradient", "36 Method - Reward gradient"),
        Template("otca_flux", "41 Model folder - FLUX.1"),
    )
}
