"""Stage 3: groups of stochastic trajectories, and which of their steps are stochastic."""

import json

from ..host import comfyui, devices, stopping
from ..trainer.sde import KINDS, ODE_SOLVERS
from ..trainer.types import WINDOW_MODES
from . import live


class SDESampler:
    TITLE = "SDE Sampler"
    CATEGORY = "OTCA/sampling"
    DESCRIPTION = "Samples a group of stochastic trajectories for every prompt, and decodes their pictures."
    RETURN_TYPES = ("OTCA_TRAJECTORIES", "IMAGE")
    RETURN_NAMES = ("trajectories", "images")
    OUTPUT_TOOLTIPS = ("Every step of every sample with its probability.", "The decoded pictures that the rewards see.")
    FUNCTION = "sample"

    def __init__(self):
        from ..trainer.rewards.overlap import Overlap

        self.overlap = Overlap()

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("OTCA_MODEL",),
                "prompts": ("OTCA_PROMPTS",),
                "group_size": (
                    "INT",
                    {
                        "default": 12,
                        "min": 2,
                        "max": 1024,
                        "tooltip": "Samples to a prompt (G): compared with each other.",
                    },
                ),
                "steps": ("INT", {"default": 16, "min": 2, "max": 1000, "tooltip": "Denoising steps (T)."}),
                "width": ("INT", {"default": 512, "min": 8, "max": 8192, "step": 8, "tooltip": "Pixels."}),
                "height": ("INT", {"default": 512, "min": 8, "max": 8192, "step": 8, "tooltip": "Pixels."}),
                "kind": (
                    [kind for kind in KINDS if kind != "ode"],
                    {
                        "default": "dance_sde",
                        "tooltip": "dance_sde: constant noise (OTCA). flow_sde: Flow-GRPO. cps: keeps the schedule's noise "
                        "level exactly. ddim_sde: Stepwise-Flow-GRPO; ddim_sde_schedule: DDIM's own variance.",
                    },
                ),
                "eta": (
                    "FLOAT",
                    {
                        "default": 0.3,
                        "min": 0.001,
                        "max": 4.0,
                        "step": 0.01,
                        "tooltip": "How much noise each step adds; cps: at most 1.",
                    },
                ),
                "shift": (
                    "FLOAT",
                    {
                        "default": 0.0,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.1,
                        "tooltip": "Timestep shift; 0: the checkpoint's own. Higher spends more steps at high noise.",
                    },
                ),
                "guidance": (
                    "FLOAT",
                    {
                        "default": 3.5,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.1,
                        "tooltip": "FLUX.1-dev: its guidance embedding. SD3, Wan: classifier-free guidance; 1: none.",
                    },
                ),
                "seed": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 2**63 - 1,
                        "control_after_generate": True,
                        "tooltip": "Of all noise. Advances by one with every iteration (canvas: set it to increment).",
                    },
                ),
            },
            "optional": {
                "shared_noise": (
                    "BOOLEAN",
                    {"default": True, "tooltip": "A group starts from one and the same noise (OTCA, DanceGRPO)."},
                ),
                "train_last_step": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "Make the last step stochastic too. Its noise never reaches the picture.",
                    },
                ),
                "window_start": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 999,
                        "tooltip": "First stochastic step of a fixed window.",
                    },
                ),
                "window_length": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 1000,
                        "tooltip": "Number of stochastic, trained steps; 0: all from its start.",
                    },
                ),
                "batch_size": (
                    "INT",
                    {"default": 0, "min": 0, "max": 4096, "tooltip": "Samples to one forward pass; 0: all at once."},
                ),
                "keep_graph": (
                    ["auto", "on", "off"],
                    {
                        "default": "auto",
                        "tooltip": "Keep the autograd graph, so that the update needs no second forward pass. Takes memory. "
                        "auto: when training headlessly and it fits.",
                    },
                ),
                "log_prob_norm": (
                    ["full", "squared_error"],
                    {
                        "default": "full",
                        "tooltip": "full: the Gaussian density. squared_error: as public CPS code has it.",
                    },
                ),
                "frames": (
                    "INT",
                    {"default": 1, "min": 1, "max": 10001, "step": 4, "tooltip": "Of a video, 4·k + 1; 1: a picture."},
                ),
                "negative_prompt": (
                    "STRING",
                    {
                        "default": "",
                        "multiline": True,
                        "tooltip": "What guidance leads away from, for models with classifier-free guidance (SD3, Wan).",
                    },
                ),
                "guidance_2": (
                    "FLOAT",
                    {
                        "default": 0.0,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.1,
                        "tooltip": "Guidance of Wan 2.2's second, low-noise expert; 0: the same as guidance.",
                    },
                ),
                "merge_adapter": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "Fold the LoRA into the weights while sampling: faster, and as much memory again as they "
                        "take. Where keep_graph keeps the graph (auto decides first), nothing is merged.",
                    },
                ),
                "ode_solver": (
                    list(ODE_SOLVERS),
                    {
                        "default": "euler",
                        "tooltip": "Of the deterministic steps. adams_bashforth: second order without more model calls, so "
                        "that fewer steps do (as in MixGRPO-Flash).",
                    },
                ),
                "fraction_after_window": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.05,
                        "max": 1.0,
                        "step": 0.05,
                        "tooltip": "Below 1 the steps after the window are fewer and larger (MixGRPO-Flash: 0.4).",
                    },
                ),
            },
            "hidden": {"prompt": "PROMPT", "node_id": "UNIQUE_ID"},
        }

    @classmethod
    def IS_CHANGED(cls, prompt=None, **_):
        """On the canvas another run's name is another adapter, which samples anew though no input has changed."""
        if not comfyui.in_comfyui():
            return None
        from ..trainer.run import ownership

        return json.dumps(ownership.sampling_key(prompt or comfyui.running_prompt()))

    @devices.outside_inference
    def sample(
        self,
        model,
        prompts,
        group_size,
        steps,
        width,
        height,
        kind,
        eta,
        shift,
        guidance,
        seed,
        shared_noise=True,
        train_last_step=False,
        window_start=0,
        window_length=0,
        batch_size=0,
        keep_graph="auto",
        log_prob_norm="full",
        frames=1,
        negative_prompt="",
        guidance_2=0.0,
        merge_adapter=False,
        ode_solver="euler",
        fraction_after_window=1.0,
        prompt=None,
        node_id="",
    ):
        from ..host import distributed
        from ..trainer import rollout
        from ..trainer.run import ownership
        from ..trainer.types import SamplerSettings

        devices.make_room()
        if comfyui.in_comfyui():
            live.shows_owner(prompt, node_id, ownership.take_up(model, prompt, node_id))
            if model.run is not None:
                live.makes_run(model.run.node, model.run.folder.name)
        own = len(distributed.share(group_size * len(prompts.texts)).rows)
        settings = SamplerSettings(
            kind=kind,
            eta=eta,
            steps=steps,
            width=width,
            height=height,
            shift=shift,
            guidance=guidance,
            shared_noise=shared_noise,
            train_last_step=train_last_step,
            window=(window_start, window_length or steps) if window_start or window_length else None,
            log_prob_norm=log_prob_norm,
            batch_size=batch_size,
            frames=frames,
            negative_prompt=negative_prompt,
            guidance_2=guidance_2,
            merge_adapter=merge_adapter,
            ode_solver=ode_solver,
            fraction_after_window=fraction_after_window,
        )
        # On the canvas ComfyUI's cache holds trajectories for as long as it likes: there they must stay light.
        keep = keep_graph == "on" or (
            keep_graph == "auto" and not comfyui.in_comfyui() and rollout.graph_fits(model, settings, own)
        )
        trajectories = rollout.sample(
            model,
            prompts,
            settings,
            group_size=group_size,
            seed=seed,
            keep_graph=keep,
            keep_predictions=comfyui.in_comfyui(),
            on_step=stopping.progress(rollout.model_calls(settings.transitions, own, batch_size)),
            overlap=self.overlap,
        )
        images = trajectories.images
        return trajectories, images if images.ndim == 4 else images.flatten(0, 1)


class MixGRPOWindow:
    TITLE = "MixGRPO Window"
    CATEGORY = "OTCA/sampling"
    DESCRIPTION = "Moves the SDE Sampler's stochastic window over the steps as training goes on (MixGRPO)."
    RETURN_TYPES = ("INT", "INT")
    RETURN_NAMES = ("start", "length")
    OUTPUT_TOOLTIPS = ("For the SDE Sampler's window_start.", "For the SDE Sampler's window_length.")
    FUNCTION = "place"
    PURE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "iteration": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 2**31,
                        "control_after_generate": True,
                        "tooltip": "Advances by one with every iteration (canvas: set it to increment).",
                    },
                ),
                "steps": ("INT", {"default": 16, "min": 2, "max": 1000, "tooltip": "As the SDE Sampler has them (T)."}),
                "length": (
                    "INT",
                    {"default": 4, "min": 1, "max": 1000, "tooltip": "Stochastic, trained steps in one iteration."},
                ),
                "mode": (
                    list(WINDOW_MODES),
                    {
                        "default": "progressive",
                        "tooltip": "progressive: moves on and wraps. progressive_decay: late places for fewer iterations. "
                        "random: a new place in every iteration.",
                    },
                ),
                "every": (
                    "INT",
                    {"default": 25, "min": 1, "max": 10**6, "tooltip": "Iterations before it moves (progressive)."},
                ),
                "stride": (
                    "INT",
                    {"default": 1, "min": 1, "max": 1000, "tooltip": "Steps by which it moves (progressive)."},
                ),
            },
            "optional": {
                "seed": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 2**63 - 1,
                        "control_after_generate": False,  # what moves on is the iteration
                        "tooltip": "Of the random places.",
                    },
                ),
                "train_last_step": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "As the SDE Sampler has it: off, the window ends before the last step.",
                    },
                ),
            },
        }

    def place(self, iteration, steps, length, mode, every, stride, seed=0, train_last_step=False):
        from ..trainer.schedule import window_start

        options = {"mode": mode, "every": every, "stride": stride, "seed": seed, "train_last_step": train_last_step}
        return window_start(iteration, steps, length, **options), length
