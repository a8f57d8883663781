"""What looks at pictures, for rewards, credit and studies alike."""


class RewardError(RuntimeError):
    """A reward, or a network that looks at pictures, that failed. No answer is made up in its place."""
