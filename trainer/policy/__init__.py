"""What is trained of a model: adapters, the policy, and the files that hold them."""
