"""What has to hold for every family: each function is a question, and returns figures."""

from __future__ import annotations

import dataclasses
import logging
import re
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from comfyui_otca.tests.comfyui import tiny
from comfyui_otca.tests.comfyui.native.made import TEXTS, Loss, Made, apart, attribute, entries, make, trainable
from comfyui_otca.tests.comfyui.native.remedies import shared_buffer
from comfyui_otca.trainer import gradient, rollout
from comfyui_otca.trainer.credit.exact import exact_gradient
from comfyui_otca.trainer.gradient import RewardSpread
from comfyui_otca.trainer.native import frozen
from comfyui_otca.trainer.native.checkpointing import blocks_again
from comfyui_otca.trainer.native.loading import tuned
from comfyui_otca.trainer.policy import lora
from comfyui_otca.trainer.rewards.base import Reward, score_stack
from comfyui_otca.trainer.run import checkpoint
from comfyui_otca.trainer.types import GradientSettings, Prompts

NEGATIVE = "blurry"
STEPS = 4


def families(_: str = "") -> dict:
    import comfy.supported_models

    return {
        "families": {name: tiny.FAMILIES[name].of or name for name in tiny.families()},
        "not": {name: reason for name, reason in tiny.NOT.items() if hasattr(comfy.supported_models, name)},
        "classes": [cls.__name__ for cls in comfy.supported_models.models],
    }


def ratio(family: str, iterations: int, **options) -> dict:
    """Log-probs of the rollout against those of the same transitions taken again with a gradient, of an adapter that matters."""
    made = make(family, **options)
    made.move()
    differences, drift = [], []
    for iteration in range(iterations):
        taken = made.sample(seed=iteration)
        rows = torch.arange(len(taken.groups))
        size = taken.settings.batch_size or len(rows)
        for position, step in enumerate(taken.trained):
            for part in rows.split(size):
                with torch.enable_grad():
                    velocity = rollout.velocity_at(made.model, taken, step, part)
                assert velocity.requires_grad, "it is the forward pass that is trained"
                point = taken.latents[part, step + 1]
                log_prob = rollout.trained_transition(taken, step, velocity.detach(), part).log_prob(point)
                differences.append((log_prob - taken.log_probs[part, position]).abs().max().item())
        drift.append(made.update(taken)["ratio/drift"])
    shape = list(taken.images.shape[1:-1])
    return {"difference": max(differences), "drift": max(drift), "trained": len(taken.trained), "shape": shape}


def gradients(family: str, forms: list[str], **changes) -> dict:
    """Numbers of the adapter against central differences: of B at the start, of A and B after the adapter has moved.

    Forms: "plain", "checkpointing" ("kept": but for the last block), "low" (shared cast buffers), "low checkpointing"; and each
    with " fp8" behind it, of weights that are stored in float8. The differences are those of the plain forward pass, which the
    others have to equal.
    """
    found = {}
    for dtype in ("float32", "float8_e4m3fn"):
        of_dtype = [form for form in forms if form.endswith(" fp8") == (dtype == "float8_e4m3fn")]
        if of_dtype:
            made = make(family, {"dtype": getattr(torch, dtype)})
            stages = [_slopes(made, move, **changes) for move in (False, True)]
            found |= {form: _worst(family, dtype, form, stages, **changes) for form in of_dtype}
    return found


def _slopes(made: Made, move: bool, **changes) -> tuple[Tensor, dict]:
    if move:
        made.move()
    loss = Loss(made, **changes)
    slopes = {place: loss.slope(*place) for place in entries(loss.gradients())}
    with torch.no_grad():
        return loss.velocity(), slopes


def _worst(family: str, dtype: str, form: str, stages: list, **changes) -> float:
    checkpointing = "on" if "checkpointing" in form else "off"
    made = make(family, {"dtype": getattr(torch, dtype)}, checkpointing=checkpointing)
    errors = []
    for number, (velocity, slopes) in enumerate(stages):
        if number:
            made.move()
        with shared_buffer(made) if "low" in form else nullcontext():
            loss = Loss(made, **changes)
            for expert in made.model.wrapped.values():
                expert.kept_blocks = int("kept" in form)
            value = loss.recorded()
            assert apart(value.detach(), velocity) <= 1e-6, "it is the same function"
            found = loss.gradients(value)
        for (name, entry), slope in slopes.items():
            derivative = found[name].flatten()[entry].item()
            errors.append(abs(derivative - slope) / max(abs(derivative), abs(slope)))
    return max(errors)


def encoded(family: str) -> dict:
    """Pictures that the tiny autoencoder can make, encoded and decoded again: the largest error, and the latents' shape.

    Two at once; of a video model videos too. And the prompts that were encoded before, to try the model.
    """
    model, generator = (made := make(family)).model, torch.Generator().manual_seed(8)
    apart_by, shapes, texts = 0.0, True, [asked.text for asked in model._encodings._known]
    for frames in {1, made.tiny.frames}:
        shape = model.latent_shape(made.tiny.height, made.tiny.width, frames)
        images = model.decode(torch.randn((2, *shape), generator=generator) * 0.2)
        latents = model.encode(images)
        shapes &= latents.shape == (2, *shape)
        apart_by = max(apart_by, (model.decode(latents) - images).abs().max().item())
    return {"apart": apart_by, "shapes": shapes, "spread": images.std().item(), "texts": texts}


def sampler(family: str, forms: list[str]) -> dict:
    """Our deterministic sampler against ComfyUI's KSampler (euler, simple), by the latents.

    Forms: "plain", "guidance" (embedded, or classifier-free with a negative prompt), "patched" (behind a ModelSampling node).
    """
    made = make(family)
    embedded = made.model.guidance_is_embedded
    found = {}
    for form in forms:
        patched = dataclasses.replace(made.tiny, model=shifted(made.tiny.model)) if form == "patched" else None
        guidance = (2.5 if embedded else 3.5) if form == "guidance" else 1.0
        found[form] = _against_ksampler(trainable(patched) if patched else made, guidance)
    return found


def shifted(model):
    """The MODEL after ComfyUI's own ModelSampling node for its kind of schedule."""
    import comfy.model_sampling
    import comfy_extras.nodes_model_advanced as nodes

    sampling = model.get_model_object("model_sampling")
    if isinstance(sampling, comfy.model_sampling.ModelSamplingFlux):
        return nodes.ModelSamplingFlux().patch(model, 2.0, 0.8, 512, 512)[0]
    multiplier = getattr(sampling, "multiplier", 1000)
    node = nodes.ModelSamplingSD3() if multiplier == 1000 else nodes.ModelSamplingAuraFlow()
    return node.patch(model, 4.5, multiplier)[0]


def _against_ksampler(made: Made, guidance: float) -> float:
    import comfy.sample

    model, texts = made.model, [TEXTS[0]]
    decoded: list[Tensor] = []

    def decode(latents: Tensor, batch_size: int, texts: list[str]) -> Tensor:
        decoded.append(latents)
        return torch.zeros(1)

    settings = made.settings(steps=STEPS, guidance=guidance, negative_prompt=NEGATIVE)
    with attribute(model, "decode", decode):
        rollout.generate(model, texts, settings, seeds=[3])
    ours = model.with_frames(torch.cat(decoded))
    shape = model.latent_shape(made.tiny.height, made.tiny.width, made.tiny.frames)
    noise = model.with_frames(rollout.evaluated_noise((1, *shape), 3, texts[0]))
    embedded = model.guidance_is_embedded
    positive = made.tiny.conditioning(texts[0])
    if embedded:
        positive = [[embeddings, {**entries, "guidance": guidance}] for embeddings, entries in positive]
    theirs = comfy.sample.sample(
        *(made.tiny.model, noise, STEPS, 1.0 if embedded else guidance, "euler", "simple"),
        *(positive, made.tiny.conditioning(NEGATIVE), torch.zeros_like(noise)),
        disable_pbar=True,
        seed=0,
    )
    with torch.no_grad():
        return apart(made.tiny.model.model.process_latent_out(ours), theirs)


def prefix_cache(family: str) -> dict:
    """What a network that keeps what it made of the prompt is told, where its adapter changes."""
    made, told = make(family), []
    made.tiny.model.model.diffusion_model.reset_prefix_cache = told.append
    made.sample()
    return {"told": told}


def tuned_model(family: str) -> dict:
    """Tuned Model and the LoRA file, each in ComfyUI's own path, against the trained model's own velocity."""
    import comfy.sd
    import comfy.utils

    made = make(family)
    made.move(Loss(made).gradients())
    model, text = made.model, TEXTS[1]
    settings = made.settings(guidance=1.0)
    x = made.noise(1)
    with torch.no_grad():
        own = model.with_frames(model.velocity(x, 0.6, model.condition([text], settings), 1.0))
        with model.policy.reference():
            untrained = model.with_frames(model.velocity(x, 0.6, model.condition([text], settings), 1.0))
    noise = model.with_frames(x)
    found = {"moved": apart(own, untrained)}
    [patched] = tuned(model).values()
    found["tuned"] = apart(stock_velocity(made, patched, noise, 0.6, text), own)
    with tempfile.TemporaryDirectory() as folder, logged() as lines:
        [file] = lora.save(model, Path(folder) / "a.safetensors", {})
        state = comfy.utils.load_torch_file(str(file), safe_load=True)
        loaded, _ = comfy.sd.load_lora_for_models(made.tiny.model, None, state, 1.0, 0.0)
        found["file"] = apart(stock_velocity(made, loaded, noise, 0.6, text), own)
        found["left"] = [line for line in lines if "lora" in line.lower()]
        found["keys"], found["patches"] = len(state), sum(map(len, loaded.patches.values()))
    found["base"] = apart(stock_velocity(made, made.tiny.model, noise, 0.6, text), untrained)
    return found


@torch.no_grad()
def training_adapter(family: str) -> dict:
    """A LoRA in front of what is trained: how far it moves the velocity, and the file that is saved with it and without it."""
    import comfy.sd
    import comfy.utils

    bare = make(family)
    front = bare.tiny.model.clone()
    weights = {key: each for key, each in front.model.state_dict().items() if each.ndim == 2 and "blocks" in key}
    front.add_patches(
        {
            key: ("diff", (0.1 * each.norm() / each.numel() ** 0.5 * torch.ones_like(each),))
            for key, each in weights.items()
        }
    )
    settings, x, text = bare.settings(guidance=1.0), bare.noise(1), TEXTS[1]

    def own(made: Made) -> Tensor:
        return made.model.with_frames(made.model.velocity(x, 0.6, made.model.condition([text], settings), 1.0))

    bare.move()
    without = own(bare)
    with torch.inference_mode(False):
        made = trainable(dataclasses.replace(bare.tiny, model=front))
    made.move()
    trained, noise = own(made), made.model.with_frames(x)
    with tempfile.TemporaryDirectory() as folder:
        [file] = lora.save(made.model, Path(folder) / "a.safetensors", {})
        state = comfy.utils.load_torch_file(str(file), safe_load=True)
    both, alone = (comfy.sd.load_lora_for_models(each, None, state, 1.0, 0.0)[0] for each in (front, bare.tiny.model))
    return {
        "moved": apart(trained, without),
        "behind it": apart(stock_velocity(made, both, noise, 0.6, text), trained),
        "alone": apart(stock_velocity(made, alone, noise, 0.6, text), without),
    }


@torch.no_grad()
def layouts(family: str) -> dict:
    """ΔW of all layers that have a name in a layout of ComfyUI's loader, of a file in it: as read here, and as read there."""
    import comfy.lora
    import comfy.utils

    made = make(family)
    model, patcher = made.model, made.tiny.model
    known = comfy.lora.model_lora_keys_unet(patcher.model, {})
    shapes, worst, groups = model.layers("model").shapes, 0.0, {}
    for name, place in known.items():
        weight, rows, *turned = (place, None) if isinstance(place, str) else place
        layer = weight.removeprefix("diffusion_model.").removesuffix(".weight")
        if layer in shapes and not turned and not (rows and rows[1] + rows[2] > shapes[layer][0]):
            start = re.match(r"(lora_unet|lora_transformer|lycoris)_|([a-z_]+\.)??(?=[a-z_]+\.\d+\.)|", name)[0]
            group = groups.setdefault(start, {})
            if (layer, rows) not in group.values():  # of two names of one place the last would count
                group[name] = (layer, rows)
    for start, names in groups.items():
        generator, state = torch.Generator().manual_seed(1), {}
        down, up = ("lora_down", "lora_up") if start.endswith("_") else ("lora_A", "lora_B")
        for name, (layer, rows) in names.items():
            state[f"{name}.{down}.weight"] = torch.randn(2, *shapes[layer][1:], generator=generator)
            state[f"{name}.{up}.weight"] = torch.randn(rows[2] if rows else shapes[layer][0], 2, generator=generator)
            state |= {f"{name}.alpha": torch.tensor(5.0)} if start.endswith("_") else {}
        clone = patcher.clone()
        clone.add_patches(comfy.lora.load_lora(state, known, log_missing=False), 1.0)
        with tempfile.TemporaryDirectory() as folder:
            comfy.utils.save_torch_file(state, str(Path(folder) / "a.safetensors"))
            lora.put_on(model, Path(folder) / "a.safetensors")
        for layer, pair in model.adapters["model"].pairs().items():
            key = f"diffusion_model.{layer}.weight"
            theirs = comfy.lora.calculate_weight(clone.patches[key], torch.zeros(shapes[layer]), key)
            worst = max(worst, (theirs - pair.scale * pair.b @ pair.a).abs().max().item() / theirs.abs().max().item())
    patterns = {re.sub(r"\.\d+\.", ".#.", name, count=1) for name in known}
    return {
        "layouts": {start: len(names) for start, names in groups.items()},
        "worst": worst,
        "names": sorted(patterns),
    }


@torch.no_grad()
def by_sampler(
    model, x: Tensor, levels, schedule, positive: list, negative: list = (), guidance: float = 1.0
) -> list[Tensor]:
    """The velocities of x at these levels as a sampler of ComfyUI gets them from a MODEL, in one sampling."""
    import comfy.sample
    import comfy.samplers

    velocities: list[Tensor] = []

    def sample(network, noise, sigmas, extra_args=None, **_):
        velocities.extend((x - network(x, level * torch.ones(len(x)), **extra_args)) / level for level in levels)
        return noise

    comfy.sample.sample_custom(
        *(model, x, guidance, comfy.samplers.KSAMPLER(sample), torch.as_tensor(schedule)),
        *(positive, negative or positive, torch.zeros_like(x)),
        disable_pbar=True,
        seed=0,
    )
    return velocities


def stock_velocity(made: Made, patcher, noise: Tensor, sigma: float, text: str) -> Tensor:
    """With a MODEL of ComfyUI's own. Some networks look their noise level up in the schedule."""
    conditioning = made.tiny.conditioning(text)
    if made.model.guidance_is_embedded:
        conditioning = [[embeddings, entries | {"guidance": 1.0}] for embeddings, entries in conditioning]
    return by_sampler(patcher, noise, [sigma], made.model.sigmas(made.settings()), conditioning)[0]


class logged(logging.Handler):
    """Within it: what anybody warns of."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger().addHandler(self)
        return self.lines

    def __exit__(self, *error):
        logging.getLogger().removeHandler(self)


def resume(family: str, mode: str = "", **options) -> dict:
    """Four updates in a row, against two, a checkpoint, a new model and two more; by reward gradients of a mode, or by GRPO."""

    def train(made: Made, seeds) -> None:
        for seed in seeds:
            taken = made.sample(seed=seed)
            if mode:
                scores = score_stack([Contrast("contrast")], taken.images, taken.prompts, taken.groups)
                gradient.update(made.model, taken, scores, GradientSettings(1e-2, mode=mode, ema_decay=0.5))
            else:
                made.update(taken)

    straight = make(family, **options)
    train(straight, range(4))
    first, second = make(family, **options), make(family, **options)
    train(first, range(2))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(first.model, Path(folder), 2)
        iteration = checkpoint.restore(second.model, Path(folder))
    train(second, range(2, 4))
    optimizers = [made.model.policy.optimizer_state() for made in (straight, second)]
    same = all(map(torch.equal, straight.parameters(), second.parameters()))
    same_moments = all(torch.equal(value, optimizers[1][key]) for key, value in optimizers[0].items())
    moved = apart(
        torch.cat([p.flatten() for p in second.parameters()]),
        torch.cat([p.flatten() for p in make(family, **options).parameters()]),
    )
    return {"same": same, "same_moments": same_moments, "moved": moved, "iteration": iteration}


def float16(family: str) -> dict:
    """Updates in float16: with the first scale, one that overflows, after that, one that lets it grow; and then resumed."""
    build = {"dtype": torch.float16}
    made, other = make(family, build), make(family, build)
    scale, found = (
        made.model.policy.loss_scale,
        {"dtype": str(made.model.dtype), "first": made.model.policy.loss_scale.value},
    )

    def update(made: Made, seed: int) -> tuple[bool, float]:
        before = made.parameters()
        skipped = made.update(made.sample(seed=seed))["policy/skipped_updates"]
        return not all(map(torch.equal, before, made.parameters())), skipped

    found["held"] = (*update(made, 0), scale.value)
    scale.value = 2.0**60
    found["overflowed"] = (*update(made, 1), scale.value)
    scale.value, scale.good = 2.0**12, scale.PATIENCE - 1
    found["grew"] = (*update(made, 2), scale.value)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(made.model, Path(folder), 3)
        checkpoint.restore(other.model, Path(folder))
    update(made, 3), update(other, 3)
    found["same"] = all(map(torch.equal, made.parameters(), other.parameters()))
    found["scales"] = [(each.value, each.good) for each in (scale, other.model.policy.loss_scale)]
    return found


class Contrast(Reward):
    """Mean square of the pixels, which has a gradient."""

    def score(self, images, prompts):
        return images.double().flatten(1).square().mean(1)

    differentiable = score


def exact(family: str, **options) -> dict:
    """The exact gradient of a reward of decoded pictures, along itself, against central differences; by both decoders."""
    made = make(family, **options)
    made.move()
    prompts, settings, reward = Prompts(TEXTS, (0, 1)), made.settings(), Contrast("contrast")
    gradient, _ = exact_gradient(made.model, prompts, settings, reward, 1)
    parameters, step, ends = made.model.policy.trainable_parameters(), gradient / gradient.norm(), []
    for by in (1e-3, -2e-3):
        parts = (by * step).split([parameter.numel() for parameter in parameters])
        with torch.no_grad():
            for parameter, part in zip(parameters, parts, strict=True):
                parameter += part.view_as(parameter).to(parameter)
        ends.append(exact_gradient(made.model, prompts, settings, reward, 1)[1].mean().item())
    noise = made.noise(1)
    with made.model.decoder(TEXTS[:1]) as decode:
        pictures = decode(noise.to(made.model.device))
    same = (pictures.detach().cpu() - made.model.decode(noise)).abs().max().item()
    return {"norm": gradient.norm().item(), "slope": (ends[0] - ends[1]) / 2e-3, "decoders": same}


def decoder_again(kind: str, frames: int = 1) -> dict:
    """ComfyUI's own autoencoder of a kind, small, by random weights: how far the gradient in its latents is from that without
    blocks that are computed again, and the part of the memory that autograd then keeps."""
    from comfy.ldm.models.autoencoder import AutoencoderKL
    from comfy.ldm.modules.diffusionmodules.model import Decoder
    from comfy.ldm.wan import vae, vae2_2

    torch.manual_seed(0)
    plain = {"z_channels": 4, "resolution": 32, "in_channels": 3, "out_ch": 3, "ch": 32, "ch_mult": [1, 2]}
    plain |= {"num_res_blocks": 1, "attn_resolutions": [], "double_z": True}
    wan = {"dim": 32, "z_dim": 4, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 1, "attn_scales": [], "dropout": 0.0}
    wan |= {"temperal_downsample": [False, True, True]}
    makers = {
        "flux": lambda: AutoencoderKL(embed_dim=4, ddconfig=plain),
        "hunyuan": lambda: Decoder(**plain, conv3d=True, time_compress=2),
        "wan21": lambda: vae.WanVAE(**wan),
        "wan22": lambda: vae2_2.WanVAE(**wan, dec_dim=32),
    }
    network = makers[kind]().requires_grad_(False)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    shape = (1, 4, 8, 8) if kind == "flux" else (1, 4, frames, 8, 8)
    gradients, sizes = [], []
    for around in (nullcontext(), blocks_again(network)):
        latents, kept = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_(), {}

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), frozen.training(), around:
            pictures = getattr(network, "decode", network)(latents)
        sizes.append(sum(kept.values()))
        gradients += torch.autograd.grad(pictures.square().sum(), latents)
    free = all("forward" not in vars(module) for module in network.modules())
    apart = (gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max()
    return {"apart": apart.item(), "kept": sizes[1] / sizes[0], "free": free}


def followed(family: str, mode: str, stand_in: bool = False, tile: int = 0, size: float = 1e-4, **options) -> dict:
    """The gradient of a mode of Reward Gradient Step along itself, against central differences of what it claims to follow.

    `stand_in`: through another decoder than the one whose pictures are scored.
    """
    (made := make(family, **options)).move()
    model, reward, seen = made.model, Contrast("contrast"), []
    vae, taken = tiny.build(family, seed=9).vae if stand_in else None, made.sample()
    scores = score_stack([reward], taken.images, taken.prompts, taken.groups)
    velocity, steps = model.velocity, {"last_steps": 0, "low_variance": 2}.get(mode, 1)
    follows = GradientSettings(
        0.0, mode=mode, steps=steps, kl_coefficient=0.0, tile=tile, max_grad_norm=1e9, batch_size=1
    )

    def noted(x: Tensor, sigma: Tensor, condition, guidance: float) -> Tensor:
        if torch.is_grad_enabled():
            seen.append((x.detach().clone(), sigma, condition))
        return velocity(x, sigma, condition, guidance)

    with attribute(model, "velocity", noted):
        gradient.update(model, taken, scores, follows, decoder=vae)
    parameters, (_, spread) = model.policy.trainable_parameters(), model.memo[RewardSpread]["contrast"]
    found = -torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])

    def rewarded(final: Tensor) -> float:
        parts = [reward.score(made_by(part.to(model.device)), ()) for part in final.split(1)]
        return torch.cat(parts).mean().item() / spread

    @torch.no_grad()
    def predicted() -> float:
        """Of x̂0 = x - σ·v at every point that was called."""
        return sum(rewarded(x - beside(s, x) * velocity(x, s, of, 1.0)) for x, s, of in seen) / len(seen)

    def walked() -> float:
        """Of the same trajectories by the policy as it is."""
        return rewarded(made.sample().final)

    begin: dict[tuple, Tensor] = {}

    @torch.no_grad()
    def leapt() -> float:
        """Of the two leaps as they are written down; what the trajectory had is constant."""
        total = 0.0
        for number, ((x_j, sigma_j, of), (x_k, sigma_k, _)) in enumerate(zip(seen[::2], seen[1::2], strict=True)):
            leap = -beside(sigma_k - sigma_j, x_k) * velocity(x_k, sigma_k, of, 1.0)
            first = begin.setdefault((number, "leap"), leap)
            inside = x_j + follows.nested * (leap - first)
            end = x_j + leap - first - beside(sigma_j, x_j) * velocity(inside, sigma_j, of, 1.0)
            last = begin.setdefault((number, "end"), end)
            total += rewarded(taken.final[[number]].to(end) + end - last)
        return total / len(taken.final)

    value = {"last_steps": walked, "leap": leapt}.get(mode, predicted)
    with model.decoder(TEXTS[:1], *([vae] if vae else [])) as made_by:
        value()
        step, ends = found / found.norm(), []
        for by in (size, -2 * size):
            with torch.no_grad():
                for parameter, part in zip(parameters, (by * step).split([p.numel() for p in parameters]), strict=True):
                    parameter += part.view_as(parameter).to(parameter)
            ends.append(value())
    return {"norm": found.norm().item(), "slope": (ends[0] - ends[1]) / (2 * size)}


def tiles(family: str, side: int, tile: int) -> dict:
    """What an autoencoder of ComfyUI's own class, with norms and attention over all places and random weights, gives back to its
    latents through tiles, against the same through whole pictures."""
    import comfy.ldm.models.autoencoder
    import comfy.sd

    size = {"ch": 32, "ch_mult": [1, 1, 1, 1], "num_res_blocks": 1, "z_channels": 16, "resolution": 256}
    form = {"double_z": True, "in_channels": 3, "out_ch": 3, "attn_resolutions": [], "dropout": 0.0, **size}
    params, generator = {"ddconfig": form, "embed_dim": 16}, torch.Generator().manual_seed(1)
    state = comfy.ldm.models.autoencoder.AutoencoderKL(**params).state_dict()
    for name, weight in state.items():
        if weight.ndim == 1:
            weight.fill_(float(name.endswith("weight")))
        else:
            weight.normal_(0, (2 / weight[0].numel()) ** 0.5, generator=generator)
    vae = comfy.sd.VAE(sd=state, config={"params": params}, dtype=torch.float32)
    vae.latent_channels = 16
    latents = torch.randn((1, 16, side, side), generator=generator).requires_grad_()
    with make(family).model.decoder(TEXTS[:1], vae) as decode:
        pictures = decode(latents)
        toward = torch.randn(pictures.shape, generator=generator)
        (whole,) = torch.autograd.grad(pictures, latents, toward)
        parts = gradient.through_tiles(decode, latents.detach(), toward, tile, generator)
    return {"cosine": torch.nn.functional.cosine_similarity(parts.flatten(), whole.flatten(), dim=0).item()}


def beside(values: Tensor, x: Tensor) -> Tensor:
    return values.to(x).view(-1, *[1] * (x.ndim - 1))


def quantized(family: str, form: str, checkpointing: str = "off") -> dict:
    """A model with quantized layers against the same weights in bfloat16: velocity and gradient."""
    found = []
    for build in ({"quantized": form}, {"dtype": torch.bfloat16}):
        made = make(family, build, checkpointing=checkpointing)
        loss = Loss(made)
        gradient = loss.gradients()
        with torch.no_grad():
            velocity = loss.velocity()
        names = sorted(gradient)
        found.append((velocity, torch.cat([gradient[name].flatten().double() for name in names]), names, made))
    (velocity, gradient, names, made), (twin, twins_gradient, twins_names, _) = found
    assert names == twins_names
    cosine = torch.nn.functional.cosine_similarity(gradient, twins_gradient, dim=0)
    return {
        "velocity": apart(velocity, twin),
        "cosine": cosine.item(),
        "norm": (gradient.norm() / twins_gradient.norm()).item(),
        "is_quantized": made.model.is_quantized,
    }
