"""The parts of updates of the policy."""
