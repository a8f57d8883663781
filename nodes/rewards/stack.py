"""The nodes that ask all connected rewards: of a rollout, and of any pictures."""

from dataclasses import replace

from ...canvas import payloads, results
from ...host import comfyui, devices, stopping
from ...host.access.permissions import PICTURES
from ...host.access.wants import Naming
from ..inputs import Node, complaint, integer, lines, miswired, socket, switch, text
from .base import JUDGE, REWARD

MAX_REWARDS = 8
NO_PICTURES = "images: there are no pictures. Fix: connect a node that gives some, or name a folder"


def reward_sockets(tip="A reward; its coefficient and held out are set on its node."):
    return {f"reward_{number}": socket("OTCA_REWARD").tip(tip) for number in range(1, MAX_REWARDS + 1)}


class _AsksRewards(Node):
    """Parts that both nodes share: the sockets, and the table that they show."""

    CATEGORY = "OTCA/rewards"
    FUNCTION = "score"
    OUTPUT_NODE = True  # its table is worth a run of its own, with nothing connected below
    HIDDEN = {"node_id": "UNIQUE_ID"}

    @classmethod
    def VALIDATE_INPUTS(cls, input_types):
        if not any(name.startswith("reward_") for name in input_types):
            return "reward_1: no reward is connected. Fix: connect a Reward node to it"
        return miswired(cls.INPUT_TYPES(), input_types) or True

    @staticmethod
    def table(scores, stills):
        """The table as ComfyUI's IMAGE."""
        from ...trainer.pictures import heatmaps

        return results.picture(lambda: heatmaps.reward_table(scores, stills))

    @staticmethod
    def shown(node_id, outputs, scores, stills, **ranking):
        """The node's outputs, with the table for the page; `ranking` as `payloads.scores` takes it. The pictures that were
        edited are shown beside what became of them."""
        from ...trainer.rewards.sources import beside

        def payload():
            sources, places = beside(scores.prompts, scores.rewards)
            ranking["beside"] = [None if place is None else len(stills) + place for place in places]
            sheet = payloads.thumbnail_sheet([*stills, *sources])
            name = f"otca_samples_{comfyui.running_workflow_id() or 'script'}_{node_id}.png"
            return payloads.scores(node_id, scores, comfyui.save_temporary(sheet, name), **ranking)

        return results.shown(node_id, outputs, {"scores": payload})


class RewardStack(_AsksRewards):
    TITLE = "Reward Stack"
    DESCRIPTION = "Reward stack: scores the sampled pictures by every connected reward."
    SEARCH_ALIASES = [*REWARD, "reward stack", "score samples", "score images", "rewards", "multi-reward"]
    ESSENTIALS_CATEGORY = "Training"
    RETURN_TYPES = ("OTCA_SCORES", "IMAGE")
    RETURN_NAMES = ("scores", "table")
    OUTPUT_TOOLTIPS = ("Scores of every sample by every reward.", "The same as a picture.")

    REQUIRED = {"trajectories": socket("OTCA_TRAJECTORIES")}
    OPTIONAL = {
        **reward_sockets(),
        "overlap": switch(label="score while sampling").tip(
            "Scores while the next samples are made, as many at a time as the batch size of SDE Sampler. Takes "
            "the memory of both at once."
        ),
    }

    @devices.outside_inference
    def score(self, trajectories, node_id="", overlap=False, **sockets):
        from ...trainer.credit.steps import plain
        from ...trainer.pictures import grids

        scores = self._scores(trajectories, [sockets[name] for name in sorted(sockets)], overlap)
        scores = replace(scores, plain=plain(trajectories))
        stills = grids.stills(trajectories.images)
        return self.shown(node_id, (scores, self.table(scores, stills)), scores, stills)

    @staticmethod
    def _scores(trajectories, rewards, overlap):
        from ...trainer.rewards.base import one_by_one, score_stack, trained_first

        rewards, handle = trained_first(rewards), trajectories.overlap
        early = one_by_one(rewards)
        overlap = overlap and not any(reward.asks_comfyui for reward in early)
        scored = handle.take(trajectories.images, early) if overlap else None
        # In the same parts with overlap and without: a network's rounding may depend on how many pictures it sees.
        size = trajectories.settings.batch_size if overlap else 0
        parts = scored.parts() if scored else ()
        turns = -(-len(trajectories.images) // (size or len(trajectories.images)))
        steps = stopping.progress(len(early) * turns + len(rewards) - len(early))
        scores = score_stack(
            rewards, trajectories.images, trajectories.prompts, trajectories.groups, steps, size, parts
        )
        (handle.expect if overlap else handle.release)(early)
        return replace(scores, waited=scored.waited) if scored else scores


class ScoreImages(_AsksRewards):
    TITLE = "Score Images"
    DESCRIPTION = "Scores any pictures or videos by every connected reward, ranks them, and gives the best ones on."
    SEARCH_ALIASES = [*REWARD, *JUDGE, "rank images", "best of n", "pick best", "sort images", "aesthetic score"]
    RETURN_TYPES = ("IMAGE", "IMAGE", "FLOAT", "FLOAT", "INT", "IMAGE")
    RETURN_NAMES = ("best", "ranked", "scores", "totals", "places", "table")
    OUTPUT_LABELS = {"best": "best pictures", "ranked": "ranked pictures", "places": "ranks"}
    OUTPUT_IS_LIST = (False, False, True, True, True, False)
    RUN_AT_END = True  # headlessly once, when training is done, with the samplers that it needs
    OUTPUT_TOOLTIPS = (
        "The best pictures, as many as keep says; of videos their frames.",
        "All pictures, best first; of videos their frames.",
        "Every score as the reward gave it: all pictures' by the first reward, then by the next. NaN: no score.",
        "What the pictures are ranked by, in the order of images: the sum of coefficient × standardised score.",
        "Each picture's rank, in the order of images; the best one has 1.",
        "The scores as a picture.",
    )

    REQUIRED = {
        "prompt": lines(hint="Prompt: what the pictures should show").tip(
            "What the pictures should show. Rewards that only look at a picture do not need it."
        ),
        "keep": integer(1, 1, 4096).tip("How many of the best pictures (or videos) to output."),
    }
    OPTIONAL = {
        "images": socket("IMAGE").tip("A batch of pictures, or frames of videos, if no folder is named."),
        **reward_sockets(),
        "prompt_per_image": switch(advanced=True).tip(
            "On: each line of prompt belongs to one picture (or video), in their order. Off: all of the text is the "
            "prompt of all pictures."
        ),
        "video": switch(advanced=True).tip("On: the images are frames, and videos are scored."),
        "frames": integer(0, 0, 4096, advanced=True).tip(
            "Frames of each video, where video is on. 0: all images are one video."
        ),
        "folder": text(
            suggest="picture_folders", hint="input/cats, output, output/cats", names=Naming(PICTURES, asks="always")
        ).tip(
            "A folder of pictures in ComfyUI's input or output folder, with those below it, in place of images. What "
            "cannot be read is named and left out."
        ),
        "limit": integer(100, 1, 4096, label="most pictures").tip("The first so many pictures of the folder, by name."),
        "save_as": text(label="save best first in", hint="a name; empty: nothing is saved").tip(
            "A new folder of this name in otca_ranked of ComfyUI's output folder gets all pictures, best first, with "
            "their scores in the files, and a table of them."
        ),
    }

    @classmethod
    def VALIDATE_INPUTS(cls, input_types, folder="", limit=100, save_as=""):
        from ...host.text import plain_name
        from ...trainer.rewards.folder import find

        if wrong := complaint("save_as", plain_name, save_as or None):
            return wrong
        if not folder and not {"images", "folder"} & set(input_types):
            return NO_PICTURES
        if folder and "images" in input_types:
            return f"folder: {folder!r} is named, and images is connected. Fix: empty folder, or disconnect images"
        wrong = super().VALIDATE_INPUTS(input_types)
        return wrong if wrong is not True else complaint("folder", find, folder or None, limit or 1) or True

    @classmethod
    def IS_CHANGED(cls, folder="", limit=100, **_):
        from ...trainer.rewards.folder import state

        return state(folder, limit) if folder else ""

    @devices.outside_inference
    def score(
        self,
        images=None,
        prompt="",
        keep=1,
        node_id="",
        prompt_per_image=False,
        video=False,
        frames=0,
        folder="",
        limit=100,
        save_as="",
        **sockets,
    ):
        from ...trainer.pictures import grids
        from ...trainer.rewards import folder as folders
        from ...trainer.rewards import ranking

        rewards = [sockets[name] for name in sorted(sockets)]
        if folder:
            files = folders.find(folder, limit)
            steps = stopping.progress(len(files.names))
            samples, ranked, names, notes = folders.rank(files, rewards, prompt, prompt_per_image, steps)
        elif images is None:  # a linked folder's name came out empty
            raise ValueError(NO_PICTURES)
        else:
            samples, names, notes = ranking.samples_of(images, frames if video else None), (), []
            prompts = ranking.prompts_of(prompt, len(samples), prompt_per_image)
            steps = stopping.progress(len(rewards))
            ranked = ranking.rank(rewards, ranking.as_pictures(samples), prompts, steps)
        in_order = samples[ranked.order]
        stills = grids.stills(ranking.as_pictures(samples))
        if save_as:
            picture = folders.reader(files, names) if folder else lambda number: payloads.picture_of(stills[number])
            notes = [*notes, folders.save(save_as, ranked, names, picture)]
        outputs = (
            *(pictures.reshape(-1, *samples.shape[-3:]) for pictures in (in_order[:keep], in_order)),
            *(ranked.columns(), ranked.totals.tolist(), ranked.places),
            self.table(ranked.as_one_group(), stills),
        )
        more = {"standings": ranked.standings, "places": ranked.places, "totals": ranked.totals, "said": notes}
        return self.shown(node_id, outputs, ranked.scores, stills, names=names, **more)
