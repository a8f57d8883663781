#!/bin/sh
# All that is to be measured on a GPU, in at most 25 minutes on one of any size: bench/GPU.md and bench/gpu.json.
#
#     bench/gpu.sh [--device cuda:0] [--minutes 25] [--only PART …] [--again] [--parts FOLDER] [--report FOLDER]
#     bench/gpu.sh --device cpu --tiny        a rehearsal in small, whose figures mean nothing
#
# Each part is a process with a time limit of its own, and leaves a JSON file in bench/gpu/results/. Parts that are done are passed
# over the next time: what was stopped goes on, what failed is tried again. `--again` begins from nothing. Nothing is downloaded:
# weights are random, in the shapes of the published models. $PYTHON is the Python that has torch and this package.
exec "${PYTHON:-python}" -m comfyui_otca.bench.gpu "$@"
