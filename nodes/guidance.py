"""Beside training: what was learned, put together at inference."""

from ..host import devices
from ..host.access.wants import GUIDE, Naming
from ..trainer.types import SamplerSettings
from .inputs import Node, integer, lines, seed, socket
from .sampling import BATCH_SIZE, FRAMES, GUIDANCE, GUIDANCE_2, HEIGHT, NEGATIVE_PROMPT, SHIFT, WIDTH, as_images


def _check_guides(guides):
    from ..inference.guidance import parse_lines
    from ..trainer.policy.files import find

    for guide in parse_lines(guides):
        find(guide.source)


class ImplicitRewardGuidance(Node):
    TITLE = "Implicit Reward Guidance"
    CATEGORY = "OTCA/research"
    DESCRIPTION = (
        "Samples pictures by the velocities of several trained adapters put together, each as strongly as you say."
    )
    SEARCH_ALIASES = ["guidance", "merge lora", "mix adapters", "lora strength", "several loras", "inference"]
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("images",)
    OUTPUT_TOOLTIPS = ("The pictures, prompt by prompt; of videos their frames.",)
    FUNCTION = "sample"

    REQUIRED = {
        "model": socket("OTCA_MODEL").tip("The model that all guides began with, without its adapter."),
        "guides": lines(hint="Guides, one per line: my_run = 1.5")
        .tip(
            "RUN = γ, one per line: a run's name or folder, or a LoRA file. γ = 1 is the tuned model, more goes "
            "beyond it, 0 is the base. RUN = 0:1.5, 8:0.5 is γ from each of these steps on."
        )
        .checked(_check_guides),
        "prompts": lines(hint="Prompts, one per line")
        .tip("The prompts, one per line.")
        .checked("trainer.prompts:read_prompts"),
        "steps": integer(28, 1, 1000).tip("Number of denoising steps (T)."),
        "width": WIDTH,
        "height": HEIGHT,
        "guidance": GUIDANCE.advanced(),
        "seed": seed().tip("Seed of each prompt's first picture; the next picture has the next seed."),
        "pictures": integer(1, 1, 4096, advanced=True).tip(
            "Number of pictures to each prompt, each with a seed of its own."
        ),
    }
    OPTIONAL = {
        "shift": SHIFT,
        "negative_prompt": NEGATIVE_PROMPT,
        "guidance_2": GUIDANCE_2,
        "frames": FRAMES,
        "batch_size": BATCH_SIZE,
    }

    @classmethod
    def WANTS(cls, guides="", **_):
        from ..inference.guidance import parse_lines

        if guides is None:
            return Naming(GUIDE).wants(None, "guides")
        try:
            return [want for guide in parse_lines(str(guides)) for want in Naming(GUIDE).wants(guide.source, "guides")]
        except ValueError:  # it is refused anyway
            return []

    @classmethod
    def IS_CHANGED(cls, guides, **_):
        from ..inference.guidance import file_states, parse_lines

        return file_states(parse_lines(guides)) if guides is not None else float("nan")

    @devices.outside_inference
    def sample(self, model, guides, prompts, seed, pictures, **options):
        from ..inference.guidance import parse_lines, sample
        from ..trainer.prompts import read_prompts

        model.make_room()
        settings = SamplerSettings(kind="ode", eta=0.0, **options)
        return (as_images(sample(model, parse_lines(guides), read_prompts(prompts), settings, seed, pictures)),)
