"""The machine: its files and folders, devices and memory, other processes, ComfyUI, and what a graph may touch of it all."""
