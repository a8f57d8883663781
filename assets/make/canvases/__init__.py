"""The saved canvases in workflows/: how they are named, laid out, and made in a real ComfyUI."""
