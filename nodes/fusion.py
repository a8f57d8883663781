"""Stage 5b, what: how the objectives become one advantage."""

from ..trainer import host
from . import live, payloads

_STD_SCOPE = (
    ["group", "batch"],
    {
        "default": "group",
        "tooltip": "Rewards are divided by their spread in the group, or in the whole batch (Flow-GRPO).",
    },
)


class _Fuse:
    CATEGORY = "OTCA/fusion"
    RETURN_TYPES = ("OTCA_ADVANTAGES", "IMAGE")
    RETURN_NAMES = ("advantages", "heatmap")
    OUTPUT_TOOLTIPS = ("One advantage for each sample and trained step.", "The effective advantages as a picture.")
    FUNCTION = "fuse"
    OUTPUT_NODE = True  # it completes the credit node's heatmap, also with nothing connected below

    def _fuse(self, scores, credit, node_id, method, **options):
        from ..trainer import distributed, plots
        from ..trainer.fusion import fuse

        advantages = fuse(distributed.whole(scores), distributed.whole(credit), method, **options)
        heatmap = host.picture(lambda: plots.advantage_heatmap(advantages))
        return live.shown(
            node_id, "advantages", (advantages, heatmap), lambda: payloads.advantages(node_id, advantages)
        )


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

    @host.outside_inference
    def fuse(self, scores, credit, exploration, recenter, std_scope, node_id=""):
        return self._fuse(
            scores, credit, node_id, "moca", exploration=exploration, recentering=recenter, std_scope=std_scope
        )


class WeightedFuse(_Fuse):
    TITLE = "Weighted Fuse"
    DESCRIPTION = "Weighted sum of the rewards (DanceGRPO, Flow-GRPO) or of their advantages (Multi-GRPO, GDPO)."

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

    @host.outside_inference
    def fuse(self, scores, credit, mode, std_scope, node_id=""):
        return self._fuse(scores, credit, node_id, mode, std_scope=std_scope)


class MinNormFuse(_Fuse):
    TITLE = "Min-Norm Fuse"
    DESCRIPTION = "The min-norm problem without exploration (MGDA): a sample is pushed only where all objectives agree."

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {"scores": ("OTCA_SCORES",), "credit": ("OTCA_CREDIT",), "std_scope": _STD_SCOPE},
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @host.outside_inference
    def fuse(self, scores, credit, std_scope, node_id=""):
        return self._fuse(scores, credit, node_id, "min_norm", std_scope=std_scope)
