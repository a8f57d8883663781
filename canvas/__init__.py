"""The memory of ComfyUI's canvas between two prompts: whose a model is, and what the nodes show.

The one place above trainer/ that asks whether ComfyUI is there: what it offers to nodes does nothing headlessly.
"""

from ..host import comfyui


def here() -> bool:
    """Whether this process is ComfyUI's: its page shows what nodes return, and its cache holds that for as long as it likes."""
    return comfyui.in_comfyui()
