"""Edit models whose prompts name pictures: what has to hold against ComfyUI's own nodes. Each function is a question."""

from __future__ import annotations

import atexit
import functools
import inspect
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from comfyui_otca.host.access import permissions
from comfyui_otca.tests.comfyui.native.made import Loss, Made, apart, entries, make
from comfyui_otca.tests.comfyui.native.proofs import by_sampler
from comfyui_otca.tests.comfyui.tiny.parts import TinyTokenizer
from comfyui_otca.trainer.families.options import FlowModelError
from comfyui_otca.trainer.types import Prompt, SamplerSettings

LARGE, SIDE = 1024, 64  # where the sizes of references are those of ComfyUI's own nodes, and where a call is quick
NEGATIVE = "blurry"
TEXTS = ("make the circle blue", "take the green square out of this picture")
SHAPES = {"wide": (48, 100), "tall": (96, 52)}
# What references are scaled to at SIDE x SIDE, (width, height), reckoned by hand: 64 / √(100·48) = 0.9238
# and 64 / √(52·96) = 0.9058 times as large.
# Kontext's 1456 x 720 and 752 x 1392, a sixteenth of them, in multiples of 16.
SMALL = {
    "Flux": ((96, 48), (48, 80)),
    "Flux2": ((92, 44), (47, 87)),
    "Omnigen2": ((92, 44), (47, 87)),
    "LongCatImage": ((92, 44), (47, 87)),
    "QwenImage": ((96, 48), (48, 88)),
    "Krea2": ((96, 48), (48, 88)),
}


@functools.cache
def files() -> tuple[str, ...]:
    """Pictures of different shapes, in a folder that may be read."""
    folder = Path(tempfile.mkdtemp(prefix="sources-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    permissions.user_named(folder)
    random, named = np.random.default_rng(0), []
    for name, shape in SHAPES.items():
        coarse = Image.fromarray(random.integers(0, 256, (6, 6, 3), np.uint8)).resize(
            shape[::-1], Image.Resampling.BICUBIC
        )
        named.append(str(folder / f"{name}.png"))
        coarse.save(named[-1])
    return tuple(named)


def prompts() -> list[Prompt]:
    """Two prompts of different length, about pictures of different size."""
    return [Prompt(text, {"image": name}) for text, name in zip(TEXTS, files(), strict=True)]


def settings(made: Made, guidance: float = 1.0, side: int = SIDE) -> SamplerSettings:
    return made.settings(width=side, height=side, guidance=guidance, negative_prompt=NEGATIVE)


def loaded(name: str) -> Tensor:
    """As LoadImage."""
    return torch.from_numpy(np.array(Image.open(name).convert("RGB")).astype(np.float32) / 255)[None]


def ran(node: type, *args, **options):
    """The first output of one of ComfyUI's nodes."""
    return node.execute(*args, **options)[0]


def scaled(picture: Tensor, method: str) -> Tensor:
    """ImageScaleToTotalPixels."""
    from comfy_extras.nodes_post_processing import ImageScaleToTotalPixels as node

    more = {"resolution_steps": 1} if "resolution_steps" in inspect.signature(node.execute).parameters else {}
    return ran(node, picture, method, 1.0, **more)


METHODS = {"Flux": "lanczos", "Flux2": "lanczos"}


def stock(made: Made, text: str, names: list[str], guidance: float, side: int = SIDE) -> list:
    """The CONDITIONING of ComfyUI's own nodes, as the family's workflow connects them.

    At SIDE, for which they have no sizes, the pictures are scaled to SMALL before ComfyUI's own VAEEncode and ReferenceLatent.
    """
    import comfy.utils
    import comfy_extras.nodes_edit_model as edit
    import comfy_extras.nodes_flux as flux
    import comfy_extras.nodes_qwen as qwen

    import nodes

    family, clip, vae, images = made.tiny.name, made.tiny.clip, made.tiny.vae, [loaded(name) for name in names]
    method = METHODS.get(family, "area")
    small = [
        comfy.utils.common_upscale(
            image.movedim(-1, 1),
            *SMALL[family][files().index(name)],
            method,
            "center" if family == "Flux" else "disabled",
        ).movedim(1, -1)
        for name, image in zip(names, images, strict=True)
    ]
    whole = vae if side == LARGE else None
    if family in ("QwenImage", "Krea2"):
        named = {f"image{number}": image for number, image in enumerate(images, 1)}
        conditioning = ran(qwen.TextEncodeQwenImageEditPlus, clip, text, whole, **named)
    elif family == "LongCatImage" and side == LARGE:
        conditioning = ran(qwen.TextEncodeQwenImageEdit, clip, text, vae, *images)
    elif family == "LongCatImage":
        conditioning = clip.encode_from_tokens_scheduled(clip.tokenize(text, images=small))
    else:
        [conditioning] = nodes.CLIPTextEncode().encode(clip, text)
    references = small
    if side == LARGE:
        references = [
            ran(flux.FluxKontextImageScale, image) if family == "Flux" else scaled(image, method)
            for image in images
            if family in ("Flux", "Flux2", "Omnigen2")
        ]
    for image in references:
        [latent] = nodes.VAEEncode().encode(vae, image)
        conditioning = ran(edit.ReferenceLatent, conditioning, latent)
    if family == "Krea2":
        conditioning = ran(flux.FluxKontextMultiReferenceLatentMethod, conditioning, "index_timestep_zero")
    if made.model.guidance_is_embedded:
        conditioning = ran(flux.FluxGuidance, conditioning, guidance)
    return conditioning


def as_stock(family: str) -> dict:
    """What our model makes of prompts with pictures at LARGE x LARGE, against ComfyUI's own nodes: the largest difference of the
    embeddings and of the references, whether their sizes and all other entries are the same, and their sizes in latents."""
    made = make(family)
    differences, same, sizes = [], True, []
    for text, names in [*zip(TEXTS, [[name] for name in files()], strict=True), (TEXTS[0], list(files()))]:
        if len(names) > 1 and family == "LongCatImage":
            continue
        [asked] = made.model._asked([Prompt(text, {"images": names})], settings(made, 1.0, LARGE))
        [[ours, own]] = made.model._with_pictures(asked)
        [[theirs, other]] = stock(made, text, names, 1.0, LARGE)
        other.pop("guidance", None)
        differences.append((ours - theirs).abs().max().item())
        same &= own.keys() == other.keys() and own.get("reference_latents_method") == other.get(
            "reference_latents_method"
        )
        for one, another in zip(own["reference_latents"], other["reference_latents"], strict=True):
            same &= one.shape == another.shape
            sizes.append(list(one.shape[-2:]))
            differences.append((one - another).abs().max().item())
    return {"apart": max(differences), "same": same, "sizes": sizes}


def theirs(made: Made, patcher, x: Tensor, sigma: float, text: str, names: list[str], guidance: float) -> Tensor:
    """The velocity by ComfyUI's sampler, of conditionings that its own nodes made."""
    both = [stock(made, each, names, guidance) for each in (text, NEGATIVE)]
    schedule, scale = made.model.sigmas(settings(made, guidance)), 1.0 if made.model.guidance_is_embedded else guidance
    return by_sampler(patcher, made.model.with_frames(x), [sigma], schedule, *both, scale)[0].reshape(x.shape)


def edited(family: str, forms: list[str]) -> dict:
    """Our velocity of two prompts with pictures of different size, in one call, against ComfyUI's own of each; and how far it
    moves if the picture is another one, or left out.

    Forms: "plain"; "guidance" (embedded, or classifier-free with a negative prompt); "two" (each prompt names both pictures).
    """
    made = make(family)
    found: dict = {}
    shape = made.model.latent_shape(SIDE, SIDE)
    x = torch.randn((2, *shape), generator=torch.Generator().manual_seed(5))
    for form in forms:
        guidance = 2.5 if form == "guidance" else 1.0
        names = [list(files())] * 2 if form == "two" else [[name] for name in files()]
        asked = settings(made, guidance)
        texts = [Prompt(text, {"images": each}) for text, each in zip(TEXTS, names, strict=True)]
        with torch.no_grad():
            ours = made.model.velocity(x, 0.6, made.model.condition(texts, asked), guidance)
        own = [
            theirs(made, made.tiny.model, x[row : row + 1], 0.6, TEXTS[row], names[row], guidance) for row in range(2)
        ]
        found[form] = apart(ours, torch.cat(own))
    asked = settings(made, 1.0)
    with torch.no_grad():
        of = [
            made.model.velocity(x[:1], 0.6, made.model.condition([text], asked), 1.0)
            for text in (prompts()[0], Prompt(TEXTS[0], {"image": files()[1]}), TEXTS[0])
        ]
    return found | {"another": apart(of[1], of[0]), "left_out": apart(of[2], of[0])}


class Edited(Loss):
    """As Loss, of prompts with pictures, in a small size."""

    def __init__(self, made: Made):
        super().__init__(made)
        texts = prompts() * 2 if len(self.x) > 1 else prompts()[:1]
        self.condition = self.model.condition(texts[: len(self.x)], made.settings())


def edit_gradients(family: str, forms: list[str]) -> dict:
    """Numbers of the adapter against central differences, at prompts with pictures of different size; forms as checkpointing."""
    found = {}
    for form in forms:
        made = make(family, checkpointing=form)
        made.move()
        loss = Edited(made)
        gradients = loss.gradients()
        errors = []
        for name, entry in entries(gradients):
            slope, derivative = loss.slope(name, entry), gradients[name].flatten()[entry].item()
            errors.append(abs(derivative - slope) / max(abs(derivative), abs(slope)))
        found[form] = max(errors)
    return found


def edit_lora(family: str) -> dict:
    """The file of an adapter that saw pictures, in ComfyUI's loader and at ComfyUI's own conditioning, against our model."""
    import comfy.sd
    import comfy.utils

    from comfyui_otca.trainer.policy import lora

    made = make(family)
    made.move(Edited(made).gradients())
    asked, x = (
        settings(made, 1.0),
        torch.randn((1, *made.model.latent_shape(SIDE, SIDE)), generator=torch.Generator().manual_seed(2)),
    )
    with torch.no_grad():
        own = made.model.velocity(x, 0.6, made.model.condition(prompts()[:1], asked), 1.0)
    with tempfile.TemporaryDirectory() as folder:
        [file] = lora.save(made.model, Path(folder) / "a.safetensors", {})
        state = comfy.utils.load_torch_file(str(file), safe_load=True)
        patched, _ = comfy.sd.load_lora_for_models(made.tiny.model, None, state, 1.0, 0.0)
    stocks = [theirs(made, each, x, 0.6, TEXTS[0], [files()[0]], 1.0) for each in (patched, made.tiny.model)]
    return {
        "file": apart(stocks[0], own),
        "moved": apart(stocks[1], own),
        "keys": len(state),
        "patches": sum(map(len, patched.patches.values())),
    }


def pictures_refused(_: str = "") -> dict:
    """What is said of models that take no pictures, of an encoder that looks at none, and of too many pictures."""
    found = {}
    for family, names in {"SD3": 1, "Chroma": 1, "QwenImage": 1, "Krea2": 4}.items():
        made = make(family)
        if family == "QwenImage":
            made.model.clip.tokenizer = TinyTokenizer()
        try:
            made.model.condition([Prompt("a", {"images": [files()[0]] * names})], settings(made))
        except FlowModelError as error:
            found[family] = str(error)
    return found
