"""Questions about training what ComfyUI has loaded, answered by a program inside ComfyUI's interpreter: see `inside.py`."""
