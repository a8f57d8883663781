"""What reward nodes share: their common inputs, and how a reward is built."""

from ...host import devices
from ..inputs import DEVICE, complaint, dtype, integer, number, switch, text

REWARD = ("reward", "reward model", "score image", "objective")
JUDGE = ("preference", "human preference", "quality", "image quality")


class RewardNode:
    """A reward node: its KIND is a row of `trainer.rewards.REWARDS`."""

    CATEGORY = "OTCA/rewards"
    RETURN_TYPES = ("OTCA_REWARD",)
    RETURN_NAMES = ("reward",)
    OUTPUT_TOOLTIPS = ("The scorer, for any free socket of Reward Stack.",)
    FUNCTION = "build"
    KIND: str
    HELD_OUT = False
    MODEL_INPUTS: tuple[str, ...] = ()  # inputs that name a model's folder or file

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                **cls.own_inputs(),
                "coefficient": number(1, 0.01, 100, step=0.05).tip(
                    "Weight of this reward's advantage in the fusion. To only log the reward, use held out."
                ),
            },
            "optional": {
                **cls.own_optional_inputs(),
                "held_out": switch(cls.HELD_OUT).tip(
                    "The reward is scored and logged, and never trained on: the guard against reward hacking."
                ),
                "name": text(hint="its own name", advanced=True).tip(
                    "Name of the reward in metrics. Empty: its own name."
                ),
                **cls.network_inputs(),
                "rescale": number(1, 1e-6, 1e6, step=0.01, label="factor of the score", advanced=True).tip(
                    "Factor of the score. It counts in a weighted_sum, and has no effect on advantages."
                ),
                "clip": text(label="bounds of the score", hint="0.1, 0.4", advanced=True).tip(
                    "Bounds of the rescaled score, as in 0.1, 0.4: beyond them there is nothing to win. Empty: no bounds."
                ),
            },
        }

    @classmethod
    def own_inputs(cls):
        return {}

    @classmethod
    def own_optional_inputs(cls):
        return {}

    @classmethod
    def network_inputs(cls):
        return {}

    @classmethod
    def WANTS(cls, **inputs):
        from ...host.access.wants import reads

        return [want for name in cls.MODEL_INPUTS for want in reads(inputs.get(name, ""), "a reward model", name)]

    @classmethod
    def VALIDATE_INPUTS(cls, clip=""):
        from ...trainer.rewards import parse_bounds

        return complaint("clip", parse_bounds, clip) or True

    @classmethod
    def announced(cls, name="", held_out=None, **inputs):
        """(name in metrics, held out) of what each output will be, known before anything is built."""
        from ...trainer.rewards import reward_class

        return ((name or reward_class(cls.KIND).own_name(inputs), cls.HELD_OUT if held_out is None else held_out),)

    @classmethod
    def only_of_groups(cls, groups_only=False, **_):
        """Whether, with these inputs, it may be asked about no other pictures than those that are trained on."""
        return groups_only

    @devices.outside_inference
    def build(self, coefficient, held_out=None, name="", rescale=1.0, clip="", **inputs):
        from ...trainer.rewards import parse_bounds, reward_class

        held_out = self.HELD_OUT if held_out is None else held_out
        names = {"name": name} if name else {}
        reward = reward_class(self.KIND)(coefficient=coefficient, held_out=held_out, **names, **inputs)
        reward.rescale, reward.bounds = rescale, parse_bounds(clip)
        return (reward,)


class NetworkReward(RewardNode):
    """A reward that asks a network: where that lives, and how many pictures it takes at once."""

    @classmethod
    def network_inputs(cls):
        return {
            "device": DEVICE,
            "dtype": dtype(advanced=True).tip(
                "Precision of the network. auto: what its published scores were made with."
            ),
            "batch_size": integer(0, 0, 4096, advanced=True).tip("Pictures to one forward pass. 0: all at once."),
            "offload": switch(advanced=True).tip("Between two uses the network waits in main memory."),
        }
