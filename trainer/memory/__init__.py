"""What an iteration needs on the GPU, phase by phase: counted from the model's configuration, not measured on a GPU.

`estimate` puts the parts of every phase together, for models of diffusers and of ComfyUI alike. `rehearsal` counts the parts of a
model of diffusers: our own code runs once on tensors that have shapes and no numbers.
"""
