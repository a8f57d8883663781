"""The trained part of a model: adapters, the policy, and the files that hold them."""
