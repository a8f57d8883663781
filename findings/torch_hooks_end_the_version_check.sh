#!/usr/bin/env bash
# torch 2.13.0: saved-tensor hooks that change nothing turn an error about a write in place into a wrong gradient.
#
# Seen: y = a², a = 2w, and a is written over before the backward pass. Plainly, backward raises a RuntimeError: what it needs has been
# modified by an in-place operation. Under torch.autograd.graph.saved_tensors_hooks(identity, identity) nothing is raised, and the
# gradient is that at the new a: 28 where d(2w)²/dw = 8w is 24. The version is compared for what autograd keeps by itself, and not
# for what a hook gives back. So hooks that hand tensors back as they came have to look for writes themselves, or copy.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" - <<'PY'
import contextlib

import torch
from torch.autograd.graph import saved_tensors_hooks


def gradient(around):
    w = torch.tensor(3.0, requires_grad=True)
    a = 2 * w
    with around:
        y = a.square()
    a.add_(1)
    try:
        y.backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return w.grad.item()


plain = gradient(contextlib.nullcontext())
hooked = gradient(saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor))
copied = gradient(saved_tensors_hooks(torch.Tensor.clone, lambda tensor: tensor))
print(torch.__version__, {"plain: refused": plain, "hooks": hooked, "hooks that copy": copied})
assert (plain, hooked, copied) == (True, 28.0, 24.0), (plain, hooked, copied)
PY
