#!/bin/sh
# What bench/FOLLOWING.md tells of few-step models: one is distilled, trained along a reward's gradient and by a matching loss, with
# each form of the pull to the original, and looked at with the few steps that it was made for.
#
#     bench/distilled.sh OUTPUT [STEPS]
#
# Goes on where it was stopped. About half an hour on one core.
set -e
output=$1
steps=${2:-4}
[ -e "$output/model$steps" ] || python -m comfyui_otca.bench.distilled model "$output/model$steps" --steps "$steps"
python -m comfyui_otca.bench.distilled methods "$output/methods$steps" --model "$output/model$steps" --steps "$steps"
for update in leap awm; do
    otca compare "$output/methods$steps/$update"_*.json --output "$output/trained$steps/$update" --evaluate-every 50 \
        --evaluation-seeds 6 --score judge --judge grade --features scenes-clip --seeds 3 --allow-folder "$output"
done
python -m comfyui_otca.bench.distilled table "$output/trained$steps"
