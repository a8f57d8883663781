#!/bin/sh
# What bench/FOLLOWING.md tells: reward gradients on CLIP-T alone for as many forwards as bench/comparison.sh's trainings have at their
# first evaluation, then one that brakes end and one without any, and the pictures of both.
#
#     bench/following.sh OUTPUT
#
# Goes on where it was stopped. About 25 minutes on one core.
set -e
output=$1
python -m comfyui_otca.bench.comparison methods "$output/methods" --world followed
follow() {
    folder=$1
    shift
    otca compare "$@" --output "$folder" --forwards 14000 --evaluations 2 --evaluation-seeds 12 --score judge --judge grade \
        --features scenes-clip --seeds 3 --learning-rates 1e-3
}
follow "$output/modes" "$output/methods/one_call.json" "$output/methods/leap.json"
follow "$output/variety" "$output"/methods/leap_variety_*.json
follow "$output/fused" "$output/methods/leap.json" "$output"/methods/leap_min_norm_*.json
long() {
    folder=$1
    shift
    otca train workflows/api/reward_gradient.json --output "$folder" $([ -e "$folder/workflow.json" ] && echo --resume) \
        --set TrainingRun.iterations=270 --set RewardGradientStep.mode=one_call --set RewardGradientStep.steps=2 "$@"
}
long "$output/braked"
long "$output/unbraked" --set TrainingRun.stop_after_decline=0 --set TrainingRun.evaluate_every=30 \
    --set RewardGradientStep.kl_coefficient=0.0
otca eval "$output/braked" --lora end="$output/unbraked" --prompts scenes_eval.txt --seeds 12 --reward scenes:strict=true \
    --reward clip_t:model=scenes-clip --output "$output/pictures"
python -m comfyui_otca.bench.comparison strip "$output/pictures" base braked end --output "$output/following.png"
