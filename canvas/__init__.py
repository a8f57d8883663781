"""What ComfyUI's canvas remembers between two prompts: whose a model is, and what the nodes show."""
