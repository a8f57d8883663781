"""Stage 4: what is good. One node a reward, and the stack that scores a rollout by all of them."""
