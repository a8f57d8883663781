"""A person's own choices as a reward: votes on each prompt's pictures, their file, and what is learned of them."""
