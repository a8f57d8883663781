#!/bin/sh
# Reward gradients beside the best matching loss and GRPO, on CLIP-T alone, as bench/FOLLOWING.md tells: equal forwards, three seeds
# at the better of two rates.
#
#     bench/following.sh OUTPUT [options of otca compare]
set -e
output=$1
shift
python -m comfyui_otca.bench.comparison methods "$output/methods" --world followed
set -- --output "$output" --baseline uniform --forwards 14000 --evaluations 2 --evaluation-seeds 12 \
    --score judge --judge grade --features scenes-clip --jobs 1 --seeds 3 --tuning-seeds 1 "$@"
cd "$output/methods"
otca compare uniform.json awm_5_steps_2_prompts.json dgpo.json leap.json one_call.json "$@" \
    --rates uniform=1.2e-3,2.4e-3 --rates awm_5_steps_2_prompts=6e-4,1.2e-3 --rates dgpo=6e-4,1.2e-3 \
    --rates leap=1e-3,2e-3 --rates one_call=1e-3,2e-3
