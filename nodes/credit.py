"""Stage 5a, when: how much credit each denoising step gets."""

from ..canvas import payloads, results
from ..host import devices, search
from ..trainer.types import FLOORS, NORMALIZATIONS, PROXIES
from .inputs import DEVICE, Node, choice, complaint, dtype, integer, miswired, number, seed, socket, text

CREDIT = ("credit", "credit assignment", "step weights", "timestep weights", "heatmap")


class _Credit(Node):
    """A credit node: its method is a function of trainer/credit/steps.py."""

    CATEGORY = "OTCA/research"
    RETURN_TYPES = ("OTCA_CREDIT", "IMAGE")
    RETURN_NAMES = ("credit", "heatmap")
    OUTPUT_TOOLTIPS = ("Weights of the trained steps, [samples, steps].", "The weights as a picture.")
    FUNCTION = "weigh"
    RESCALES_RATIO = False  # whether the credit holds factors of the log-ratio, of which there can be one set
    NEEDS_NOISE = False  # whether it asks how much noise the steps add
    OUTPUT_NODE = True  # its heatmap is worth a run of its own, with nothing connected below
    REQUIRED = {"trajectories": socket("OTCA_TRAJECTORIES")}
    HIDDEN = {"node_id": "UNIQUE_ID"}

    def _weighed(self, trajectories, node_id, method, *options):
        """The credit, with the seconds it took, and its heatmap."""
        import time
        from dataclasses import replace

        started = time.perf_counter()
        credit = method(trajectories.latents, trajectories.final, trajectories.trained, *options)
        seconds = time.perf_counter() - started
        return self._shown(replace(credit, sigmas=trajectories.sigmas, seconds=seconds), trajectories, node_id)

    def _shown(self, credit, trajectories, node_id, *pictures):
        from dataclasses import replace

        from ..trainer.pictures import heatmaps

        credit = replace(credit, node=node_id)
        heatmap = results.picture(lambda: heatmaps.weight_heatmap(credit, trajectories.groups, trajectories.prompts))
        payload = {"credit": lambda: payloads.credit(credit, trajectories)}
        return results.shown(node_id, (credit, heatmap, *pictures), payload, trajectories)


class TCDWeights(_Credit):
    TITLE = "TCD Weights"
    CATEGORY = "OTCA/credit"
    DESCRIPTION = (
        "Trajectory credit decomposition (OTCA): a step is worth as much as it moves the latent towards the final one."
    )
    SEARCH_ALIASES = [*CREDIT, "tcd", "otca", "trajectory credit"]
    ESSENTIALS_CATEGORY = "Training"

    @classmethod
    def asks_rewards_again(cls, proxy="latents", **_):
        return proxy == "measured_gain"

    REQUIRED = {
        "trajectories": socket("OTCA_TRAJECTORIES"),
        "w_min": number(0.5, 0, 1, step=0.05, label="smallest weight").tip(
            "Smallest weight of a step. 1: plain GRPO (not with clamp). 0: TCD alone."
        ),
        "floor": choice(FLOORS, label="floor mode").tip(
            "How the smallest weight is applied. affine: TCD is mixed with equal weights. waterfill: only smaller "
            "weights are raised, and the mean stays 1. clamp: they are raised, and the mean may exceed 1."
        ),
        "normalize": choice(NORMALIZATIONS, label="scale of weights", advanced=True).tip(
            "mean: the weights average 1. sum: they add up to 1, without a smallest weight (Eq. 8)."
        ),
    }
    OPTIONAL = {
        "proxy": choice(PROXIES, label="measure of progress").tip(
            "What measures a step's progress. latents: the latent, as published, without a model call. "
            "prediction: the latent that the model predicts. image_features: an encoder's features of the predicted "
            "picture. measured_gain: the rewards of the predicted picture, the upper bound."
        ),
        "model": socket("OTCA_MODEL").tip("The model that sampled. Every measure of progress but latents needs it."),
        "scores": socket("OTCA_SCORES").tip("Scores of these trajectories. The measure measured_gain needs them."),
        "features": text("shapes-clip", suggest="encoders", label="image encoder").tip(
            "The encoder of image_features: a folder of a CLIP or DINOv2 model in transformers layout, the name "
            "of one, or a hub id in the local cache."
        ),
    }

    @classmethod
    def VALIDATE_INPUTS(cls, input_types, proxy="latents", features="shapes-clip"):
        from ..trainer.credit import proxies
        from ..trainer.networks import features as encoders

        wrong = miswired(cls.INPUT_TYPES(), input_types)
        if wrong is None and proxy is not None and features is not None:  # else linked: known when the graph runs
            wrong = proxies.complaint(proxy, input_types)
            if wrong is None and proxy == "image_features":
                wrong = complaint("features", search.model, features, encoders.MARKER)
        return wrong or True

    @classmethod
    def WANTS(cls, proxy="latents", features="", **_):
        from ..host.access.wants import reads

        return reads(features, "an image encoder", "features") if proxy in (None, "image_features") else []

    @devices.outside_inference
    def weigh(self, trajectories, proxy="latents", model=None, scores=None, features="shapes-clip", node_id="", **how):
        from dataclasses import replace

        from ..trainer.credit.steps import from_similarity, tcd

        if proxy == "latents":
            return self._weighed(trajectories, node_id, lambda *of: tcd(*of, **how))
        from ..trainer.credit import proxies
        from ..trainer.networks import features as encoders

        # Held by the node, so that it is loaded once and not in every iteration.
        self.encoder = encoders.load(features) if proxy == "image_features" else None

        def by_proxy(latents, final, trained):
            similarity = proxies.similarity(proxy, trajectories, model, scores, self.encoder)
            return replace(from_similarity(similarity, trained, **how), method=f"tcd, {proxy}")

        return self._weighed(trajectories, node_id, by_proxy)


class UniformWeights(_Credit):
    TITLE = "Uniform Weights"
    DESCRIPTION = "Every trained step has the same weight (DanceGRPO, Flow-GRPO)."
    SEARCH_ALIASES = [*CREDIT, "uniform", "grpo", "flow-grpo", "dancegrpo", "plain grpo"]

    REQUIRED = {
        "trajectories": socket("OTCA_TRAJECTORIES"),
        "timestep_fraction": number(1, 0.05, 1, step=0.05, label="share of steps").tip(
            "Share of its steps that each sample trains, drawn at random (DanceGRPO: 0.6)."
        ),
        "seed": seed(advances=True).tip("Seed of that choice. It advances by one with every iteration."),
    }

    @devices.outside_inference
    def weigh(self, trajectories, timestep_fraction, seed, node_id=""):
        import torch

        from ..trainer.credit.steps import uniform

        generator = torch.Generator().manual_seed(seed)
        return self._weighed(trajectories, node_id, uniform, timestep_fraction, generator, trajectories.share)


class NoiseAwareWeights(_Credit):
    TITLE = "Noise-Aware Weights"
    DESCRIPTION = "A step counts as much as it explores: in proportion to the noise that it adds (TempFlow-GRPO)."
    SEARCH_ALIASES = [*CREDIT, "tempflow", "tempflow-grpo", "noise level"]
    NEEDS_NOISE = True

    @devices.outside_inference
    def weigh(self, trajectories, node_id=""):
        from ..trainer.credit.steps import noise_aware

        return self._weighed(trajectories, node_id, noise_aware, trajectories.stds)


class PCPOWeights(_Credit):
    TITLE = "PCPO Weights"
    DESCRIPTION = (
        "Proportionate credit: a step pulls as hard as it is long (PCPO). Use it with GRPO Step's loss log_hinge."
    )
    SEARCH_ALIASES = [*CREDIT, "pcpo", "proportionate"]
    RESCALES_RATIO = NEEDS_NOISE = True

    @devices.outside_inference
    def weigh(self, trajectories, node_id=""):
        from ..trainer.credit.steps import pcpo
        from ..trainer.sde import sensitivities

        settings, sigmas = trajectories.settings, trajectories.sigmas
        return self._weighed(trajectories, node_id, pcpo, sensitivities(settings.kind, sigmas, settings.eta), sigmas)


class GRPOGuard(_Credit):
    TITLE = "GRPO-Guard"
    DESCRIPTION = "Importance ratios of one size at every step, so that clipping acts on all steps alike (GRPO-Guard)."
    SEARCH_ALIASES = [*CREDIT, "grpo-guard", "ratio normalization", "over-optimization", "reward hacking"]
    RESCALES_RATIO = NEEDS_NOISE = True

    @devices.outside_inference
    def weigh(self, trajectories, node_id=""):
        from ..trainer.credit.steps import grpo_guard

        return self._weighed(trajectories, node_id, grpo_guard, trajectories.stds, trajectories.sigmas)


class LearnedCredit(_Credit):
    TITLE = "Learned Credit"
    DESCRIPTION = (
        "A step counts by the share of a reward's variance that it decides, measured for each reward by itself."
    )
    SEARCH_ALIASES = [*CREDIT, "variance", "per objective"]

    @classmethod
    def asks_rewards_again(cls, **_):
        return True

    REQUIRED = {
        "trajectories": socket("OTCA_TRAJECTORIES"),
        "scores": socket("OTCA_SCORES").tip("Scores of these trajectories. Their trained rewards are asked again."),
        "model": socket("OTCA_MODEL").tip("The model that sampled. It keeps what has been measured."),
        "measure_every": integer(10, 1, 10**6).tip(
            "Updates between two measurements. Each predicts and scores a picture for every step."
        ),
        "groups": integer(2, 0, 4096).tip("Number of prompts whose samples are measured. 0: all."),
        "decay": number(0.8, 0, 0.999, step=0.01, fine=True, label="averaging decay").tip(
            "Decay of the averages over the measurements. 0: the last one."
        ),
        "w_min": number(0.5, 0, 1, step=0.05, label="smallest weight").tip("Smallest weight of a step. 1: plain GRPO."),
    }

    @devices.outside_inference
    def weigh(self, trajectories, scores, model, node_id="", **how):
        from ..trainer.credit.learned import learned

        return self._shown(learned(model, trajectories, scores, **how), trajectories, node_id)


class InverseVarianceWeights(_Credit):
    TITLE = "Inverse-Variance Weights"
    DESCRIPTION = "A step counts less the noisier its gradient is, as the updates of this training have measured it."
    SEARCH_ALIASES = [*CREDIT, "inverse variance", "gradient noise", "variance"]
    MEASURES_STEPS = True  # the update measures the steps for it, as GRPO Step can

    REQUIRED = {
        "trajectories": socket("OTCA_TRAJECTORIES"),
        "model": socket("OTCA_MODEL").tip("The model that sampled. It keeps what has been measured."),
        "decay": number(0.95, 0, 0.999, step=0.01, fine=True, label="averaging decay").tip(
            "Decay of the averages over the updates. 0: the last one."
        ),
    }

    @devices.outside_inference
    def weigh(self, trajectories, model, decay, node_id=""):
        from ..trainer.credit.inverse_variance import inverse_variance_weights

        return self._shown(inverse_variance_weights(model, trajectories, decay), trajectories, node_id)


class CombineCredit(_Credit):
    TITLE = "Combine Credit"
    DESCRIPTION = "Two credits at once: their weights are multiplied, and scaled to mean 1 again."
    SEARCH_ALIASES = [*CREDIT, "multiply weights"]

    REQUIRED = {
        "trajectories": socket("OTCA_TRAJECTORIES"),
        "credit_1": socket("OTCA_CREDIT").tip("The first credit. MOCA Fuse takes the movement from this one."),
        "credit_2": socket("OTCA_CREDIT").tip("Second credit, of the same trajectories."),
    }

    @devices.outside_inference
    def weigh(self, trajectories, credit_1, credit_2, node_id=""):
        from ..trainer.credit.steps import combined

        return self._shown(combined(credit_1, credit_2), trajectories, node_id)


class SpatialCredit(_Credit):
    TITLE = "Spatial Credit"
    DESCRIPTION = "Says where in the picture the credit goes, by the patch features of a vision model (VIPO)."
    SEARCH_ALIASES = [*CREDIT, "vipo", "dino", "region", "mask", "saliency"]
    RETURN_TYPES = (*_Credit.RETURN_TYPES, "IMAGE")
    RETURN_NAMES = (*_Credit.RETURN_NAMES, "places")
    OUTPUT_LABELS = {"places": "regions"}
    OUTPUT_TOOLTIPS = (*_Credit.OUTPUT_TOOLTIPS, "The pictures, bright in the regions where the credit goes.")

    REQUIRED = {
        "trajectories": socket("OTCA_TRAJECTORIES"),
        "credit": socket("OTCA_CREDIT").tip("The weights of the steps, which stay as they are."),
        "model": text("shapes-clip", suggest="encoders").tip(
            "A vision transformer: a folder, the name of one, or a hub id in the local cache, such as "
            "facebook/dinov2-base."
        ),
        "components": integer(3, 1, 64, label="principal components").tip(
            "Number of principal components that are added up (K)."
        ),
        "smoothing": number(1, 0, 16, step=0.1).tip("Radius of the map's smoothing, in patches. 0: none."),
        "floor": number(0, 0, 1, step=0.05, label="smallest share").tip(
            "Share of its credit that every position keeps. 1: the map has no effect."
        ),
    }
    OPTIONAL = {"device": DEVICE, "dtype": dtype(advanced=True).tip("Precision of the vision model. auto: float32.")}

    @classmethod
    def VALIDATE_INPUTS(cls, model):
        from ..trainer.networks.features import MARKER

        return complaint("model", search.model, model, MARKER) or True

    @classmethod
    def WANTS(cls, model="", **_):
        from ..host.access.wants import reads

        return reads(model, "an image encoder", "model")

    @devices.outside_inference
    def weigh(self, trajectories, credit, model, device="auto", dtype="auto", node_id="", **how):
        import time
        from dataclasses import replace
        from functools import partial

        from ..trainer.credit import spatial
        from ..trainer.credit.steps import with_spatial
        from ..trainer.networks import features
        from ..trainer.networks.network import shared
        from ..trainer.pictures import heatmaps

        started = time.perf_counter()
        # Held by the node, so that it is loaded once and not in every iteration.
        self.network = shared(features.PatchFeatures, search.model(model, features.MARKER), device, dtype)
        credit = with_spatial(credit, spatial.credit_map(self.network, trajectories, **how))
        credit = replace(credit, seconds=credit.seconds + time.perf_counter() - started)
        assert credit.spatial is not None  # the map was put in above
        lit = results.picture(partial(heatmaps.lit, trajectories.images, credit.spatial))
        return self._shown(credit, trajectories, node_id, lit)
