"""What cannot be tried, or does not hold, and why: of a family, or of a family and one check. Plain values, no ComfyUI."""

from __future__ import annotations

GAPS: dict[str | tuple[str, str], str] = {
    "MiniMaxH3": "refused: its network takes the video only together with its sound",
    ("ZImagePixelSpace", "fp8"): "ComfyUI's network computes positions in the type of its weights, which float8 cannot",
}

# What a row does not show.
NOTES: dict[str, str] = {
    "LTXAV": "its video alone is sampled and trained, without sound",
    "HiDream": "its router sends a token to one expert or another, so differences are taken between two such jumps",
}
