"""Stage 5a, when: how much credit each denoising step gets."""

from ..trainer import host


class TCDWeights:
    TITLE = "TCD Weights"
    CATEGORY = "OTCA/credit"
    DESCRIPTION = (
        "Trajectory credit decomposition (OTCA): a step is worth what it moves the latent towards the final one."
    )
    RETURN_TYPES = ("OTCA_CREDIT", "IMAGE")
    RETURN_NAMES = ("credit", "heatmap")
    FUNCTION = "weigh"

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
                        "tooltip": "Every step keeps at least this weight; 1 is plain GRPO, 0 the bare decomposition.",
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
            }
        }

    @host.outside_inference
    def weigh(self, trajectories, w_min, floor, normalize):
        from ..trainer.credit import tcd

        return _weighed(trajectories, tcd, w_min, floor, normalize)


class UniformWeights:
    TITLE = "Uniform Weights"
    CATEGORY = "OTCA/credit"
    DESCRIPTION = "Every trained step alike (DanceGRPO, Flow-GRPO)."
    RETURN_TYPES = ("OTCA_CREDIT", "IMAGE")
    RETURN_NAMES = ("credit", "heatmap")
    FUNCTION = "weigh"

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
            }
        }

    @host.outside_inference
    def weigh(self, trajectories, timestep_fraction, seed):
        import torch

        from ..trainer.credit import uniform

        generator = torch.Generator().manual_seed(seed)
        return _weighed(trajectories, uniform, timestep_fraction, generator)


def _weighed(trajectories, method, *options):
    """The credit by a method of trainer/credit.py, with the seconds it took, and its heatmap."""
    import time
    from dataclasses import replace

    from ..trainer import plots

    started = time.perf_counter()
    credit = method(trajectories.latents, trajectories.final, trajectories.trained, *options)
    credit = replace(credit, sigmas=trajectories.sigmas, seconds=time.perf_counter() - started)
    return credit, host.picture(lambda: plots.weight_heatmap(credit, trajectories.groups, trajectories.prompts))
