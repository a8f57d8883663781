"""The server and the run folders of tests/server, for attacks on them."""

from comfyui_otca.tests.page.conftest import made, site, this_process, until  # noqa: F401
