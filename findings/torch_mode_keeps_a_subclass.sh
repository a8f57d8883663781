#!/usr/bin/env bash
# torch 2.13.0: under a TorchDispatchMode that changes nothing, `torch.Tensor(x)` of a subclass gives the subclass back.
#
# Seen: without a mode `torch.Tensor(x)` is how a subclass is left, and its type is torch.Tensor. Inside of a mode whose __torch_dispatch__
# only calls the function that it is given, the type is the subclass again: that call goes through __torch_function__ a second time.
# A subclass whose __init__ needs more than a tensor raises a TypeError there. Calling the function under
# torch._C.DisableTorchFunctionSubclass gives torch.Tensor, as without a mode.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" - <<'PY'
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Weights(torch.Tensor):
    pass


class Passes(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Leaves(Passes):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


weights = torch.ones(2).as_subclass(Weights)
kinds = {"no mode": type(torch.Tensor(weights)).__name__}
for mode in (Passes, Leaves):
    with mode():
        kinds[mode.__name__] = type(torch.Tensor(weights)).__name__
print(torch.__version__, kinds)
assert kinds == {"no mode": "Tensor", "Passes": "Weights", "Leaves": "Tensor"}, kinds
PY
