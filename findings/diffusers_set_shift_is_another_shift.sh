#!/usr/bin/env bash
# diffusers 0.42.1: set_shift(3) and shift=3 in the configuration give FlowMatchEulerDiscreteScheduler two different schedules.
#
# Seen: 4 steps. Configured with shift 3 the levels are 1, .858, .602, .009, 0: the lowest was shifted when the scheduler was made, and
# set_timesteps shifts it again. Made with shift 1 and set_shift(3), they are 1, .857, .601, .003, 0: shifted once. The last step
# but one ends three times as high. A model that is trained on one of them is sampled on the other by who sets the shift later.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.3.5" "diffusers==0.42.1"
"$folder/venv/bin/python" - <<'PY'
import diffusers
from diffusers import FlowMatchEulerDiscreteScheduler


def levels(scheduler):
    scheduler.set_timesteps(4)
    return [round(level, 4) for level in scheduler.sigmas.tolist()]


configured = levels(FlowMatchEulerDiscreteScheduler(shift=3.0))
later = FlowMatchEulerDiscreteScheduler(shift=1.0)
later.set_shift(3.0)
told = levels(later)
print(diffusers.__version__, {"shift=3": configured, "set_shift(3)": told})
assert configured == [1.0, 0.8577, 0.6022, 0.0089, 0.0], configured
assert told == [1.0, 0.8573, 0.6007, 0.003, 0.0], told
PY
