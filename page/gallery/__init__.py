"""The gallery: the pictures in ComfyUI's folders, how they were made, and what the user thinks of them."""
