"""Does it fit: what an iteration needs on the GPU, phase by phase. Counted, not measured on a GPU.

`needs.read` makes a `Case` of a workflow, `Case.needs` says GB a phase, and `Case.sentence` whether that fits and what makes it
fit. What a model holds and what a call of it takes is rehearsed for a model of diffusers (`rehearsal`: our own code runs once on
tensors that have shapes and no numbers), and counted by its blocks for one that ComfyUI loaded (`native`).
"""
