#!/usr/bin/env bash
# peft 0.21.2: add_weighted_adapter with combination_type="linear" does not add up what the adapters do.
#
# Seen: two adapters of rank 4 on one layer, weights 0.5 and 0.5. The new adapter's change of the weights is not 0.5 ΔW1 + 0.5 ΔW2: it is
# off by as much as that is large (relative error 1.0). A and B are mixed each for itself, by the roots of the weights, and (A1 + A2)
# times (B1 + B2) has the cross terms B1·A2 and B2·A1 in it. With "cat" it is the sum to rounding (1e-7), at the summed rank. A
# weight of 1 and 0 is right, so that a first try looks well.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.3.5" "transformers==5.23.0" "peft==0.21.2"
"$folder/venv/bin/python" - <<'PY'
import peft
import torch
from peft import LoraConfig, get_peft_model


def error(kind, weights):
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["0"], init_lora_weights=False)
    model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(64, 64)), config)
    model.add_adapter("other", config)
    layer = model.base_model.model[0]
    wanted = sum(w * layer.get_delta_weight(name) for w, name in zip(weights, ("default", "other")))
    model.add_weighted_adapter(["default", "other"], list(weights), "mix", combination_type=kind)
    return round(((layer.get_delta_weight("mix") - wanted).norm() / wanted.norm()).item(), 3)


told = {(kind, weights): error(kind, weights) for kind in ("linear", "cat") for weights in ((0.5, 0.5), (1.0, 0.0))}
print(peft.__version__, told)
assert told["linear", (0.5, 0.5)] > 0.5
assert told["linear", (1.0, 0.0)] == told["cat", (0.5, 0.5)] == told["cat", (1.0, 0.0)] == 0
PY
