"""The server and the run folders of tests/server, for attacks on them."""

from comfyui_otca.tests.page.conftest import made, site, stand_in, this_process, until  # noqa: F401
