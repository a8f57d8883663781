"""The models that ComfyUI has loaded: MODEL, CLIP and VAE as its nodes hand them on, made trainable.

This room and host/ are the only ones that import ComfyUI's packages, and only while they run inside ComfyUI or with it.
"""
