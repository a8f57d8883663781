#!/usr/bin/env bash
# torch 2.13.0: .item(), float() and bool() of a reduced DTensor give the value of this process alone.
#
# Seen: [1, 2, 3, NaN] in halves on two processes. x.sum().item() is 3 on the first and NaN on the second, and `x.isfinite().all()` is
# True on the first and False on the second: x looks like the whole tensor, its sum is a DTensor that waits to be added up, and item()
# takes what lies here. So `if not gradient.isfinite().all(): skip` lets one process skip a step that the other takes. full_tensor()
# before item() gives both the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.3.5"
cat > "$folder/two.py" <<'PY'
import math

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
x = distribute_tensor(torch.tensor([1.0, 2.0, 3.0, math.nan]), init_device_mesh("cpu", (2,)), [Shard(0)])
told = x.sum().item(), bool(x.isfinite().all())
whole = x.sum().full_tensor().item(), bool(x.isfinite().all().full_tensor())
print(torch.__version__, f"process {rank}: here {told}, full_tensor {whole}", flush=True)
assert x.shape == (4,) and math.isnan(whole[0]) and whole[1] is False
assert told == (3.0, True) if rank == 0 else math.isnan(told[0]) and told[1] is False
torch.distributed.destroy_process_group()
PY
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -m torch.distributed.run --standalone --nproc-per-node 2 "$folder/two.py"
