"""Stage 2: prompts."""


class PromptDataset:
    TITLE = "Prompt Dataset"
    CATEGORY = "OTCA/data"
    DESCRIPTION = (
        "Gives the prompts of one iteration; each becomes a group of samples that are compared with each other."
    )
    RETURN_TYPES = ("OTCA_PROMPTS",)
    RETURN_NAMES = ("prompts",)
    OUTPUT_TOOLTIPS = ("The prompts of this iteration, one group each.",)
    FUNCTION = "take"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "prompts": (
                    "STRING",
                    {"multiline": True, "default": "", "tooltip": "One prompt a line. Used when no file is named."},
                ),
                "prompts_per_iteration": (
                    "INT",
                    {"default": 4, "min": 1, "max": 4096, "tooltip": "Groups in one iteration, one prompt each."},
                ),
                "index": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 2**31,
                        "control_after_generate": True,
                        "tooltip": "Selects the prompts. Advances by one with every iteration (canvas: set it to increment).",
                    },
                ),
                "shuffle": ("BOOLEAN", {"default": True, "tooltip": "A new order in every pass over the prompts."}),
                "seed": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 2**63 - 1,
                        "control_after_generate": False,  # else the canvas would change every seed after each prompt
                        "tooltip": "Seed of the shuffling.",
                    },
                ),
            },
            "optional": {
                "file": (
                    "STRING",
                    {
                        "default": "",
                        "tooltip": "A .txt file with one prompt a line, or a .jsonl file whose objects have a `prompt`, in "
                        "ComfyUI's input folder or one that you allow. Used instead of the text box.",
                    },
                ),
            },
        }

    @classmethod
    def VALIDATE_INPUTS(cls, prompts, file=""):
        from ..host.access.permissions import NotAllowed
        from ..trainer.prompts import PromptError, read_prompts

        if file is None or (prompts is None and not file):
            return True  # linked: what comes is known only when the graph runs
        try:
            read_prompts(prompts, file)
        except (NotAllowed, PromptError) as error:
            return f"file: {error}" if file else f"prompts: {error}"
        return True

    @classmethod
    def WANTS(cls, file="", **_):
        from ..host.access.permissions import PROMPTS
        from ..host.access.wants import reads

        return reads(file, PROMPTS, "file", always=True)

    @classmethod
    def IS_CHANGED(cls, file="", **_):
        from ..trainer.prompts import file_state

        return file_state(file)

    def take(self, prompts, prompts_per_iteration, index, shuffle, seed, file=""):
        from ..trainer.prompts import choose, read_prompts, warn_of_two_sources

        warn_of_two_sources(prompts, file)

        return (choose(read_prompts(prompts, file), prompts_per_iteration, index, seed if shuffle else None),)
