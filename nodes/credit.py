"""Stage 5a, when: how much credit each denoising step gets."""

from ..host import devices, search
from . import live, payloads
from .rewards import complaint


class _Credit:
    """A credit node: its method is a function of trainer/credit.py."""

    CATEGORY = "OTCA/credit"
    RETURN_TYPES = ("OTCA_CREDIT", "IMAGE")
    RETURN_NAMES = ("credit", "heatmap")
    OUTPUT_TOOLTIPS = ("Weights of the trained steps, [samples, steps].", "The weights as a picture.")
    FUNCTION = "weigh"
    RESCALES_RATIO = False  # whether the credit holds factors of the log-ratio, of which there can be one set
    OUTPUT_NODE = True  # its heatmap is worth a run of its own, with nothing connected below

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
        heatmap = live.picture(lambda: heatmaps.weight_heatmap(credit, trajectories.groups, trajectories.prompts))
        return live.shown(
            node_id, "credit", (credit, heatmap, *pictures), lambda: payloads.credit(credit, trajectories), trajectories
        )


class TCDWeights(_Credit):
    TITLE = "TCD Weights"
    DESCRIPTION = (
        "Trajectory credit decomposition (OTCA): a step is worth what it moves the latent towards the final one."
    )

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "trajectories": ("OTCA_TRAJECTORIES",),
                "w_min": (
                    "FLOAT",
                    {
                        "default": 0.5,
                        "min": 0.0,
                        "max": 1.0,
                        "step": 0.05,
                        "tooltip": "Every step keeps at least this weight; 1 is plain GRPO (not with clamp), 0 only TCD.",
                    },
                ),
                "floor": (
                    ["affine", "waterfill", "clamp"],
                    {
                        "default": "affine",
                        "tooltip": "How the floor is applied. affine: mixed with uniform. waterfill: only what lies below is "
                        "lifted, the mean stays 1. clamp: lifted, the mean may exceed 1.",
                    },
                ),
                "normalize": (
                    ["mean", "sum"],
                    {
                        "default": "mean",
                        "tooltip": "mean: weights average 1. sum: they add up to 1, without a floor (Eq. 8).",
                    },
                ),
            },
            "optional": {
                "proxy": (
                    ["latents", "prediction", "image_features", "measured_gain"],
                    {
                        "default": "latents",
                        "tooltip": "What a step's progress is measured by. latents: as published, without a model call. "
                        "prediction: the latent that the model foresees. image_features: an encoder's view of the foreseen "
                        "picture. measured_gain: its rewards, the upper bound.",
                    },
                ),
                "model": ("OTCA_MODEL", {"tooltip": "The one that sampled; for every proxy but latents."}),
                "scores": ("OTCA_SCORES", {"tooltip": "Of these trajectories; for the proxy measured_gain."}),
                "features": (
                    "STRING",
                    {
                        "default": "shapes-clip",
                        "tooltip": "The encoder of image_features: a folder of a CLIP or DINOv2 model in transformers layout, "
                        "the name of one, or a hub id in the local cache.",
                    },
                ),
            },
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, input_types, proxy="latents", features="shapes-clip"):
        from ..trainer.credit import proxies
        from ..trainer.networks import features as encoders

        declared = cls.INPUT_TYPES()
        for name, given in input_types.items():
            wanted = {**declared["required"], **declared["optional"]}[name][0]
            if isinstance(wanted, str) and given not in (wanted, "*"):
                return f"{name} receives {given} where {wanted} is needed. Fix: connect a node that outputs {wanted}"
        if proxy is None or features is None:
            return True  # linked: what comes is known only when the graph runs
        wrong = proxies.complaint(proxy, input_types)
        if wrong is None and proxy == "image_features":
            wrong = complaint("features", search.model, features, encoders.MARKER)
        return wrong or True

    @classmethod
    def WANTS(cls, proxy="latents", features="", **_):
        from ..host.access.wants import reads

        return reads(features, "an image encoder", "features") if proxy in (None, "image_features") else []

    @devices.outside_inference
    def weigh(
        self,
        trajectories,
        w_min,
        floor,
        normalize,
        proxy="latents",
        model=None,
        scores=None,
        features="shapes-clip",
        node_id="",
    ):
        from dataclasses import replace

        from ..trainer.credit.steps import from_similarity, tcd

        if proxy == "latents":
            return self._weighed(trajectories, node_id, tcd, w_min, floor, normalize)
        from ..trainer.credit import proxies
        from ..trainer.networks import features as encoders

        # Held by the node, so that it is loaded once and not in every iteration.
        self.encoder = encoders.load(features) if proxy == "image_features" else None

        def by_proxy(latents, final, trained, *options):
            similarity = proxies.similarity(proxy, trajectories, model, scores, self.encoder)
            return replace(from_similarity(similarity, trained, *options), method=f"tcd, {proxy}")

        return self._weighed(trajectories, node_id, by_proxy, w_min, floor, normalize)


class UniformWeights(_Credit):
    TITLE = "Uniform Weights"
    DESCRIPTION = "Every trained step alike (DanceGRPO, Flow-GRPO)."

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "trajectories": ("OTCA_TRAJECTORIES",),
                "timestep_fraction": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.05,
                        "max": 1.0,
                        "step": 0.05,
                        "tooltip": "Below 1 each sample trains a random share of its steps (DanceGRPO: 0.6).",
                    },
                ),
                "seed": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 2**63 - 1,
                        "control_after_generate": True,
                        "tooltip": "Of that choice; advances by one with every iteration.",
                    },
                ),
            },
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @devices.outside_inference
    def weigh(self, trajectories, timestep_fraction, seed, node_id=""):
        import torch

        from ..trainer.credit.steps import uniform

        generator = torch.Generator().manual_seed(seed)
        return self._weighed(trajectories, node_id, uniform, timestep_fraction, generator, trajectories.share)


class NoiseAwareWeights(_Credit):
    TITLE = "Noise-Aware Weights"
    DESCRIPTION = "A step counts as much as it explores: in proportion to the noise it adds (TempFlow-GRPO)."

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"trajectories": ("OTCA_TRAJECTORIES",)}, "hidden": {"node_id": "UNIQUE_ID"}}

    @devices.outside_inference
    def weigh(self, trajectories, node_id=""):
        from ..trainer.credit.steps import noise_aware

        return self._weighed(trajectories, node_id, noise_aware, trajectories.stds)


class PCPOWeights(_Credit):
    TITLE = "PCPO Weights"
    DESCRIPTION = (
        "Proportionate credit: a step pulls as hard as it is long (PCPO). With GRPO Step's objective log_hinge."
    )
    RESCALES_RATIO = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"trajectories": ("OTCA_TRAJECTORIES",)}, "hidden": {"node_id": "UNIQUE_ID"}}

    @devices.outside_inference
    def weigh(self, trajectories, node_id=""):
        from ..trainer.credit.steps import pcpo
        from ..trainer.sde import sensitivities

        settings, sigmas = trajectories.settings, trajectories.sigmas
        own = sensitivities(settings.kind, sigmas, settings.eta)
        return self._weighed(trajectories, node_id, pcpo, own, sigmas)


class GRPOGuard(_Credit):
    TITLE = "GRPO-Guard"
    DESCRIPTION = "Importance ratios of one size at every step, so that clipping meets all alike (GRPO-Guard)."
    RESCALES_RATIO = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"trajectories": ("OTCA_TRAJECTORIES",)}, "hidden": {"node_id": "UNIQUE_ID"}}

    @devices.outside_inference
    def weigh(self, trajectories, node_id=""):
        from ..trainer.credit.steps import grpo_guard

        return self._weighed(trajectories, node_id, grpo_guard, trajectories.stds, trajectories.sigmas)


class CombineCredit(_Credit):
    TITLE = "Combine Credit"
    DESCRIPTION = "Two credits at once: their weights are multiplied, and scaled to mean 1 again."

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "trajectories": ("OTCA_TRAJECTORIES",),
                "credit_1": (
                    "OTCA_CREDIT",
                    {"tooltip": "Its movement of the latent is the one that MOCA Fuse explores by."},
                ),
                "credit_2": ("OTCA_CREDIT", {"tooltip": "Of the same trajectories."}),
            },
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @devices.outside_inference
    def weigh(self, trajectories, credit_1, credit_2, node_id=""):
        from ..trainer.credit.steps import combined

        return self._shown(combined(credit_1, credit_2), trajectories, node_id)


class SpatialCredit(_Credit):
    TITLE = "Spatial Credit"
    DESCRIPTION = "Says where in the picture the credit goes, by the patch features of a vision model (VIPO)."
    RETURN_TYPES = (*_Credit.RETURN_TYPES, "IMAGE")
    RETURN_NAMES = (*_Credit.RETURN_NAMES, "places")
    OUTPUT_TOOLTIPS = (*_Credit.OUTPUT_TOOLTIPS, "The pictures, bright where the credit goes.")

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "trajectories": ("OTCA_TRAJECTORIES",),
                "credit": ("OTCA_CREDIT", {"tooltip": "The weights of the steps, which stay as they are."}),
                "model": (
                    "STRING",
                    {
                        "default": "shapes-clip",
                        "tooltip": "A vision transformer: a folder, the name of one, or a hub id in the local cache, such as "
                        "facebook/dinov2-base.",
                    },
                ),
                "components": (
                    "INT",
                    {"default": 3, "min": 1, "max": 64, "tooltip": "Principal components that are added up (K)."},
                ),
                "smoothing": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 16.0,
                        "step": 0.1,
                        "tooltip": "Of the map, in patches; 0: none.",
                    },
                ),
                "floor": (
                    "FLOAT",
                    {
                        "default": 0.0,
                        "min": 0.0,
                        "max": 1.0,
                        "step": 0.05,
                        "tooltip": "What every position keeps of its credit; 1: the map is without effect.",
                    },
                ),
            },
            "optional": {
                "device": ("STRING", {"default": "auto", "tooltip": "auto, cpu, cuda, cuda:1 …"}),
                "dtype": (
                    ["auto", "float32", "bfloat16", "float16"],
                    {"default": "auto", "tooltip": "Of the vision model. auto: float32."},
                ),
            },
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, model):
        from ..trainer.networks.features import MARKER

        return complaint("model", search.model, model, MARKER) or True

    @classmethod
    def WANTS(cls, model="", **_):
        from ..host.access.wants import reads

        return reads(model, "an image encoder", "model")

    @devices.outside_inference
    def weigh(
        self,
        trajectories,
        credit,
        model,
        components,
        smoothing,
        floor,
        device="auto",
        dtype="auto",
        node_id="",
    ):
        import time
        from dataclasses import replace

        from ..trainer.credit import spatial as place
        from ..trainer.credit.steps import with_spatial
        from ..trainer.networks import features
        from ..trainer.networks.network import shared
        from ..trainer.pictures import heatmaps

        started = time.perf_counter()
        # Held by the node, so that it is loaded once and not in every iteration.
        self.network = shared(features.PatchFeatures, search.model(model, features.MARKER), device, dtype)
        own = place.credit_map(self.network, trajectories, components=components, smoothing=smoothing, floor=floor)
        credit = with_spatial(credit, own)
        credit = replace(credit, seconds=credit.seconds + time.perf_counter() - started)
        places = live.picture(lambda: heatmaps.lit(trajectories.images, credit.spatial))
        return self._shown(credit, trajectories, node_id, places)
