"""Stage 2: prompts."""

from .inputs import complaint, counter, integer, lines, seed, switch, text


class PromptDataset:
    TITLE = "Prompt Dataset"
    CATEGORY = "OTCA/data"
    DESCRIPTION = (
        "Gives the prompts of one iteration; each becomes a group of samples that are compared with each other."
    )
    SEARCH_ALIASES = ["prompts", "dataset", "prompt list", "prompt file", "txt", "jsonl", "batch prompts"]
    RETURN_TYPES = ("OTCA_PROMPTS",)
    RETURN_NAMES = ("prompts",)
    OUTPUT_TOOLTIPS = ("The prompts of this iteration, one group each.",)
    FUNCTION = "take"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "prompts": lines(label="prompts, if no file", hint="Prompts, one a line, if no file is named").tip(
                    "The prompts, one a line. Used when no file is named."
                ),
                "prompts_per_iteration": integer(4, 1, 4096).tip("Prompts in one iteration; each makes one group."),
                "index": counter().tip(
                    "Selects the prompts. Advances by one with every iteration (canvas: set it to increment)."
                ),
                "shuffle": switch(True, advanced=True).tip(
                    "Puts the prompts into a new order in every pass over them."
                ),
                "seed": seed(advanced=True).tip("Seed of the shuffling."),
            },
            "optional": {
                "file": text(suggest="prompt_files", hint="prompts.txt, in the input folder").tip(
                    "A .txt file with one prompt a line, or a .jsonl file whose objects have a `prompt`, and for image to "
                    "video an `image`, in ComfyUI's input folder or one that you allow. Used instead of the text box."
                ),
            },
        }

    @classmethod
    def VALIDATE_INPUTS(cls, prompts, file=""):
        from ..trainer.prompts import read_prompts

        if file is None or (prompts is None and not file):
            return True  # linked: what comes is known only when the graph runs
        return complaint("file" if file else "prompts", read_prompts, prompts or "", file) or True

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
