#!/usr/bin/env bash
# comfy-kitchen 0.2.40: on a CPU, functions that compute in plain torch raise in the backward pass, and others of the library do not.
#
# Seen: adaln, rms_adaln, na3d and group_norm_silu_pad3d return what their own `backends.eager` form returns, to the bit, with
# requires_grad set; backward then raises "no autograd formula was registered". The eager forms have a right gradient, and so has
# rms_gated_residual of the same library, which is no custom operator there. So neither a forward pass nor a look at requires_grad
# shows which of its functions may stand in a network that is trained: each has to be tried backwards.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.3.5" "packaging==25.0" "comfy-kitchen==0.2.40"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import comfy_kitchen
import torch
from comfy_kitchen.backends import eager

torch.manual_seed(0)
draw = torch.randn
given = {
    "adaln": (draw(2, 6, 8), draw(2, 1, 8), draw(2, 1, 8), 1e-6),
    "rms_adaln": (draw(2, 6, 8), draw(2, 1, 8), draw(2, 1, 8), 1e-6),
    "na3d": (*(draw(1, 3, 4, 4, 2, 8) for _ in range(3)), [3, 3, 3], None, 1.0),
    "group_norm_silu_pad3d": (draw(1, 32, 2, 4, 4), draw(32), draw(32), 32, 1e-6, [1, 1, 1, 1, 0], True),
    "rms_gated_residual": (draw(2, 6, 8), draw(8), draw(2, 6, 8), draw(2, 1, 8)),
}
seen = {}
for name, arguments in given.items():
    x = arguments[0].requires_grad_()
    made = {where: getattr(where, name)(x, *arguments[1:]) for where in (comfy_kitchen, eager)}
    same = torch.equal(*made.values()) and all(value.requires_grad for value in made.values())
    ends = []
    for value in made.values():
        try:
            ends.append(bool(torch.autograd.grad(value.sum(), x)[0].isfinite().all()))
        except RuntimeError as error:
            ends.append("no autograd formula" in str(error) and "raises")
    seen[name] = (same, *ends)
print(version("comfy-kitchen"), torch.__version__, seen)
raising = ("adaln", "rms_adaln", "na3d", "group_norm_silu_pad3d")
assert seen == {name: (True, "raises" if name in raising else True, True) for name in given}
PY
