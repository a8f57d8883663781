"""Run by ComfyUI's own interpreter: `typed.py REPOSITORY`. Each line of the input is JSON of the words that a user types behind
`otca`, and is answered by a line of JSON: [exit code, what was printed]. One process, since importing ComfyUI takes longest."""

import contextlib
import importlib.util
import io
import json
import sys

spec = importlib.util.spec_from_file_location(
    "comfyui_otca", f"{sys.argv[1]}/__init__.py", submodule_search_locations=[sys.argv[1]]
)
package = sys.modules["comfyui_otca"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)

from comfyui_otca.__main__ import main  # noqa: E402

for line in sys.stdin:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(json.loads(line))
    print(json.dumps([code, printed.getvalue()]), flush=True)
