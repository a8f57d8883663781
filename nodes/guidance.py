"""Beside training: what was learned, put together at inference."""

from ..host import devices, stopping


class ImplicitRewardGuidance:
    TITLE = "Implicit Reward Guidance"
    CATEGORY = "OTCA/sampling"
    DESCRIPTION = (
        "Samples pictures by the velocities of several trained adapters put together, each as strongly as you say."
    )
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("images",)
    OUTPUT_TOOLTIPS = ("The pictures, prompt by prompt; of videos their frames.",)
    FUNCTION = "sample"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("OTCA_MODEL", {"tooltip": "What all guides began with; its own adapter takes no part."}),
                "guides": (
                    "STRING",
                    {
                        "multiline": True,
                        "default": "",
                        "tooltip": "RUN = γ, one a line: a run's name or folder, or a LoRA file. 1 is the tuned model, more goes "
                        "beyond it, 0 is the base. RUN = 0:1.5, 8:0.5 is γ from each of these steps on.",
                    },
                ),
                "prompts": ("STRING", {"multiline": True, "default": "", "tooltip": "One prompt a line."}),
                "steps": ("INT", {"default": 28, "min": 1, "max": 1000, "tooltip": "Denoising steps (T)."}),
                "width": ("INT", {"default": 512, "min": 8, "max": 8192, "step": 8, "tooltip": "Pixels."}),
                "height": ("INT", {"default": 512, "min": 8, "max": 8192, "step": 8, "tooltip": "Pixels."}),
                "guidance": (
                    "FLOAT",
                    {
                        "default": 3.5,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.1,
                        "tooltip": "As on SDE Sampler; classifier-free guidance is inside each velocity, before they are put "
                        "together.",
                    },
                ),
                "seed": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 2**63 - 1,
                        "control_after_generate": False,  # else no two values of γ could be compared
                        "tooltip": "Of each prompt's first picture; the next has the next one.",
                    },
                ),
                "pictures": (
                    "INT",
                    {"default": 1, "min": 1, "max": 4096, "tooltip": "To each prompt, each with a seed of its own."},
                ),
            },
            "optional": {
                "shift": (
                    "FLOAT",
                    {
                        "default": 0.0,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.1,
                        "tooltip": "Timestep shift; 0: the checkpoint's own.",
                    },
                ),
                "negative_prompt": (
                    "STRING",
                    {
                        "default": "",
                        "multiline": True,
                        "tooltip": "For models with classifier-free guidance (SD3, Wan).",
                    },
                ),
                "guidance_2": (
                    "FLOAT",
                    {
                        "default": 0.0,
                        "min": 0.0,
                        "max": 100.0,
                        "step": 0.1,
                        "tooltip": "Guidance of Wan 2.2's second, low-noise expert; 0: the same as guidance.",
                    },
                ),
                "frames": (
                    "INT",
                    {"default": 1, "min": 1, "max": 10001, "step": 4, "tooltip": "Of a video, 4·k + 1; 1: a picture."},
                ),
                "batch_size": (
                    "INT",
                    {"default": 0, "min": 0, "max": 4096, "tooltip": "Pictures to one forward pass; 0: all at once."},
                ),
            },
        }

    @classmethod
    def VALIDATE_INPUTS(cls, guides, prompts):
        from ..host.access.permissions import NotAllowed
        from ..trainer.inference.guidance import find, parse_lines
        from ..trainer.prompts import read_prompts

        try:
            for guide in parse_lines(guides) if guides is not None else ():  # None: linked, known when the graph runs
                find(guide.source)
        except (ValueError, FileNotFoundError, NotAllowed) as error:
            return f"guides: {error}"
        try:
            if prompts is not None:
                read_prompts(prompts)
        except ValueError as error:
            return f"prompts: {error}"
        return True

    @classmethod
    def WANTS(cls, guides="", **_):
        from ..host.access.wants import reads
        from ..trainer.inference.guidance import parse_lines

        if guides is None:
            return reads(None, "a guide", "guides")
        try:
            return [want for guide in parse_lines(str(guides)) for want in reads(guide.source, "a guide", "guides")]
        except ValueError:  # it is refused anyway
            return []

    @classmethod
    def IS_CHANGED(cls, guides, **_):
        from ..trainer.inference.guidance import file_states, parse_lines

        return file_states(parse_lines(guides)) if guides is not None else float("nan")

    @devices.outside_inference
    def sample(
        self,
        model,
        guides,
        prompts,
        steps,
        width,
        height,
        guidance,
        seed,
        pictures,
        shift=0.0,
        negative_prompt="",
        guidance_2=0.0,
        frames=1,
        batch_size=0,
    ):
        from ..trainer import rollout
        from ..trainer.inference.guidance import composed, parse_lines
        from ..trainer.prompts import read_prompts
        from ..trainer.types import SamplerSettings

        devices.make_room()
        settings = SamplerSettings(
            kind="ode",
            eta=0.0,
            steps=steps,
            width=width,
            height=height,
            shift=shift,
            guidance=guidance,
            batch_size=batch_size,
            frames=frames,
            negative_prompt=negative_prompt,
            guidance_2=guidance_2,
        )
        pairs = [(prompt, seed + number) for prompt in read_prompts(prompts) for number in range(pictures)]
        texts, seeds = [text for text, _ in pairs], [number for _, number in pairs]
        with composed(model, parse_lines(guides), steps) as compose:
            calls = compose.calls(steps) * rollout.model_calls(1, len(pairs), batch_size)
            images = rollout.generate(model, texts, settings, seeds, stopping.progress(calls), compose)
        return (images if images.ndim == 4 else images.flatten(0, 1),)
