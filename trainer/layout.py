"""What a run's folder holds, by name: for the trainer, which writes it, and for those who only look. Imports nothing."""

METRICS = "metrics.jsonl"  # one object an iteration
EVALUATIONS = "evaluation.jsonl"  # one object an evaluation
WORKFLOW = "workflow.json"  # the graph in API form …
CANVAS = "canvas.json"  # … and as ComfyUI's canvas has it, where that is known
STATUS = "status.json"
LOG = "train.log"  # what a trainer printed that the page started
STOP = "stop"  # whoever makes this file asks the run to stop
PICTURES = ("samples.png", "rewards.png", "credit.png")
SAMPLES, CHECKPOINTS = "samples", "checkpoints"
ADAPTER = "lora.safetensors"
ADAPTERS = (
    ADAPTER,
    "lora_high_noise.safetensors",
    "lora_low_noise.safetensors",
)  # the last two of a model with two experts
WEIGHTS = "diffusion_pytorch_model.safetensors"  # in a folder of the network's name, where all of it was trained
