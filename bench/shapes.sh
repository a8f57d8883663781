#!/bin/sh
# Every method that has a workflow for the embedded model, and two variants of OTCA (bench/shapes/), from the same start,
# learning rates tuned equally, against uniform credit.
#
#     bench/shapes.sh OUTPUT [options of otca compare, instead of those below]
#
# Goes on where it was stopped. On one core a training takes about 6 s + 2 s an iteration + 3.6 s an evaluation (stepwise_flow_grpo
# several times that). Kept graphs are asked for, since "auto" looks at the free memory, and trainings of one comparison should cost
# the same.
set -e
output=$1
shift
set -- --output "$output" --baseline uniform --iterations 48 --seeds 5 --learning-rates 3e-4 6e-4 1.2e-3 2.4e-3 \
    --tuning-seeds 1 --evaluate-every 12 --evaluation-seeds 2 --jobs 2 \
    --set SDESampler.keep_graph=on "$@"
here=$(dirname "$0")
for name in vipo pcpo stepwise_flow_grpo mix_grpo flow_grpo dance_grpo moca_only tcd_only otca; do
    set -- "$here/../workflows/api/$name.json" "$@"
done
exec otca compare "uniform=$here/../workflows/api/uniform.json" "$here"/shapes/*.json "$@"
