"""The gallery: the pictures in ComfyUI's folders, what their files say of how they were made, and what the user thinks of them."""
