"""One training iteration by the public functions: from prompts to an update of the policy.

This is what the graph does in each iteration; every node calls the functions that are called here. To run it on the embedded
model: `python -m comfyui_otca.docs.one_iteration`. B = 6 samples (2 prompts, 3 each), T' = 3 trained steps, K = 2 objectives.
"""

from pathlib import Path

from comfyui_otca.trainer import grpo, rollout
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit import tcd
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.rewards.base import score_stack
from comfyui_otca.trainer.types import Advantages, Metrics, Prompts, SamplerSettings, Trajectories

ASSETS = Path(__file__).resolve().parent.parent / "assets"


def one_iteration() -> tuple[Trajectories, Advantages, Metrics]:
    # The policy: a frozen flow model with a LoRA adapter. Only the update, at the end, changes it.
    model = load_flow_model(ASSETS / "shapes-flux", lora_rank=4, lora_alpha=4.0, device="cpu")
    rewards = [reward_class("clip_t")(model=str(ASSETS / "shapes-clip"), device="cpu"), reward_class("colorfulness")()]

    # Sample a group of trajectories for every prompt by an SDE: each step adds noise, so each has a log-probability.
    # The last of the 4 steps is deterministic, and not trained.
    prompts = Prompts(texts=("a red circle", "a blue square"), positions=(0, 1))
    settings = SamplerSettings(kind="dance_sde", eta=0.5, steps=4, width=40, height=40, shift=0.0, guidance=3.5)
    trajectories = rollout.sample(model, prompts, settings, group_size=3, seed=7)

    # Score the pictures [B, H, W, 3]: one column of scores [B, K] for each reward.
    scores = score_stack(rewards, trajectories.images, trajectories.prompts, trajectories.groups)

    # When? Weights w [B, T'] of mean 1: a step gets more, the more it moved the latent towards the final one (TCD).
    credit = tcd(trajectories.latents, trajectories.final, trajectories.trained, w_min=0.5)

    # What? Each objective's advantage within its group [B, K], fused to z [B] (MOCA); then Ã = w·z, [B, T'].
    advantages = fuse(scores, credit, "moca")

    # Move the policy: the velocity at every visited point again, the ratio of the probabilities, the clipped loss, AdamW.
    metrics = grpo.update(model, trajectories, advantages, grpo.UpdateSettings(learning_rate=1e-3))
    return trajectories, advantages, metrics


if __name__ == "__main__":
    _, shown, numbers = one_iteration()
    print("scores", *zip(shown.scores.names, shown.scores.values.mean(0).tolist(), strict=True))
    print("mean weight of each step", shown.credit.weights.mean(0).tolist())
    print({name: numbers[name] for name in ("loss", "ratio/mean", "gradient_norm")})
