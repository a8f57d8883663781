"""The server and the run folders of tests/server, for attacks on them."""

from comfyui_otca.tests.page.conftest import claimed_elsewhere, made, site, stand_in, this_process, until  # noqa: F401
from comfyui_otca.tests.trainer.rewards.conftest import serve  # noqa: F401
