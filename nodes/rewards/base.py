"""Parts that reward nodes share: their common inputs, and how a reward is built."""

from collections.abc import Mapping

from ...host import devices
from ...host.access.wants import REWARD_MODEL, Naming
from ..inputs import DEVICE, Input, Node, dtype, integer, number, switch, text

REWARD = ("reward", "reward model", "score image", "objective")
WEIGHTS = Naming(REWARD_MODEL)  # of inputs that name a model's folder or file
JUDGE = ("preference", "human preference", "quality", "image quality")


class RewardNode(Node):
    """A reward node. REQUIRED and OPTIONAL have its own inputs.

    KIND: what `otca score --reward` calls it. CLASS: where its `Reward` is, in trainer/rewards: file.Class. One in a file of its
    own (brightness.py) has a `scorer` and an EXAMPLE instead.
    """

    CATEGORY = "OTCA/rewards/more"
    RETURN_TYPES = ("OTCA_REWARD",)
    RETURN_NAMES = ("reward",)
    OUTPUT_TOOLTIPS = ("The scorer, for any free socket of Reward Stack.",)
    FUNCTION = "build"
    KIND: str
    CLASS: str = ""
    EXAMPLE: Mapping[str, object] = {}
    HELD_OUT = False
    COMPARES = False  # whether it scores a picture against the others of its group

    NETWORK: Mapping[str, Input] = {}  # the inputs of a network

    @classmethod
    def scorer(cls):
        """The class of its reward; it imports what that needs, and so not when nodes are listed."""
        from ...trainer.rewards import located

        return located(cls.CLASS)

    @classmethod
    def inputs(cls):
        coefficient = number(1, 0.01, 100, step=0.05).tip(
            "Weight of this reward's advantage in the fusion. To only log the reward, use held out."
        )
        optional = {
            **cls.OPTIONAL,
            "held_out": switch(cls.HELD_OUT).tip(
                "The reward is scored and logged, and never trained on: the guard against reward hacking."
            ),
            "name": text(hint="its own name", advanced=True).tip("Name of the reward in metrics. Empty: its own name."),
            **cls.NETWORK,
            "clip": text(label="bounds of the score", hint="0.1, 0.4", advanced=True)
            .tip("Bounds of the score, as in 0.1, 0.4: beyond them there is nothing to win. Empty: no bounds.")
            .checked("trainer.rewards.base:parse_bounds"),
        }
        return {**cls.REQUIRED, "coefficient": coefficient}, optional

    @classmethod
    def announced(cls, name="", held_out=None, **inputs):
        """(name in metrics, held out) of what each output will be, known before anything is built."""
        return ((name or cls.scorer().own_name(inputs), cls.HELD_OUT if held_out is None else held_out),)

    @classmethod
    def has_gradient(cls):
        """Whether Reward Gradient Step can follow it."""
        return cls.scorer().has_gradient()

    @classmethod
    def only_of_groups(cls, groups_only=False, **_):
        """Whether, with these inputs, it may be asked about no other pictures than those that are trained on."""
        return groups_only

    @devices.outside_inference
    def build(self, coefficient, held_out=None, name="", clip="", **inputs):
        from ...trainer.rewards import reward_class
        from ...trainer.rewards.base import parse_bounds

        held_out = self.HELD_OUT if held_out is None else held_out
        names = {"name": name} if name else {}
        reward = reward_class(inputs.pop("kind", self.KIND))(
            coefficient=coefficient, held_out=held_out, **names, **inputs
        )
        reward.bounds = parse_bounds(clip)
        return (reward,)


class NetworkReward(RewardNode):
    """A reward that asks a network: where that lives, and how many pictures it takes at once."""

    NETWORK = {
        "device": DEVICE,
        "dtype": dtype(advanced=True).tip("Precision of the network. auto: what its published scores were made with."),
        "batch_size": integer(0, 0, 4096, advanced=True).tip("Pictures to one forward pass. 0: all at once."),
        "offload": switch(advanced=True).tip("Between two uses the network waits in main memory."),
    }


class SeveralRewards(RewardNode):
    """A node of several rewards that one network or server gives, each with a socket of its own.

    One that shall weigh otherwise, or be held out, is a second node's: the two share what they ask.
    """

    ENDS: tuple[str, ...]  # of the rewards' names in metrics
    SHOWN_END: str  # one of them
    MORE: Mapping[str, Input] = {}  # inputs after all others

    @classmethod
    def inputs(cls):
        required, optional = super().inputs()
        # Canvases hold values by place, and had such a pair for each reward.
        last = {"coefficient": required.pop("coefficient"), "held_out": optional.pop("held_out").advanced()}
        optional["name"] = optional["name"].tip(
            f"Start of the rewards' names in metrics. Empty: {cls.KIND}, as in {cls.KIND}_{cls.SHOWN_END}."
        )
        return required, {**optional, **cls.MORE, **last}

    @classmethod
    def names(cls, name, inputs):
        """Each reward's name in metrics."""
        return [f"{name or cls.KIND}_{end}" for end in cls.ENDS]

    def own(self, inputs):
        """The settings of each reward; takes those inputs that the rewards do not share out of `inputs`."""
        raise NotImplementedError

    @classmethod
    def announced(cls, name="", held_out=False, **inputs):
        return tuple((own, held_out) for own in cls.names(name, inputs))

    @devices.outside_inference
    def build(self, coefficient=1.0, held_out=False, name="", clip="", **inputs):
        names, settings, rewards = self.names(name, inputs), self.own(inputs), ()
        for own, more in zip(names, settings, strict=True):
            rewards += super().build(coefficient, held_out, own, clip, **more, **inputs)
        return rewards
