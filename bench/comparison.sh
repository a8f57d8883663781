#!/bin/sh
# Seven methods of bench/comparison.py in the scenes world, as bench/COMPARISON.md tells: the learning rate of each is chosen by one
# seed, then each is trained with six others. Any other method goes the same way, or by `otca compare … --screen` for a first look.
#
#     bench/comparison.sh OUTPUT [options of otca compare]
#
# Goes on where it was stopped. A training takes 1.4 minutes of one core with its evaluations; all of it an hour and a half.
set -e
output=$1
shift
methods=$output/methods
python -m comfyui_otca.bench.comparison methods "$methods"
otca compare "$methods"/uniform.json "$methods"/tcd_prediction.json "$methods"/inverse_variance.json "$methods"/first_5_steps.json \
    "$methods"/uniform_5_steps.json "$methods"/awm_5_steps_2_prompts.json "$methods"/dgpo.json --output "$output" --baseline uniform \
    --forwards 28000 --evaluations 2 --evaluation-seeds 12 --score judge --judge grade --features scenes-clip \
    --learning-rates 6e-4 1.2e-3 2.4e-3 --tuning-seeds 1 --seeds 6 "$@"
python -m comfyui_otca.bench.comparison rewards "$output"
