#!/usr/bin/env bash
# torch 2.13.0: on a CPU two seeds that differ by a multiple of 2^32 give the same random numbers.
#
# Seen: manual_seed takes 64 bits, `initial_seed` gives all of them back, and randn of the seeds 5, 5 + 2^32 and 5 + 2^63 is equal to the
# bit. The Mersenne Twister behind it is begun with the lower half alone. numpy's default_rng uses all bits. So of seeds that were
# drawn from 64 bits, or made by hashing, two in 77,000 are the same with a probability of one half, and a user's "other" large seed
# may be an old one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import torch

seeds = [5, 5 + 2**32, 5 + 2**63]
sources = [torch.Generator().manual_seed(seed) for seed in seeds]
kept = [source.initial_seed() for source in sources]
drawn = [torch.randn(1000, generator=source) for source in sources]
same = [torch.equal(drawn[0], other) for other in drawn[1:]]
other = [bool((np.random.default_rng(5).normal(size=9) == np.random.default_rng(seed).normal(size=9)).all()) for seed in seeds[1:]]
print(torch.__version__, kept, {"torch": same, "numpy": other})
assert (kept, same, other) == (seeds, [True, True], [False, False])
PY
