#!/bin/sh
# bench/COMPARISON.md: every quickstart workflow from the same start, learning rates tuned equally, against uniform credit.
#
#     bench/comparison.sh OUTPUT [options of otca compare, instead of those below]
#
# Goes on where it was stopped. On one core a training takes about 6 s + 2 s an iteration + 3.6 s an evaluation. Kept graphs are
# asked for, since "auto" looks at the free memory, and trainings of one comparison should cost the same.
set -e
output=$1
shift
set -- --output "$output" --baseline uniform --iterations 100 --seeds 4 --learning-rates 1.5e-4 3e-4 6e-4 \
    --tuning-seeds 2 --tuning-iterations 60 --evaluate-every 20 --evaluation-seeds 4 --jobs 2 \
    --set SDESampler.keep_graph=on "$@"
for file in "$(dirname "$0")"/../workflows/api/quickstart*.json; do
    name=$(basename "$file" .json)
    case $name in
        quickstart) name=otca ;;
        quickstart_six_rewards) continue ;;
        *) name=${name#quickstart_} ;;
    esac
    set -- "$name=$file" "$@"
done
exec otca compare "$@"
