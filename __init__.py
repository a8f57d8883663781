"""ComfyUI-OTCA: reinforcement-learning post-training of flow models as an editable ComfyUI graph.

ComfyUI imports this folder for its node tables, and everything else imports it as a package: it stays cheap.
"""

from .host import comfyui
from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS, listed

WEB_DIRECTORY = "./web"

__version__ = "0.2.0"  # as in pyproject.toml

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY"]

if comfyui.in_comfyui():
    from .page import settle_in

    NODE_CLASS_MAPPINGS = listed()
    settle_in()
