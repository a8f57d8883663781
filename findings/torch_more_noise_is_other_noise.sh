#!/usr/bin/env bash
# torch 2.13.0: on a CPU a longer randn of a seed does not begin with the shorter one, unless both are multiples of 16 long.
#
# Seen: with one seed, randn(17) has 1 of the 16 numbers of randn(16), randn(40) has 24 of the 32 of randn(32), and randn(48) begins with
# randn(32). Fewer than 16 are drawn in another way, and of a length that is no multiple of 16 the last 16 are drawn a second time. Two
# calls for 8 are not one for 16. And up to 15 numbers in float64 are those in float32 to its rounding; from 16 on they are unrelated
# (correlation 0.02 of 4096). numpy's streams go on as one would think. So "the same noise, one frame longer" is to be drawn frame
# by frame.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" - <<'PY'
import torch


def noise(*lengths, dtype=torch.float32):
    source = torch.Generator().manual_seed(0)
    return torch.cat([torch.randn(length, generator=source, dtype=dtype) for length in lengths])


def shared(longer, shorter):
    return int((noise(longer)[:shorter] == noise(shorter)).sum())


counts = {pair: shared(*pair) for pair in ((17, 16), (40, 32), (48, 32))}
calls = torch.equal(noise(8, 8), noise(16))
few = torch.equal(noise(15, dtype=torch.float64).float(), noise(15))
related = torch.corrcoef(torch.stack([noise(4096, dtype=torch.float64).float(), noise(4096)]))[0, 1].item()
print(torch.__version__, counts, {"8 + 8 is 16": calls, "15 in float64": few, "4096 in float64": round(related, 3)})
assert counts == {(17, 16): 1, (40, 32): 24, (48, 32): 32}, counts
assert not calls and few and abs(related) < 0.1
PY
