"""Stage 5a, when: how much credit each denoising step gets."""

from ..trainer import host
from . import live, payloads
from .rewards import complaint


class _Credit:
    """A credit node: its method is a function of trainer/credit.py."""

    CATEGORY = "OTCA/credit"
    RETURN_TYPES = ("OTCA_CREDIT", "IMAGE")
    RETURN_NAMES = ("credit", "heatmap")
    OUTPUT_TOOLTIPS = ("Weights of the trained steps, [samples, steps].", "The weights as a picture.")
    FUNCTION = "weigh"
    OUTPUT_NODE = True  # its heatmap is worth a run of its own, with nothing connected below

    def _weighed(self, trajectories, node_id, method, *options):
        """The credit, with the seconds it took, and its heatmap."""
        import time
        from dataclasses import replace

        from ..trainer import plots

        started = time.perf_counter()
        credit = method(trajectories.latents, trajectories.final, trajectories.trained, *options)
        seconds = time.perf_counter() - started
        credit = replace(credit, sigmas=trajectories.sigmas, seconds=seconds, node=node_id)
        heatmap = host.picture(lambda: plots.weight_heatmap(credit, trajectories.groups, trajectories.prompts))
        return live.shown(
            node_id, "credit", (credit, heatmap), lambda: payloads.credit(credit, trajectories), trajectories
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
        from ..trainer import proxies

        declared = cls.INPUT_TYPES()
        for name, given in input_types.items():
            wanted = {**declared["required"], **declared["optional"]}[name][0]
            if isinstance(wanted, str) and given not in (wanted, "*"):
                return f"{name} receives {given} where {wanted} is needed. Fix: connect a node that outputs {wanted}"
        if proxy is None or features is None:
            return True  # linked: what comes is known only when the graph runs
        wrong = proxies.complaint(proxy, input_types)
        if wrong is None and proxy == "image_features":
            wrong = complaint("features", host.find_model, features, "preprocessor_config.json")
        return wrong or True

    @host.outside_inference
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

        from ..trainer.credit import from_similarity, tcd

        if proxy == "latents":
            return self._weighed(trajectories, node_id, tcd, w_min, floor, normalize)
        from ..trainer import features as encoders
        from ..trainer import proxies

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

    @host.outside_inference
    def weigh(self, trajectories, timestep_fraction, seed, node_id=""):
        import torch

        from ..trainer.credit import uniform

        generator = torch.Generator().manual_seed(seed)
        return self._weighed(trajectories, node_id, uniform, timestep_fraction, generator, trajectories.share)
