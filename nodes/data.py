"""Stage 2: prompts; and in place of stages 2 to 5 pictures with the opinions about them."""

import contextlib

from ..canvas import results
from ..host import devices, stopping
from ..host.access.permissions import OPINIONS, PROMPTS, READ, Want
from ..host.access.wants import PROMPT_LINES, Naming
from ..trainer.types import FORMS, SamplerSettings
from .inputs import Node, choice, complaint, counter, integer, lines, number, replaced, seed, socket, switch, text
from .rewards.stack import reward_sockets
from .sampling import BATCH_SIZE, GUIDANCE, GUIDANCE_2, NEGATIVE_PROMPT, SHIFT, as_images
from .training import TRAIN


class PromptDataset(Node):
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

    REQUIRED = {
        "prompts": lines(
            label="prompts, if no file",
            hint="One per line, if no file is named. Neither: general.txt",
            names=Naming(PROMPT_LINES, asks="never"),
        ).tip(
            "The prompts, one per line, or the names of several files with weights (see the help page). Used when no file is "
            "named. Empty: the 200 prompts of general.txt."
        ),
        "prompts_per_iteration": integer(4, 1, 4096).tip("Prompts in one iteration; each makes one group."),
        "index": counter().tip(
            "Selects the prompts. Advances by one with every iteration (canvas: set it to increment)."
        ),
        "shuffle": switch(True, advanced=True).tip("Puts the prompts into a new order in every pass over them."),
        "seed": seed(advanced=True).tip("Seed of the shuffling."),
    }
    OPTIONAL = {
        "file": text(
            suggest="prompt_files", hint="prompts.txt, in the input folder", names=Naming(PROMPTS, asks="always")
        ).tip(
            "A .txt file with one prompt per line; a .jsonl file whose objects have a `prompt`, and for edits or image to "
            "video an `image` or `images`; or a folder with a picture and its text for each prompt (a.png, a.txt). In "
            "ComfyUI's input folder or one that you allow. Used instead of the text box."
        )
    }

    @classmethod
    def VALIDATE_INPUTS(cls, prompts=None, file=""):
        from ..trainer.prompts import PRESET, read_prompts

        if file is None or (prompts is None and not file):
            return True  # linked: what comes is known only when the graph runs
        return complaint("file" if file else "prompts", read_prompts, prompts or "", file, PRESET) or True

    @classmethod
    def WANTS(cls, prompts="", file="", **_):
        from ..trainer.prompts import FILE, PromptError, files_in

        wants = super().WANTS(**{"prompts": prompts} if file == "" else {"file": file})
        with contextlib.suppress(PromptError):  # which VALIDATE_INPUTS says
            rows = files_in(prompts) if file == "" and isinstance(prompts, str) else []
            wants += [Want(READ, row[FILE], PROMPTS, "prompts") for row in rows]
        return wants

    @classmethod
    def IS_CHANGED(cls, prompts="", file="", **_):
        from ..trainer.prompts import file_state

        return file_state(file, prompts or "")

    def take(self, prompts, prompts_per_iteration, index, shuffle, seed, file=""):
        from ..trainer.prompts import PRESET, choose, read_prompts, warn_of_two_sources

        warn_of_two_sources(prompts, file)
        texts = read_prompts(prompts, file, PRESET)
        return (choose(texts, prompts_per_iteration, index, seed if shuffle else None),)


_FITTED = "of the pictures, in pixels. Each is scaled until it covers width x height, and cropped about its centre."


class MyPictures(Node):
    TITLE = "My Pictures"
    CATEGORY = "OTCA/more"
    DESCRIPTION = (
        "Learns from what you think of pictures that are there already: thumbs, stars, pairs and regions of the gallery. "
        "Nothing is sampled."
    )
    SEARCH_ALIASES = [
        *("gallery", "opinions", "thumbs", "stars", "dpo", "preference", "preference pairs", "chosen rejected"),
        *("pick-a-pic", "offline", "dataset", "output folder", *TRAIN),
    ]
    RETURN_TYPES = ("OTCA_TRAJECTORIES", "OTCA_ADVANTAGES", "OTCA_SCORES", "IMAGE")
    RETURN_NAMES = ("trajectories", "advantages", "scores", "images")
    OUTPUT_TOOLTIPS = (
        "The pictures' latents and noise levels. For Matching Step.",
        "How much each picture is liked, from -1 to 1; of a pair 1 and -1. At every noise level alike.",
        "The same as scores from 0 to 1, where a credit node and a fusion node should weigh the noise levels.",
        "The pictures as they are trained on.",
    )
    FUNCTION = "take"

    REQUIRED = {
        "model": socket("OTCA_MODEL"),
        "learn_from": choice(FORMS, FORMS[0], advanced=True)
        .tip(
            "pairs: a better and a worse picture of one prompt, also made of thumbs and stars; for the losses dpo and dgpo. "
            "pictures: each one by its thumb, stars, pairs or regions; for nft and awm."
        )
        .replacing(replaced("OTCA_MyPictures")),
        "pairs_per_iteration": integer(4, 1, 4096).tip("Pairs in one iteration; or twice as many pictures."),
        "index": counter().tip(
            "Selects the pairs. Advances by one with every iteration (canvas: set it to increment)."
        ),
        "shuffle": switch(True, advanced=True).tip("Puts the pairs into a new order in every pass over them."),
        "seed": seed(advanced=True).tip(
            "Seed of the shuffling, and of the noise, which is another in every iteration."
        ),
        "width": integer(SamplerSettings.width, 8, 8192, step=8).tip(f"Width {_FITTED}"),
        "height": integer(SamplerSettings.height, 8, 8192, step=8).tip(f"Height {_FITTED}"),
        "levels": integer(SamplerSettings.steps, 2, 1000, label="noise levels", advanced=True).tip(
            "Noise levels that are trained (T). Evaluations take as many steps."
        ),
        "shift": SHIFT,
        "guidance": GUIDANCE,
    }
    OPTIONAL = {
        "tag": text(hint="all of them", advanced=True).tip(
            "Only pictures with this tag. Empty: all that you have an opinion about."
        ),
        "folder": text(suggest="pair_folders", hint="my own opinions", names=Naming(OPINIONS, asks="always")).tip(
            "A folder with pairs.jsonl, whose lines name a prompt and a chosen and a rejected picture in it; or with "
            "opinions.jsonl, as a bundle has it. In ComfyUI's input folder, or one that you allow. Empty: what you clicked in "
            "the gallery."
        ),
        "held_out": number(0.2, 0, 0.9, step=0.05, label="held-out share", advanced=True).tip(
            "Share of the prompts on which nothing is trained: by them is measured how often the model agrees with you."
        ),
        "negative_prompt": NEGATIVE_PROMPT,
        "guidance_2": GUIDANCE_2,
        "batch_size": BATCH_SIZE,
        **reward_sockets(
            "A reward that judges evaluations. Its switch held out has to be on: opinions are what is trained on."
        ),
    }

    HIDDEN = {"prompt": "PROMPT", "node_id": "UNIQUE_ID"}

    @classmethod
    def VALIDATE_INPUTS(cls, tag="", folder=""):
        from ..trainer.opinions.plan import read_source

        if tag is None or folder is None:
            return True  # linked: what comes is known only when the graph runs
        return complaint("folder" if folder else "tag", read_source, folder, tag) or True

    @classmethod
    def WANTS(cls, folder="", **_):
        if folder == "":  # those of this machine
            return [Want(READ, "", OPINIONS, "folder", plain=True)]
        return super().WANTS(folder=folder)

    @classmethod
    def IS_CHANGED(cls, folder="", prompt=None, **_):
        from ..canvas import ownership
        from ..trainer.opinions.plan import source_state

        return source_state(folder), ownership.sampling_key(prompt)

    @devices.outside_inference
    def take(
        self,
        model,
        learn_from,
        pairs_per_iteration,
        index,
        shuffle,
        seed,
        tag="",
        folder="",
        held_out=0.2,
        prompt=None,
        node_id="",
        **options,
    ):
        from ..host import distributed
        from ..trainer.opinions import learning, plan

        model.make_room(prompt)
        settings = SamplerSettings.of_pairs(options)
        results.belongs(model, prompt, node_id, settings)
        planned = plan.plan(plan.read_source(folder, tag), learn_from, held_out, stopping.check_stop)
        plan.say(". ".join(planned.notes))
        trajectories, advantages = learning.take(
            planned,
            model,
            settings,
            form=learn_from,
            count=pairs_per_iteration,
            index=index,
            shuffle=shuffle,
            seed=seed,
            rewards=[options[name] for name in sorted(options) if name.startswith("reward_")],
            on_step=stopping.progress(len(distributed.share(2 * pairs_per_iteration).rows)),
        )
        return trajectories, advantages, advantages.scores, as_images(trajectories.images)
