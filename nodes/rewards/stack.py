"""The node that scores a rollout by every connected reward."""

from dataclasses import replace

from ...host import comfyui, devices, stopping
from .. import payloads, results
from ..inputs import miswired, socket, switch

MAX_REWARDS = 8


class RewardStack:
    TITLE = "Reward Stack"
    CATEGORY = "OTCA/rewards"
    DESCRIPTION = "Scores the sampled pictures by every connected reward."
    RETURN_TYPES = ("OTCA_SCORES", "IMAGE")
    RETURN_NAMES = ("scores", "table")
    OUTPUT_TOOLTIPS = ("Scores of every sample by every reward.", "The same as a picture.")
    FUNCTION = "score"
    OUTPUT_NODE = True  # its table is worth a run of its own, with nothing connected below

    @classmethod
    def INPUT_TYPES(cls):
        reward = socket("OTCA_REWARD", tip="A reward; its coefficient and held_out are set on its node.")
        return {
            "required": {"trajectories": socket("OTCA_TRAJECTORIES")},
            "optional": {
                **{f"reward_{number}": reward for number in range(1, MAX_REWARDS + 1)},
                "overlap": switch(
                    tip="Scores while the next samples are made, batch_size of the SDE Sampler at a time. Takes the memory of "
                    "both at once."
                ),
            },
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, input_types):
        if not any(name.startswith("reward_") for name in input_types):
            return "K = 0 rewards are connected. Fix: connect at least one Reward node to reward_1"
        return miswired(cls.INPUT_TYPES(), input_types) or True

    @devices.outside_inference
    def score(self, trajectories, node_id="", overlap=False, **sockets):
        from ...trainer.pictures import grids, heatmaps

        scores = self._scores(trajectories, [sockets[name] for name in sorted(sockets)], overlap)
        stills = grids.stills(trajectories.images)
        table = results.picture(lambda: heatmaps.reward_table(scores, stills))

        def payload():
            sheet = payloads.thumbnail_sheet(stills)
            name = f"otca_samples_{comfyui.running_workflow_id() or 'script'}_{node_id}.png"
            return payloads.scores(node_id, scores, comfyui.save_temporary(sheet, name))

        return results.shown(node_id, (scores, table), {"scores": payload})

    @staticmethod
    def _scores(trajectories, rewards, overlap):
        from ...trainer.rewards.base import one_by_one, score_stack, trained_first

        rewards, handle = trained_first(rewards), trajectories.overlap
        early = one_by_one(rewards)
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
