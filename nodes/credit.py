"""Stage 5a, when: how much credit each denoising step gets."""

from ..canvas import payloads, results
from ..host import devices, search
from ..host.access.wants import ENCODER, Naming
from ..trainer.types import CREDITS, FLOORS, MEASURED_WITH, NORMALIZATIONS, PROXIES
from .inputs import DEVICE, Node, choice, complaint, dtype, integer, miswired, number, replaced, seed, socket, text

CREDIT = ("credit", "credit assignment", "step weights", "timestep weights", "heatmap")

CREDIT_SOCKET = socket("OTCA_CREDIT").tip(
    "The weights of the steps, from a credit node. Nothing connected: all steps alike."
)


class _Credit(Node):
    """A credit node: its method is a function of trainer/credit/steps.py."""

    CATEGORY = "OTCA/research"
    RETURN_TYPES = ("OTCA_CREDIT", "IMAGE")
    RETURN_NAMES = ("credit", "heatmap")
    OUTPUT_TOOLTIPS = ("Weights of the trained steps, [samples, steps].", "The weights as a picture.")
    FUNCTION = "weigh"
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
        "TCD weights: the credit of each step, by trajectory credit decomposition (OTCA). A step is worth as much as it moves "
        "the latent towards the final one."
    )
    SEARCH_ALIASES = [*CREDIT, "tcd weights", "tcd", "step credit", "otca", "trajectory credit"]
    ESSENTIALS_CATEGORY = "Training"

    @classmethod
    def traits(cls, proxy="latents", **_):
        return ("rewards",) if proxy == "measured_gain" else ()

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
        "features": text(
            "shapes-clip", suggest="encoders", label="image encoder", names=Naming(ENCODER), advanced=True
        ).tip(
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
    def WANTS(cls, proxy="latents", **inputs):
        return super().WANTS(**inputs) if proxy in (None, "image_features") else []

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


class StepCredit(_Credit):
    TITLE = "Step Credit"
    DESCRIPTION = (
        "How much credit each step gets, by the method that you choose: all alike, by noise, or by measurement."
    )
    SEARCH_ALIASES = [
        *(*CREDIT, "uniform", "grpo", "flow-grpo", "dancegrpo", "plain grpo", "tempflow-grpo", "noise-aware weights"),
        *("pcpo", "proportionate", "grpo-guard", "ratio normalization", "over-optimization", "reward hacking"),
        *("learned credit", "per objective", "inverse variance", "gradient noise", "uniform weights"),
    ]

    @classmethod
    def traits(cls, method="uniform", **_):
        return CREDITS.get(method, ())

    REQUIRED = {
        "trajectories": socket("OTCA_TRAJECTORIES"),
        "method": choice(CREDITS)
        .tip(
            "uniform: every step alike (DanceGRPO, Flow-GRPO). noise_aware: in proportion to the noise that a step adds "
            "(TempFlow-GRPO). pcpo: a step pulls as hard as it is long; with the loss log_hinge of GRPO Step. grpo_guard: "
            "clipping acts on all steps alike. inverse_variance: the less, the noisier its gradient was in the updates before. "
            "learned: by the share of each reward's variance that it decides."
        )
        .replacing(replaced("OTCA_StepCredit")),
    }
    OPTIONAL = {
        "timestep_fraction": number(1, 0.05, 1, step=0.05, label="share of steps").tip(
            "uniform: share of its steps that each sample trains, drawn at random (DanceGRPO: 0.6)."
        ),
        "seed": seed(advances=True).tip("uniform: seed of that choice. It advances by one with every iteration."),
        "w_min": number(0.5, 0, 1, step=0.05, label="smallest weight").tip(
            "learned: smallest weight of a step. 1: plain GRPO."
        ),
        "decay": number(0.95, 0, 0.999, step=0.01, fine=True, label="averaging decay", advanced=True).tip(
            "Decay of the averages: inverse_variance's over the updates, learned's over its measurements. 0: the last one."
        ),
        "measure_every": integer(10, 1, 10**6, advanced=True).tip(
            "learned: updates between two measurements. Each predicts and scores a picture for every step."
        ),
        "groups": integer(2, 0, 4096, advanced=True).tip(
            "learned: number of prompts whose samples are measured. 0: all."
        ),
        "model": socket("OTCA_MODEL").tip(
            "The model that sampled, which keeps what was measured. inverse_variance and learned need it."
        ),
        "scores": socket("OTCA_SCORES").tip("Scores of these trajectories. learned asks their trained rewards again."),
    }

    @classmethod
    def VALIDATE_INPUTS(cls, input_types, method=None):
        lacking = [name for name in MEASURED_WITH.get(method or "", ()) if name not in input_types]
        if lacking:
            return f"method = {method!r} needs {' and '.join(lacking)}. Fix: connect {' and '.join(lacking)}, or choose uniform"
        return miswired(cls.INPUT_TYPES(), input_types) or True

    @devices.outside_inference
    def weigh(self, trajectories, method, node_id="", **inputs):
        from ..trainer.credit.methods import step_credit

        return self._weighed(trajectories, node_id, lambda *_: step_credit(method, trajectories, **inputs))


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
        "model": text("shapes-clip", suggest="encoders", names=Naming(ENCODER))
        .tip(
            "A vision transformer: a folder, the name of one, or a hub id in the local cache, such as "
            "facebook/dinov2-base."
        )
        .checked("trainer.networks.features:find"),
        "components": integer(3, 1, 64, label="principal components").tip(
            "Number of principal components that are added up (K)."
        ),
        "smoothing": number(1, 0, 16, step=0.1).tip("Radius of the map's smoothing, in patches. 0: none."),
        "floor": number(0, 0, 1, step=0.05, label="smallest share").tip(
            "Share of its credit that every position keeps. 1: the map has no effect."
        ),
    }
    OPTIONAL = {
        "device": DEVICE,
        "dtype": dtype(advanced=True).tip("Precision of the vision model. auto: float32."),
        "credit": CREDIT_SOCKET,
    }

    @devices.outside_inference
    def weigh(self, trajectories, model, device="auto", dtype="auto", credit=None, node_id="", **how):
        import time
        from dataclasses import replace
        from functools import partial

        from ..trainer.credit import spatial
        from ..trainer.credit.steps import plain, with_spatial
        from ..trainer.networks import features
        from ..trainer.networks.network import shared
        from ..trainer.pictures import heatmaps

        started = time.perf_counter()
        # Held by the node, so that it is loaded once and not in every iteration.
        self.network = shared(features.PatchFeatures, search.model(model, features.MARKER), device, dtype)
        credit = with_spatial(credit or plain(trajectories), spatial.credit_map(self.network, trajectories, **how))
        credit = replace(credit, seconds=credit.seconds + time.perf_counter() - started)
        assert credit.spatial is not None  # the map was put in above
        lit = results.picture(partial(heatmaps.lit, trajectories.images, credit.spatial))
        return self._shown(credit, trajectories, node_id, lit)
