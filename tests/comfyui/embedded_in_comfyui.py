"""Run by ComfyUI's own interpreter, in its folder: the embedded model as ComfyUI's objects against the diffusers route.

The arguments are a folder to write to. The answer is JSON: how far the two are apart, each as one number of [] or of a list.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

ROOT, OUT = Path(__file__).resolve().parents[2], Path(sys.argv[1])
sys.path.insert(0, str(Path.cwd()))
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever ComfyUI prints while it is imported is no answer

# As ComfyUI imports a pack; before ComfyUI, so that the pack does not look for a server.
spec = importlib.util.spec_from_file_location("comfyui_otca", ROOT / "__init__.py")
pack = sys.modules["comfyui_otca"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pack)

import comfy.cli_args  # noqa: E402

comfy.cli_args.args.cpu = True
comfy.cli_args.args.preview_method = comfy.cli_args.LatentPreviewMethod.Latent2RGB  # it would need FLUX's 16 channels

import comfy.sample  # noqa: E402
import comfy.samplers  # noqa: E402
import comfy.sd  # noqa: E402
import comfy.utils  # noqa: E402
import torch  # noqa: E402
from comfy_extras.nodes_flux import CLIPTextEncodeFlux, FluxGuidance  # noqa: E402
from PIL import Image  # noqa: E402

import nodes  # noqa: E402
from comfyui_otca.tests.comfyui.native.proofs import by_sampler  # noqa: E402
from comfyui_otca.trainer import rollout  # noqa: E402
from comfyui_otca.trainer.flow import load_flow_model  # noqa: E402
from comfyui_otca.trainer.policy import lora  # noqa: E402
from comfyui_otca.trainer.types import SamplerSettings  # noqa: E402

PROMPTS = (
    "a red circle on a blue background",
    "a green square on a white background",
    "",
    "three (red:1.3) foxes " * 9,
)
SETTINGS = SamplerSettings(kind="ode", steps=8, width=40, height=40, shift=0.0)
SEED, SIZE = 3, (8, 10, 10)


def largest(difference) -> float:
    return float(difference.abs().max())


def apart(theirs, ours) -> float:
    assert theirs.shape == ours.shape, (theirs.shape, ours.shape)
    return largest(theirs - ours)


def encoded(text: str) -> list:
    return nodes.CLIPTextEncode().encode(clip, text)[0]


def velocity(model, x, sigma: float, text: str):
    return by_sampler(model, x, [sigma], ours.sigmas(SETTINGS), encoded(text))[0]


def our_velocity(x, sigma: float, text: str):
    return ours.velocity(x, sigma, ours.condition([text] * len(x), SETTINGS), 3.5)


def embeddings() -> dict:
    """The largest difference relative to the largest number, of tokens and pooled vectors."""
    tokens, pooled = [], []
    for text in PROMPTS:
        expected = ours.embed([text], ours.device).tensors
        ((sequence, more),) = encoded(text)
        tokens.append(apart(sequence, expected["tokens"]) / largest(expected["tokens"]))
        pooled.append(apart(more["pooled_output"], expected["pooled"]) / largest(expected["pooled"]))
    flux = CLIPTextEncodeFlux.execute(clip, PROMPTS[0], PROMPTS[1], 3.5).args[0]
    ((sequence, more),) = FluxGuidance.execute(flux, 2.0).args[0]
    first, second = encoded(PROMPTS[0])[0], encoded(PROMPTS[1])[0]
    by_flux = apart(sequence, second[0]) + apart(more["pooled_output"], first[1]["pooled_output"])
    copy = clip.clone().encode_from_tokens(clip.tokenize(PROMPTS[0]))
    return {
        "tokens": tokens,
        "pooled": pooled,
        "CLIPTextEncodeFlux": by_flux,
        "guidance": more["guidance"],
        "clone": apart(copy, first[0]),
    }


def velocities() -> list[float]:
    x = torch.randn(3, *SIZE, generator=torch.Generator().manual_seed(1))
    levels = ours.sigmas(SETTINGS)[:-1]
    return [apart(velocity(model, x, s, text), our_velocity(x, s, text)) for s in levels for text in PROMPTS[:2]]


def noise_levels() -> float:
    theirs = comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), "simple", SETTINGS.steps)
    return apart(theirs, torch.tensor(ours.sigmas(SETTINGS)))


def autoencoder() -> dict:
    latents = torch.randn(2, *SIZE, generator=torch.Generator().manual_seed(2))
    stored = {"samples": model.model.process_latent_out(latents)}
    pixels = torch.rand(2, 40, 40, 3, generator=torch.Generator().manual_seed(4))
    network = ours.pipeline.vae
    moments = network.encode(pixels.movedim(-1, 1) * 2 - 1).latent_dist.mean
    scaled = (moments - network.config.shift_factor) * network.config.scaling_factor
    found = nodes.VAEEncode().encode(vae, pixels)[0]["samples"]
    return {
        "decode": apart(nodes.VAEDecode().decode(vae, stored)[0], ours.decode(latents)),
        "decode_tiled": apart(vae.decode_tiled(stored["samples"]), ours.decode(latents)),
        "encode": apart(found, moments),
        "process_latent_in": apart(model.model.process_latent_in(found), scaled),
        "encode_tiled": apart(vae.encode_tiled(pixels), moments),
    }


def pictures() -> dict:
    """Stock sampling and decoding against our own, from the same noise."""
    positive, negative = encoded(PROMPTS[0]), encoded("")
    empty = nodes.VAEEncode().encode(vae, nodes.EmptyImage().generate(40, 40)[0])[0]
    noise = rollout.evaluated_noise(SIZE, SEED, PROMPTS[0])[None]
    latents = comfy.sample.sample(
        model, noise, SETTINGS.steps, 1.0, "euler", "simple", positive, negative, empty["samples"], seed=SEED
    )
    generated = rollout.generate(ours, [PROMPTS[0]], SETTINGS, [SEED])

    (sampled,) = nodes.KSampler().sample(model, SEED, 8, 1.0, "euler", "simple", positive, negative, empty)
    (image,) = nodes.VAEDecode().decode(vae, sampled)
    x, levels = comfy.sample.prepare_noise(empty["samples"], SEED), ours.sigmas(SETTINGS)
    for sigma, following in zip(levels, levels[1:], strict=False):
        x = x + (following - sigma) * our_velocity(x, sigma, PROMPTS[0])
    save(OUT / "ksampler.png", image)
    return {"generate": apart(vae.decode(latents), generated), "KSampler": apart(image, ours.decode(x))}


def save(file: Path, images) -> None:
    Image.fromarray((images[0].clamp(0, 1) * 255).round().byte().numpy()).save(file)


def empty_latents() -> list[int]:
    """Height and width of the picture that an Empty Latent Image of 40 x 40 becomes."""
    (latent,) = nodes.EmptyLatentImage().generate(40, 40)
    (sampled,) = nodes.KSampler().sample(model, 0, 2, 1.0, "euler", "simple", encoded(""), encoded(""), latent)
    return list(nodes.VAEDecode().decode(vae, sampled)[0].shape[1:3])


def adapter() -> dict:
    """An adapter of the diffusers route in the stock loader: the same change of the velocity, and none without it."""
    x = torch.randn(2, *SIZE, generator=torch.Generator().manual_seed(5))
    before = velocity(model, x, 0.7, PROMPTS[0])
    generator = torch.Generator().manual_seed(6)
    for name, parameter in ours.policy.trainable_named().items():
        if "lora_B" in name:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    (file,) = lora.save(ours, OUT / "lora.safetensors", {})
    weights = comfy.utils.load_torch_file(str(file), safe_load=True)
    patched, same_clip = comfy.sd.load_lora_for_models(model, clip, weights, 1.0, 1.0)
    after, expected = velocity(patched, x, 0.7, PROMPTS[0]), our_velocity(x, 0.7, PROMPTS[0])
    return {
        "change": largest(after - before),
        "with": apart(after, expected),
        "without": apart(velocity(model, x, 0.7, PROMPTS[0]), before),
        "patches": sum(map(len, patched.patches.values())),
        "modules": len({key.rsplit(".lora_", 1)[0] for key in weights}),
        "patches of clip": len(same_clip.patcher.patches),
    }


ours = load_flow_model(ROOT / "assets" / "shapes-flux", device="cpu", lora_rank=4)
with torch.inference_mode():  # as ComfyUI runs nodes
    model, clip, vae = pack.NODE_CLASS_MAPPINGS["OTCA_EmbeddedModel"]().load("shapes-flux")
    networks = (model.model, clip.cond_stage_model, vae.first_stage_model)
    report = {
        "classes": [type(value).__name__ for value in (model, clip, vae, *networks, networks[0].diffusion_model)],
        "inference tensors": sum(p.is_inference() for network in networks for p in network.parameters()),
        "embeddings": embeddings(),
        "velocities": velocities(),
        "noise levels": noise_levels(),
        "autoencoder": autoencoder(),
        "pictures": pictures(),
        "empty latents": empty_latents(),
        "adapter": adapter(),
    }
print(json.dumps(report), file=answers)
