"""Stage 5b, what: how the objectives become one advantage, and which samples it is trained on."""

from ..canvas import payloads, results
from ..host import devices
from ..trainer.types import EXPLORATIONS, FUSION_WEIGHTS, GAIN_FUSIONS, RECENTERINGS, STD_SCOPES, WEIGHTED_FUSIONS
from .credit import CREDIT, CREDIT_SOCKET
from .inputs import Node, choice, integer, socket, switch

_FUSE = ("fuse", "combine rewards", "multi-objective", "multi-reward", "advantage")
_STD_SCOPE = choice(STD_SCOPES, label="normalize per").tip(
    "Where the spread that divides the rewards is measured: in each group, or in the whole batch (Flow-GRPO)."
)

_WEIGHTS = choice(FUSION_WEIGHTS, label="weights of rewards", advanced=True).tip(
    "Where a reward's coefficient enters. in the sum: it is a preference, and a lower one lowers the reward's share. in the "
    "solver: it scales what the solver compares, where a lower one may raise the share."
)


class _Advantages(Node):
    CATEGORY = "OTCA/research"
    RETURN_TYPES = ("OTCA_ADVANTAGES", "IMAGE")
    RETURN_NAMES = ("advantages", "heatmap")
    OUTPUT_TOOLTIPS = ("One advantage for each sample and trained step.", "The effective advantages as a picture.")
    OUTPUT_NODE = True  # it completes the credit node's heatmap, also with nothing connected below
    HIDDEN = {"node_id": "UNIQUE_ID"}

    def _shown(self, node_id, advantages, credit=None, trajectories=None):
        """`credit` is the payload of a node that gives credit too, and so has the heatmap of both."""
        from ..trainer.pictures import heatmaps

        heatmap = results.picture(lambda: heatmaps.advantage_heatmap(advantages))
        shown = {"credit": credit} if credit else {}
        shown["advantages"] = lambda: payloads.advantages(node_id, advantages)
        return results.shown(node_id, (advantages, heatmap), shown, trajectories)


class _Fuse(_Advantages):
    """A fusion node: its METHOD is a row of `trainer.advantages.METHODS`, unless an input names one."""

    FUNCTION = "fuse"
    METHOD = ""

    @classmethod
    def inputs(cls):
        required = {"scores": socket("OTCA_SCORES"), **cls.REQUIRED, "std_scope": _STD_SCOPE}
        return required, {"credit": CREDIT_SOCKET, **cls.OPTIONAL}

    @devices.outside_inference
    def fuse(self, scores, credit=None, node_id="", **options):
        from ..host import distributed
        from ..trainer.advantages import fuse

        options = {"method": self.METHOD, **options}
        credit = distributed.whole(scores.plain if credit is None else credit)
        return self._shown(node_id, fuse(distributed.whole(scores), credit, **options))


class MOCAFuse(_Fuse):
    TITLE = "MOCA Fuse"
    CATEGORY = "OTCA/fusion"
    DESCRIPTION = (
        "MOCA fuse: combines several rewards into one advantage, weighing them anew for each sample (multi-objective credit "
        "allocation, OTCA)."
    )
    SEARCH_ALIASES = [*_FUSE, "moca fuse", "moca", "otca", "mgda", "pareto"]
    ESSENTIALS_CATEGORY = "Training"
    METHOD = "moca"

    REQUIRED = {
        "exploration": choice(EXPLORATIONS, label="measure of movement").tip(
            "How a sample's movement is measured. literal: as published, where λ is nearly always 0 or 1. centered: by "
            "its distance from the group's mean."
        ),
        "recenter": choice(RECENTERINGS, label="recentering").tip(
            "group: subtracts each group's mean of z, which literal MOCA leaves positive."
        ),
    }

    OPTIONAL = {"weights": _WEIGHTS}

    def fuse(self, recenter, **inputs):
        return super().fuse(recentering=recenter, **inputs)


class WeightedFuse(_Fuse):
    TITLE = "Weighted Fuse"
    CATEGORY = "OTCA/fusion"
    DESCRIPTION = (
        "Weighted fuse: combines rewards by the weighted sum of them (Flow-GRPO) or of their advantages (GDPO, DanceGRPO, "
        "MixGRPO)."
    )
    SEARCH_ALIASES = [*_FUSE, "weighted fuse", "weighted sum", "gdpo", "flow-grpo", "dancegrpo", "sum rewards"]

    REQUIRED = {
        "mode": choice(WEIGHTED_FUSIONS, label="combine").tip(
            "weighted_advantages: normalise each reward in its group, add, then normalise over the batch (GDPO). "
            "weighted_sum: add the raw rewards, then normalise (Flow-GRPO). weighted_advantages_per_group: the last step within "
            "each group, so that rewards that cancel there train noise. summed_advantages: without a last step (DanceGRPO, "
            "MixGRPO)."
        )
    }

    def fuse(self, mode, **inputs):
        return super().fuse(method=mode, **inputs)


class BestOfN(_Advantages):
    TITLE = "Best of N"
    DESCRIPTION = "Trains only the best and the worst samples of each group (DanceGRPO): a cheaper update."
    SEARCH_ALIASES = ["best of n", "filter samples", "select", "dancegrpo", "cheaper update"]
    FUNCTION = "select"

    REQUIRED = {
        "advantages": socket("OTCA_ADVANTAGES"),
        "best": integer(4, 1, 1024, label="best samples").tip(
            "Samples of each prompt that are kept for their high advantage."
        ),
        "worst": integer(4, 0, 1024, label="worst samples").tip(
            "Samples of each prompt that are kept for their low advantage."
        ),
    }

    @devices.outside_inference
    def select(self, advantages, best, worst, node_id=""):
        from ..trainer.advantages import best_of_n

        return self._shown(node_id, best_of_n(advantages, best, worst))


class MinNormFuse(_Fuse):
    TITLE = "Min-Norm Fuse"
    DESCRIPTION = (
        "Min-norm fuse: combines rewards by the min-norm problem without exploration (MGDA). A sample is pushed only where all "
        "objectives agree."
    )
    SEARCH_ALIASES = [*_FUSE, "min-norm fuse", "min-norm", "mgda", "pareto", "conflict"]
    METHOD = "min_norm"
    OPTIONAL = {"weights": _WEIGHTS}


class StepwiseGain(_Advantages):
    TITLE = "Stepwise Gain"
    DESCRIPTION = (
        "Credit by reward itself (Stepwise-Flow-GRPO): each step's advantage is what it added to the rewards of the predicted "
        "picture. Scores a picture a step."
    )
    SEARCH_ALIASES = [*_FUSE, *CREDIT, "stepwise-flow-grpo", "dense reward", "process reward"]
    FUNCTION = "fuse"

    @classmethod
    def traits(cls, **_):
        return ("rewards",)

    REQUIRED = {
        "model": socket("OTCA_MODEL").tip("The model that sampled. It predicts the picture at every step."),
        "trajectories": socket("OTCA_TRAJECTORIES"),
        "scores": socket("OTCA_SCORES").tip("Scores of these trajectories. Their trained rewards are asked again."),
        "tweedie_steps": integer(5, 1, 100, label="prediction steps").tip(
            "Model calls that predict the picture from a step's latent. 1: Tweedie's formula, blurred at high "
            "noise. The paper takes 5."
        ),
        "per_step": switch(label="each step by itself").tip(
            "Off: a group's gains are normalised over all its steps together, as in the paper. On: for every step "
            "separately."
        ),
        "fusion": choice(GAIN_FUSIONS, label="combine").tip(
            "weighted_advantages: normalise each reward's gains, add, then normalise over the batch. weighted_sum: add the raw "
            "gains, then normalise. weighted_advantages_per_group: the last step within each group."
        ),
    }

    @devices.outside_inference
    def fuse(self, model, trajectories, scores, tweedie_steps, per_step, fusion, node_id=""):
        from dataclasses import replace

        from ..trainer.credit.gains import advantages_of_gains

        advantages = advantages_of_gains(model, trajectories, scores, tweedie_steps, fusion=fusion, per_step=per_step)
        credit = replace(advantages.credit, node=node_id)
        advantages = replace(advantages, credit=credit)
        return self._shown(node_id, advantages, lambda: payloads.credit(credit, trajectories), trajectories)
