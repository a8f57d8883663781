#!/bin/sh
# The methods of bench/comparison.py in the scenes world, as bench/COMPARISON.md tells: one training of each, then learning rates
# tuned by three seeds and five other seeds for those that a conclusion names.
#
#     bench/comparison.sh OUTPUT [options of otca compare]
#
# Goes on where it was stopped. A training takes about a minute on one core; all of it about an hour on two.
set -e
output=$1
shift
methods=$output/methods
python -m comfyui_otca.bench.comparison methods "$methods"
set -- --output "$output" --baseline uniform --forwards 28000 --evaluations 4 --evaluation-seeds 4 \
    --score judge --judge grade --features scenes-clip --jobs 2 "$@"
otca compare "$methods"/*.json "$@" --screen --learning-rates 1.2e-3
otca compare "$methods"/uniform.json "$methods"/uniform_5_steps.json "$methods"/awm_5_steps_2_prompts.json \
    "$methods"/dgpo.json "$@" --seeds 5 --learning-rates 6e-4 1.2e-3 2.4e-3
