"""Stage 3: groups of stochastic trajectories, and which of their steps are stochastic."""

from .. import canvas
from ..canvas import results
from ..host import devices, stopping
from ..trainer.sde import KINDS
from ..trainer.types import (
    GRADIENT_NODE,
    KEEP_GRAPH,
    LOG_PROB_NORMS,
    ODE_SOLVERS,
    STEP_NODE,
    WINDOW_MODES,
    SamplerSettings,
)
from .inputs import Node, choice, counter, integer, lines, number, seed, socket, switch

WIDTH = integer(SamplerSettings.width, 8, 8192, step=8).tip("Width of the pictures, in pixels.")
HEIGHT = integer(SamplerSettings.height, 8, 8192, step=8).tip("Height of the pictures, in pixels.")
FRAMES = integer(SamplerSettings.frames, 1, 10001, step=4, advanced=True).tip(
    "Frames of a video, 4·k + 1. 1: a picture."
)
SHIFT = number(SamplerSettings.shift, 0, 100, step=0.1, label="timestep shift", advanced=True).tip(
    "Timestep shift: more steps at high noise. 0: the checkpoint's own."
)
GUIDANCE = number(SamplerSettings.guidance, 0, 100, step=0.1).tip(
    "Guidance scale. FLUX.1-dev, FLUX.2-dev: the guidance embedding. Others: classifier-free guidance; 1: none. Z-Image and "
    "Krea 2, as in their own pipelines: 0: none."
)
GUIDANCE_2 = number(SamplerSettings.guidance_2, 0, 100, step=0.1, label="guidance of 2nd expert", advanced=True).tip(
    "Guidance of Wan 2.2's second, low-noise expert. 0: the first's."
)
NEGATIVE_PROMPT = lines(hint="Negative prompt", advanced=True).tip(
    "Negative prompt, for models with classifier-free guidance."
)
BATCH_SIZE = integer(SamplerSettings.batch_size, 0, 4096, advanced=True).tip(
    "Samples to one forward pass. 0: all at once."
)


class SDESampler(Node):
    TITLE = "SDE Sampler"
    CATEGORY = "OTCA/sampling"
    DESCRIPTION = "SDE sampler: draws a group of pictures for every prompt, with noise at each step."
    SEARCH_ALIASES = [
        *(
            "sde sampler",
            "sample groups",
            "sampler",
            "rollout",
            "sample",
            "ksampler",
            "generate",
            "trajectories",
            "grpo",
        ),
        *("flow-grpo", "dancegrpo"),
    ]
    ESSENTIALS_CATEGORY = "Training"
    RETURN_TYPES = ("OTCA_TRAJECTORIES", "IMAGE")
    RETURN_NAMES = ("trajectories", "images")
    OUTPUT_TOOLTIPS = ("Every step of every sample with its probability.", "The decoded pictures that the rewards see.")
    FUNCTION = "sample"

    def __init__(self):
        from ..trainer.rewards.overlap import Overlap

        self.overlap = Overlap()

    REQUIRED = {
        "model": socket("OTCA_MODEL"),
        "prompts": socket("OTCA_PROMPTS"),
        "group_size": integer(12, 2, 1024, label="samples per prompt").tip(
            "Samples to a prompt (G), which are compared with each other."
        ),
        "steps": integer(SamplerSettings.steps, 2, 1000).tip("Number of denoising steps (T)."),
        "width": WIDTH,
        "height": HEIGHT,
        "kind": choice(
            [*(kind for kind in KINDS if kind != "ode"), "ode"],
            SamplerSettings.kind,
            label="kind of noise",
            advanced=True,
        ).tip(
            "How a step adds noise. dance_sde: a constant amount (OTCA). flow_sde: Flow-GRPO. cps: keeps the "
            "schedule's noise level exactly. ddim_sde: Stepwise-Flow-GRPO; ddim_sde_schedule: DDIM's own variance. "
            "precise: flow_sde solved exactly over each step. ode: none, for Matching Step; with shared noise off."
        ),
        "eta": number(SamplerSettings.eta, 0.001, 4, step=0.01, label="amount of noise", advanced=True).tip(
            "How much noise each step adds (η). cps: at most 1."
        ),
        "shift": SHIFT,
        "guidance": GUIDANCE,
        "seed": seed(advances=True).tip(
            "Seed of all noise. Advances by one with every iteration (canvas: set it to increment)."
        ),
    }
    OPTIONAL = {
        "shared_noise": switch(SamplerSettings.shared_noise, advanced=True).tip(
            "A group's samples start from the same noise (OTCA, DanceGRPO)."
        ),
        "window_start": integer(0, 0, 999, advanced=True).tip("Number of the first stochastic step of a fixed window."),
        "window_length": integer(0, 0, 1000, advanced=True).tip(
            "Number of stochastic, trained steps. 0: all from window start on."
        ),
        "batch_size": BATCH_SIZE,
        "keep_graph": choice(KEEP_GRAPH, label="keep autograd graph", advanced=True).tip(
            "Keeps the autograd graph, so that the update needs no second forward pass. Takes memory. auto: of as "
            "many calls as half of the free memory holds."
        ),
        "log_prob_norm": choice(LOG_PROB_NORMS, label="log-probability", advanced=True).tip(
            "Which log-probability is taken. full: the Gaussian density. squared_error: as public CPS code has it."
        ),
        "frames": FRAMES,
        "negative_prompt": NEGATIVE_PROMPT,
        "guidance_2": GUIDANCE_2,
        "merge_adapter": switch(SamplerSettings.merge_adapter, advanced=True).tip(
            "Adds the LoRA to the weights while sampling: faster, and takes the memory of the weights again. Where "
            "the autograd graph is kept (auto decides first), nothing is merged."
        ),
        "ode_solver": choice(ODE_SOLVERS, advanced=True).tip(
            "Solver of the deterministic steps. adams_bashforth: second order without more model calls, so that "
            "fewer steps are enough (as in MixGRPO-Flash)."
        ),
        "fraction_after_window": number(
            SamplerSettings.fraction_after_window, 0.05, 1, step=0.05, label="share after window", advanced=True
        ).tip("How many of the steps after the window are taken. Below 1: fewer and larger ones."),
        "stochastic_steps": integer(
            SamplerSettings.stochastic_steps, 0, 1000, label="noisy steps of window", advanced=True
        ).tip(
            "How many steps of the window add noise and are trained, drawn anew in each iteration; the others are "
            "deterministic. 0: all."
        ),
    }
    HIDDEN = {"prompt": "PROMPT", "node_id": "UNIQUE_ID"}

    @classmethod
    def IS_CHANGED(cls, prompt=None, **_):
        from ..canvas import ownership

        return ownership.sampling_key(prompt)

    @devices.outside_inference
    def sample(self, model, prompts, group_size, seed, keep_graph="auto", prompt=None, node_id="", **options):
        from ..host import distributed
        from ..trainer import rollout
        from ..trainer.credit.learned import looks_ahead
        from ..trainer.memory.needs import updates_more_at_once

        model.make_room(prompt)
        settings = SamplerSettings.from_inputs(options)
        results.belongs(model, prompt, node_id, settings)
        samples = group_size * len(prompts.texts)
        groups = [row // group_size for row in distributed.share(samples).rows]
        updates = [entry for entry in (prompt or {}).values() if entry["class_type"] in (STEP_NODE, GRADIENT_NODE)]
        most = 0 if keep_graph == "off" else None
        if keep_graph == "auto":
            # Without an update that takes them ComfyUI's cache would hold them.
            more = any(updates_more_at_once(update, settings.batch_size, samples) for update in updates)
            most = rollout.kept_calls(model, settings, groups) if prompt is None or (updates and not more) else 0
        trajectories = rollout.sample(
            model,
            prompts,
            settings,
            group_size=group_size,
            seed=seed,
            keep_graph=most != 0,
            most_kept=most,
            keep_predictions=most != 0 or canvas.here() or looks_ahead(model),  # beside a graph they are small
            on_step=stopping.progress(rollout.model_calls(settings.transitions, len(groups), settings.batch_size)),
            overlap=self.overlap,
        )
        if trajectories.kept is not None:
            trajectories.kept.asked_for = keep_graph == "on"
        return trajectories, as_images(trajectories.images)


def as_images(images):
    """Pictures [B, H, W, 3] as they are, and videos [B, F, H, W, 3] as the batch of their frames, which is ComfyUI's IMAGE."""
    return images if images.ndim == 4 else images.flatten(0, 1)


class MixGRPOWindow(Node):
    TITLE = "MixGRPO Window"
    CATEGORY = "OTCA/research"
    DESCRIPTION = "Moves the stochastic window of SDE Sampler over the steps in the course of the training (MixGRPO)."
    SEARCH_ALIASES = ["mixgrpo", "mix grpo", "sliding window", "sde window", "grpo"]
    RETURN_TYPES = ("INT", "INT")
    RETURN_NAMES = ("start", "length")
    OUTPUT_TOOLTIPS = ("For the window start of SDE Sampler.", "For the window length of SDE Sampler.")
    FUNCTION = "place"
    PURE = True

    REQUIRED = {
        "iteration": counter().tip(
            "Number of the iteration. Advances with every iteration (canvas: set it to increment)."
        ),
        "steps": integer(SamplerSettings.steps, 2, 1000).tip("Number of steps (T), the same as on SDE Sampler."),
        "length": integer(4, 1, 1000, label="window length").tip(
            "Number of stochastic, trained steps in one iteration."
        ),
        "mode": choice(WINDOW_MODES).tip(
            "How the window moves. progressive: step by step, and then from the start again. progressive_decay: it "
            "stays for fewer iterations at late steps. random: to another step in every iteration."
        ),
        "every": integer(25, 1, 10**6, label="iterations per move").tip(
            "Iterations before the window moves (progressive)."
        ),
        "stride": integer(1, 1, 1000, label="steps per move").tip(
            "Number of steps by which the window moves (progressive)."
        ),
    }
    OPTIONAL = {"seed": seed(advanced=True).tip("Seed of the random windows.")}

    def place(self, iteration, steps, length, **options):
        from ..trainer.schedule import window_start

        return window_start(iteration, steps, length, **options), length
