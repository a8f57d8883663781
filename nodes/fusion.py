"""Stage 5b, what: how the objectives become one advantage, and which samples it is trained on."""

from ..host import devices
from . import live, payloads

_STD_SCOPE = (
    ["group", "batch"],
    {
        "default": "group",
        "tooltip": "Rewards are divided by their spread in the group, or in the whole batch (Flow-GRPO).",
    },
)


class _Advantages:
    CATEGORY = "OTCA/fusion"
    RETURN_TYPES = ("OTCA_ADVANTAGES", "IMAGE")
    RETURN_NAMES = ("advantages", "heatmap")
    OUTPUT_TOOLTIPS = ("One advantage for each sample and trained step.", "The effective advantages as a picture.")
    OUTPUT_NODE = True  # it completes the credit node's heatmap, also with nothing connected below

    def _shown(self, node_id, advantages):
        from ..trainer.pictures import heatmaps

        heatmap = live.picture(lambda: heatmaps.advantage_heatmap(advantages))
        return live.shown(
            node_id, "advantages", (advantages, heatmap), lambda: payloads.advantages(node_id, advantages)
        )


class _Fuse(_Advantages):
    FUNCTION = "fuse"

    def _fuse(self, scores, credit, node_id, method, **options):
        from ..host import distributed
        from ..trainer.advantages import fuse

        return self._shown(node_id, fuse(distributed.whole(scores), distributed.whole(credit), method, **options))


class MOCAFuse(_Fuse):
    TITLE = "MOCA Fuse"
    DESCRIPTION = "Multi-objective credit allocation (OTCA): the closed-form min-norm problem with exploration."

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "scores": ("OTCA_SCORES",),
                "credit": ("OTCA_CREDIT",),
                "exploration": (
                    ["literal", "centered"],
                    {
                        "default": "literal",
                        "tooltip": "literal: as published, where λ is nearly always 0 or 1. centered: measures how far a "
                        "sample's movement is from its group's mean.",
                    },
                ),
                "recenter": (
                    ["none", "group"],
                    {
                        "default": "none",
                        "tooltip": "group: subtract each group's mean of z, which literal MOCA leaves positive.",
                    },
                ),
                "std_scope": _STD_SCOPE,
            },
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @devices.outside_inference
    def fuse(self, scores, credit, exploration, recenter, std_scope, node_id=""):
        return self._fuse(
            scores, credit, node_id, "moca", exploration=exploration, recentering=recenter, std_scope=std_scope
        )


class WeightedFuse(_Fuse):
    TITLE = "Weighted Fuse"
    DESCRIPTION = (
        "Weighted sum of the rewards (Flow-GRPO) or of their advantages (DanceGRPO, MixGRPO, Multi-GRPO, GDPO)."
    )

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "scores": ("OTCA_SCORES",),
                "credit": ("OTCA_CREDIT",),
                "mode": (
                    ["weighted_advantages", "weighted_sum"],
                    {
                        "default": "weighted_advantages",
                        "tooltip": "weighted_advantages: normalise each reward, then add. weighted_sum: add the raw rewards, "
                        "then normalise.",
                    },
                ),
                "std_scope": _STD_SCOPE,
            },
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @devices.outside_inference
    def fuse(self, scores, credit, mode, std_scope, node_id=""):
        return self._fuse(scores, credit, node_id, mode, std_scope=std_scope)


class BestOfN(_Advantages):
    TITLE = "Best of N"
    DESCRIPTION = "Trains only the best and the worst samples of each group (DanceGRPO): a cheaper update."
    FUNCTION = "select"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "advantages": ("OTCA_ADVANTAGES",),
                "best": (
                    "INT",
                    {
                        "default": 4,
                        "min": 1,
                        "max": 1024,
                        "tooltip": "Samples with the highest advantage, of each prompt.",
                    },
                ),
                "worst": (
                    "INT",
                    {
                        "default": 4,
                        "min": 0,
                        "max": 1024,
                        "tooltip": "Samples with the lowest advantage, of each prompt.",
                    },
                ),
            },
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @devices.outside_inference
    def select(self, advantages, best, worst, node_id=""):
        from ..trainer.advantages import best_of_n

        return self._shown(node_id, best_of_n(advantages, best, worst))


class MinNormFuse(_Fuse):
    TITLE = "Min-Norm Fuse"
    DESCRIPTION = "The min-norm problem without exploration (MGDA): a sample is pushed only where all objectives agree."

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {"scores": ("OTCA_SCORES",), "credit": ("OTCA_CREDIT",), "std_scope": _STD_SCOPE},
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @devices.outside_inference
    def fuse(self, scores, credit, std_scope, node_id=""):
        return self._fuse(scores, credit, node_id, "min_norm", std_scope=std_scope)


class StepwiseGain(_Fuse):
    TITLE = "Stepwise Gain"
    DESCRIPTION = (
        "Credit by reward itself (Stepwise-Flow-GRPO): each step's advantage is what it added to the rewards of the predicted "
        "picture. Scores a picture a step."
    )

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("OTCA_MODEL", {"tooltip": "The one that sampled: predicts the picture at every step."}),
                "trajectories": ("OTCA_TRAJECTORIES",),
                "scores": ("OTCA_SCORES", {"tooltip": "Of these trajectories. Their trained rewards are asked again."}),
                "tweedie_steps": (
                    "INT",
                    {
                        "default": 5,
                        "min": 1,
                        "max": 100,
                        "tooltip": "Model calls that predict the picture from a step's latent. 1: Tweedie's formula, blurred at "
                        "high noise; the paper takes 5.",
                    },
                ),
                "per_step": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "Off: a group's gains are normalised over all its steps together, as in the paper. On: every "
                        "step by itself.",
                    },
                ),
                "fusion": (
                    ["weighted_advantages", "weighted_sum"],
                    {
                        "default": "weighted_advantages",
                        "tooltip": "weighted_advantages: normalise each reward's gains, then add. weighted_sum: add the raw "
                        "gains, then normalise.",
                    },
                ),
            },
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @devices.outside_inference
    def fuse(self, model, trajectories, scores, tweedie_steps, per_step, fusion, node_id=""):
        import time
        from dataclasses import replace

        from ..host import distributed
        from ..trainer.advantages import fuse_gains
        from ..trainer.credit.gains import stepwise_gains
        from ..trainer.credit.steps import similarity_gain
        from ..trainer.pictures import heatmaps

        started = time.perf_counter()
        gains = stepwise_gains(model, trajectories, scores, tweedie_steps)
        similarity, _ = similarity_gain(trajectories.latents, trajectories.final)
        seconds = time.perf_counter() - started
        whole = (distributed.whole(value) for value in (gains, similarity, scores))
        advantages = fuse_gains(*whole, trajectories.trained, fusion, per_step)
        credit = replace(advantages.credit, sigmas=trajectories.sigmas, seconds=seconds, node=node_id)
        advantages = replace(advantages, credit=credit)
        heatmap = live.picture(lambda: heatmaps.advantage_heatmap(advantages))
        # It is credit and fusion in one, and so has the heatmap of the one with the advantages of the other.
        shown = {
            "credit": lambda: payloads.credit(credit, trajectories),
            "advantages": lambda: payloads.advantages(node_id, advantages),
        }
        return live.shown_all(node_id, (advantages, heatmap), shown, trajectories)
