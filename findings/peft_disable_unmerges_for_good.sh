#!/usr/bin/env bash
# peft 0.21.2: a forward pass inside of `with model.disable_adapter()` unmerges a merged adapter, and it stays unmerged afterwards.
#
# Seen: after merge_adapter() `merged` is True. One call inside of the context, as for the reference of a KL term, subtracts B·A from the
# weights in place; after the context `merged` is False, and every later call computes A and B again. In bfloat16 the subtraction rounds:
# the weights are not those of before the merge (here four in ten differ), and a loop that merges again after each reference drifts:
# nothing is raised or warned of. Keep a copy of the weights for the time of the merge, and put it back.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.3.5" "transformers==5.23.0" "peft==0.21.2"
"$folder/venv/bin/python" - <<'PY'
import peft
import torch
from peft import LoraConfig, get_peft_model

torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(64, 64)).to(torch.bfloat16)
model = get_peft_model(network, LoraConfig(r=4, lora_alpha=8, target_modules=["0"], init_lora_weights=False))
layer = model.base_model.model[0]
before = layer.base_layer.weight.clone()
x = torch.randn(2, 64, dtype=torch.bfloat16)
model.merge_adapter()
merged = [layer.merged]
with model.disable_adapter():
    model(x)
model(x)
merged.append(layer.merged)
changed = (layer.base_layer.weight != before).float().mean().item()
print(peft.__version__, {"merged before and after": merged, "weights changed": round(changed, 2)})
assert merged == [True, False] and changed > 0.2
PY
