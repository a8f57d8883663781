"""Networks that look at pictures, for rewards, credit and studies alike."""

from ...host.errors import Expected


class RewardError(Expected, RuntimeError, status=502):
    """A reward, or a network that looks at pictures, that failed. No answer is made up in its place."""
