"""A run: its loop, its folder and what is kept there."""
