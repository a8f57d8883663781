"""Stage 6: the update, of which a graph has one."""

from ..canvas import payloads, results
from ..host import devices, stopping
from ..trainer.types import (
    AWM_WEIGHTINGS,
    FORMS_OF_KL,
    GRADIENT_MODES,
    GRADIENT_PARTNERS,
    KLS,
    LOSS_NAMES,
    MATCHING_LOSSES,
    OLD_POLICIES,
    GradientSettings,
    MatchingSettings,
    UpdateSettings,
)
from .inputs import Node, choice, integer, number, socket, switch

# What somebody types into the search who has no node in mind.
TRAIN = ("train lora", "lora training", "fine-tune", "finetune", "fine tuning", "post-training")
RL = ("rlhf", "reinforcement learning", "rl", "policy gradient", "alignment")

# What both updates have; each default is that of both settings.
MODEL = {name: socket(f"OTCA_{name.upper()}") for name in ("model", "trajectories", "advantages")}
EPOCHS = integer(UpdateSettings.epochs, 1, 64).tip("Optimizer steps on the same samples. Stop waits for all of them.")
EMA_DECAY = number(
    UpdateSettings.ema_decay, 0, 0.99999, step=0.001, fine=True, label="averaging decay", advanced=True
).tip("Decay of the average that is saved; 0: none.")
PARTS = integer(UpdateSettings.parts, 1, 64, label="parts with a step each", advanced=True).tip(
    "Parts of the samples, of whole groups, each with an optimizer step. The first is on-policy, the others have ratios to the "
    "policy that sampled."
)
KL = choice(FORMS_OF_KL, label="form of KL", advanced=True).tip(
    "What the pull is measured by. velocity: mean‖v − v_ref‖². norm: only how much longer v is than v_ref (NormGuard)."
)
REFERENCE_GUIDANCE = number(
    UpdateSettings.reference_guidance, 0, 100, step=0.1, label="guidance of untrained model", advanced=True
).tip(
    "Guidance of the untrained model in the KL term. With the sampler's guidance off, the trained model learns what guidance "
    "did. 0: the same as the trained model's."
)


def learning_rate(default):
    return number(default, 0, 1, step=1e-6, fine=True).tip("Learning rate of AdamW. LoRA on large models: 1e-4 … 3e-4.")


class _Step(Node):
    """A node that moves the policy."""

    CATEGORY = "OTCA/training"
    RETURN_TYPES = ("OTCA_MODEL", "OTCA_REPORT")
    RETURN_NAMES = ("model", "report")
    OUTPUT_TOOLTIPS = ("The same model, one update further.", "This iteration's report, for Training Run.")
    FUNCTION = "update"

    @staticmethod
    def _prepare(model, trajectories, prompt, node_id):
        """Raises ValueError for trajectories of another model."""
        from ..canvas import ownership

        ownership.prepare_update(model, prompt or {}, node_id)
        if not trajectories.made_by(model):  # its weights are no old policy of theirs
            raise ValueError(
                "model: it is not the one that sampled these trajectories. Fix: connect the model of SDE Sampler"
            )
        model.make_room()


class GRPOStep(_Step):
    TITLE = "GRPO Step"
    DESCRIPTION = (
        "GRPO step: one clipped policy-gradient update of the model, with gradients accumulated over all groups."
    )
    SEARCH_ALIASES = [
        *(*TRAIN, *RL, "grpo step", "update: grpo", "grpo", "ppo", "flow-grpo", "dancegrpo", "dppo"),
        *("optimizer", "train step"),
    ]
    ESSENTIALS_CATEGORY = "Training"

    REQUIRED = {
        **MODEL,
        "learning_rate": learning_rate(1e-4),
        "clip_range": number(UpdateSettings.clip_range, 1e-7, 1, step=1e-6, fine=True).tip(
            "How far the importance ratio may leave 1. With the loss dppo: the divergence τ, 1e-5 in its paper."
        ),
        "kl_coefficient": number(UpdateSettings.kl_coefficient, 0, 100, step=0.001, label="KL strength").tip(
            "Pull towards the untrained model (β)."
        ),
    }
    OPTIONAL = {
        "epochs": EPOCHS,
        "batch_size": integer(UpdateSettings.batch_size, 0, 4096, advanced=True).tip(
            "Samples to one forward and backward pass, of several steps where there is room. 0: all samples of one "
            "step. Changes memory and speed only."
        ),
        "ema_decay": EMA_DECAY,
        "sampled_steps": integer(UpdateSettings.sampled_steps, 0, 1000, label="steps to train").tip(
            "Steps of each sample that are trained, drawn by credit; the gradient is the same on average. 0: all."
        ),
        "unconditional_gradient": switch(
            UpdateSettings.unconditional_gradient, label="gradient of both halves", advanced=True
        ).tip(
            "Off: the negative half of classifier-free guidance (SD3, Wan) is computed without gradient. Saves time "
            "and memory, and changes the gradient."
        ),
        "objective": choice(LOSS_NAMES, label="loss").tip(
            "The loss. clipped: PPO's. log_hinge: PCPO's, on the logarithm of the ratio, with the clip range as its "
            "margin. dppo: Flow-DPPO's, for epochs above 1: the clip range is how far a step's mean may move."
        ),
        "kl": choice(KLS, label="form of KL", advanced=True).tip(
            "What the pull is measured by. velocity: mean‖v − v_ref‖². transition: the KL of the step's Gaussians. "
            "flow_grpo: that without √Δ in std, as Flow-GRPO's code. mean: mean‖Δμ‖², as Flow-Factory's x-based. norm: only how "
            "much longer v is than v_ref (NormGuard)."
        ),
        "reference_guidance": REFERENCE_GUIDANCE,
        "parts": PARTS,
        "clip_range_low": number(UpdateSettings.clip_range_low, 0, 1, step=1e-6, fine=True, advanced=True).tip(
            "How far the ratio may fall below 1, where the advantage is negative; the clip range is for the other end then. "
            "0: the same as the clip range."
        ),
    }
    HIDDEN = {"prompt": "PROMPT", "node_id": "UNIQUE_ID"}

    @devices.outside_inference
    def update(self, model, trajectories, advantages, prompt=None, node_id="", **options):
        from ..trainer import grpo
        from ..trainer.run.report import report

        self._prepare(model, trajectories, prompt, node_id)
        settings = UpdateSettings(**options)
        trained, samples = len(trajectories.trained), -(-len(trajectories.groups) // settings.parts)
        kept = {call.number for call in trajectories.kept or ()}
        calls = len(trajectories.kept or ()) + -(-(trained - len(kept)) * samples // (settings.batch_size or samples))
        metrics = grpo.update(model, trajectories, advantages, settings, stopping.progress(calls))
        return model, report(metrics, trajectories, advantages)


class MatchingStep(_Step):
    TITLE = "Matching Step"
    DESCRIPTION = (
        "Matching step: one update from the clean samples. They are noised again, and the velocity is matched there by advantage "
        "(DiffusionNFT, AWM, DGPO, Flow-DPO). Any sampler will do, ode included."
    )
    SEARCH_ALIASES = [
        *(*TRAIN, *RL, "matching step", "update: matching", "dpo", "diffusion dpo", "nft", "diffusionnft"),
        *("awm", "dgpo", "optimizer", "train step"),
    ]

    REQUIRED = {
        **MODEL,
        "loss": choice(MATCHING_LOSSES, MatchingSettings.loss).tip(
            "The loss, and what keeps it from running away. nft: DiffusionNFT's, around the old policy. awm: "
            "advantage-weighted matching, a clipped ratio. dgpo: a group against the untrained model, a clipped ratio. "
            "dpo: the group's best against its worst, a sigmoid."
        ),
        "learning_rate": learning_rate(3e-4),
        "beta": number(MatchingSettings.beta, 0, 1e4, step=0.1, label="strength of the loss", advanced=True).tip(
            "β of the loss. 0: its authors' own (nft 1, dgpo 10, dpo 100; awm has none)."
        ),
        "old_policy": choice(OLD_POLICIES, MatchingSettings.old_policy).tip(
            "How the policy that samples follows the trained one, a brake. gradual: it lags a little more with every "
            "update. late: not at all for 75 updates, then more and more. on_policy: it is the trained one."
        ),
        "sampled_steps": integer(MatchingSettings.sampled_steps, 0, 1000, label="steps to train").tip(
            "Noise levels of each sample that are trained, drawn by credit; the gradient is the same on average. "
            "0: all."
        ),
        "kl_coefficient": number(
            MatchingSettings.kl_coefficient, 0, 100, step=1e-4, fine=True, label="KL strength"
        ).tip("Pull towards the untrained model (κ), a brake."),
    }
    OPTIONAL = {
        "guidance": switch(MatchingSettings.guidance, label="train with guidance", advanced=True).tip(
            "On: the velocity is trained with the sampler's classifier-free guidance (SD3, Wan). Off: without it, at "
            "half the cost."
        ),
        "epochs": EPOCHS.advanced(),
        "batch_size": integer(MatchingSettings.batch_size, 0, 4096, advanced=True).tip(
            "Samples times levels to one forward and backward pass. 0: as many as there are samples. dgpo and dpo "
            "keep a group together. Changes memory and speed only."
        ),
        "ema_decay": EMA_DECAY,
        "keep_winner": number(0.5, 0, 1, step=0.05, advanced=True).tip(
            "dpo: at least this share of what the better sample gains stays, while the worse one is pushed away "
            "(Diffusion-SDPO). 0: off."
        ),
        "reference_guidance": REFERENCE_GUIDANCE,
        "parts": PARTS,
        "lowest_level": number(MatchingSettings.lowest_level, 0, 1, step=0.05, advanced=True).tip(
            "The lowest noise level that is trained. 0: the loss's own; dgpo takes the noisiest 60 % of the steps then."
        ),
        "highest_level": number(MatchingSettings.highest_level, 0, 1, step=0.05, advanced=True).tip(
            "The highest noise level that is trained. 1: any."
        ),
        "weighting": choice(AWM_WEIGHTINGS, label="weighting of awm", advanced=True).tip(
            "awm: how its log-probability weighs error ℓ and level σ. ghuber: σ·ℓ^¼, as its authors. uniform: ℓ. t: σ·ℓ. "
            "t**2: σ²·ℓ. huber: σ·√ℓ."
        ),
        "kl": KL,
    }
    HIDDEN = {"prompt": "PROMPT", "node_id": "UNIQUE_ID"}

    @devices.outside_inference
    def update(self, model, trajectories, advantages, prompt=None, node_id="", **options):
        from ..trainer import matching
        from ..trainer.run.report import report

        self._prepare(model, trajectories, prompt, node_id)
        settings = MatchingSettings(**options)
        samples = -(-len(trajectories.groups) // settings.parts)  # to the first optimizer step
        levels = min(settings.sampled_steps or len(trajectories.trained), len(trajectories.trained))
        calls = -(-levels * samples // (settings.batch_size or samples))
        metrics = matching.update(model, trajectories, advantages, settings, stopping.progress(calls))
        return model, report(metrics, trajectories, advantages)


class RewardGradientStep(_Step):
    TITLE = "Reward Gradient Step"
    DESCRIPTION = (
        "Reward gradient step: one update along the gradient of the rewards themselves, through the decoder (ReFL, DRaFT, "
        "LeapAlign). Few samples do; rewards need a gradient, and others are only watched. Hold one out: every reward is "
        "cheated in the end."
    )
    SEARCH_ALIASES = [
        *(*TRAIN, *RL, "reward gradient step", "update: reward gradient", "refl", "draft", "draft-k", "alignprop"),
        *("leapalign", "srpo", "reward backprop"),
    ]
    OUTPUT_NODE = True  # its heatmap says where along the trajectory the gradient came from

    REQUIRED = {
        "model": MODEL["model"],
        "trajectories": MODEL["trajectories"],
        "scores": socket("OTCA_SCORES"),
        "mode": choice(GRADIENT_MODES, GradientSettings.mode, label="gradient through").tip(
            "one_call: one call at visited points (ReFL). last_steps: the sampler's last steps (DRaFT-K). low_variance: the last "
            "step, with several noises (DRaFT-LV). leap: two long steps, from anywhere (LeapAlign)."
        ),
        "steps": integer(GradientSettings.steps, 0, 1000).tip(
            "one_call: noise levels of each sample. last_steps: how many; 0 is all. low_variance: noises. leap: pairs of steps."
        ),
        "learning_rate": learning_rate(3e-4),
        "kl_coefficient": number(
            GradientSettings.kl_coefficient, 0, 1000, step=0.1, fine=True, label="KL strength"
        ).tip("Pull towards the untrained model (κ), the first brake. 0: none."),
    }
    OPTIONAL = {
        "highest_level": number(GradientSettings.highest_level, 0, 1, step=0.05, advanced=True).tip(
            "The noisiest level that one_call and leap begin at. 1: any."
        ),
        "nested": number(GradientSettings.nested, 0, 1, step=0.1, label="nested gradient", advanced=True).tip(
            "leap: what stays of the gradient that goes through the second step's own call."
        ),
        "tile": integer(GradientSettings.tile, 0, 16384, label="decoder tile", advanced=True).tip(
            "Side in pixels of the parts that the decoder's backward pass takes, elsewhere each time. Saves memory; an estimate. "
            "0: whole pictures."
        ),
        "batch_size": integer(GradientSettings.batch_size, 0, 4096, advanced=True).tip(
            "Samples to one pass through network, decoder and rewards. 0: all. Changes memory and speed only."
        ),
        "ema_decay": EMA_DECAY,
        "advantages": socket("OTCA_ADVANTAGES").tip(
            "Adds the update that they ask for, in the same optimizer step, or only lends their credit and fusion."
        ),
        "also": choice(GRADIENT_PARTNERS, GradientSettings.also, label="with advantages", advanced=True).tip(
            "What is added if advantages are connected: the loss of GRPO Step or one of Matching Step, as they are by "
            "default. credit: nothing; they say which steps are drawn, and how rewards are fused."
        ),
        "ratio": number(GradientSettings.ratio, 0, 100, step=0.1, label="its share", advanced=True).tip(
            "How long the added gradient is, in lengths of the rewards' gradient."
        ),
        "decoder": socket("VAE").tip(
            "A small VAE of the same latents, such as taef1 for FLUX, through which the gradient goes in place of the large one: "
            "less memory. Scores are always of the real pictures. Only for models of Make Trainable."
        ),
        "reference_guidance": REFERENCE_GUIDANCE,
        "kl": KL,
    }
    HIDDEN = {"prompt": "PROMPT", "node_id": "UNIQUE_ID"}

    @devices.outside_inference
    def update(self, model, trajectories, scores, advantages=None, decoder=None, prompt=None, node_id="", **options):
        from dataclasses import replace

        from ..trainer import gradient
        from ..trainer.run.report import report

        self._prepare(model, trajectories, prompt, node_id)
        settings = GradientSettings(**options)
        calls = gradient.calls(trajectories, settings)
        metrics, gained = gradient.update(
            model, trajectories, scores, settings, advantages, stopping.progress(calls), decoder
        )
        gained = replace(gained, credit=replace(gained.credit, node=node_id))
        followed = gradient.watched(scores)  # advantages may be of more rewards

        def came_from():
            shown = payloads.advantages(node_id, replace(gained, scores=followed))
            return {**shown, "watched": list(followed.held_out_names)}

        shown = {"credit": lambda: payloads.credit(gained.credit, trajectories), "advantages": came_from}
        return results.shown(node_id, (model, report(metrics, trajectories, gained)), shown, trajectories)
