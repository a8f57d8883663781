#!/usr/bin/env bash
# safetensors 0.8.0: get_tensor of one open file gives the same memory each time: a write into one tensor is read out of the next.
#
# Seen: a and b are two get_tensor("w") of one safe_open, and a.zero_() makes b zero, and every later get_tensor too, though the file on
# disk stays as it is. a and b have one data_ptr. load_file called twice gives tensors of their own. So code that loads a weight,
# scales it in place and reads "the original" again from the same open file scales it twice. Clone what is to be written into.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.3.5" "safetensors==0.8.0"
"$folder/venv/bin/python" - "$folder/w.safetensors" <<'PY'
import sys

import safetensors
import torch
from safetensors.torch import load_file, save_file

path = sys.argv[1]
save_file({"w": torch.ones(4)}, path)
with safetensors.safe_open(path, "pt") as file:
    a, b = file.get_tensor("w"), file.get_tensor("w")
    a.zero_()
    again = file.get_tensor("w")
told = {"b": b.sum().item(), "read again": again.sum().item(), "load_file": load_file(path)["w"].sum().item()}
print(safetensors.__version__, told, a.data_ptr() == b.data_ptr())
assert told == {"b": 0.0, "read again": 0.0, "load_file": 4.0}
PY
