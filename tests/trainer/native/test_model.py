"""A model of ComfyUI's own network, without ComfyUI."""

import contextlib
import threading
from types import SimpleNamespace

import torch

from comfyui_otca.host.devices import moving
from comfyui_otca.trainer.native.model import NativeModel


def test_a_picture_for_the_page_is_decoded_between_two_passes():
    """ComfyUI makes room for the autoencoder. Seen before: in the page's thread, amid a pass of the prompt's."""
    decoded, latents = threading.Event(), torch.zeros(1, 4)
    model = SimpleNamespace(_autoencoder=contextlib.nullcontext, _decoded=lambda part: decoded.set() or part)
    page = threading.Thread(target=NativeModel.decode, args=(model, latents))
    with moving:
        page.start()
        assert not decoded.wait(0.3)
    assert decoded.wait(60)
