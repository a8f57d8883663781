#!/usr/bin/env bash
# Trains the workflow of this folder by the otca of this folder. It writes into this folder, and elsewhere only temporary files.
#
#   bash run.sh           trains, or continues from the last checkpoint
#   bash run.sh --check   looks whether this machine has what the training needs; trains nothing
#   bash run.sh --venv    installs the packages into the folder venv, which the two others then use
#
# Variables of the environment, each with what counts without it:
#   PYTHON         the Python to use: venv/bin/python if it is there, else python3
#   OTCA_MODELS    folders of models, separated by colons: models, in this folder
#   COMFYUI_PATH   ComfyUI's folder, where the workflow needs it: ComfyUI, in this folder
#   GPUS           processes on this machine, one to a GPU: as many as it has GPUs
#   DEVICE         cpu: all processes compute on the CPU
#   RUNS           the folder of the run's folder: runs, in this folder
#   RESTARTS       how often a training that failed is begun again, from its last checkpoint: 3
#   RESTART_SECONDS  how long it waits before that: 10
#   TAKE_OVER      1: whatever trained in the run's folder on another machine has ended. train.sbatch and sky.yaml set it
#   NNODES, NODE_RANK, MAIN_ADDRESS, MAIN_PORT
#                  several machines: how many, which of them this is (from 0), and the address and port of machine 0
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
cd -- "$here"
# shellcheck source=/dev/null
. ./settings.sh # RUN_NAME, NEEDS_COMFYUI, CUSTOM_NODES, ALLOW_HOSTS

python=${PYTHON:-}
if [ -z "$python" ]; then
  if [ -x venv/bin/python ]; then python=$here/venv/bin/python; else python=python3; fi
fi
otca=$here/ComfyUI-OTCA

if [ "${1:-}" = --venv ]; then
  "$python" -m venv --system-site-packages venv # so that a torch which is there already is used
  exec venv/bin/python -m pip install -r requirements.txt -c constraints.txt
fi

export OTCA_MODELS="$here/models${OTCA_MODELS:+:$OTCA_MODELS}"
export OTCA_MODELS_LORAS="$here/loras${OTCA_MODELS_LORAS:+:$OTCA_MODELS_LORAS}"
export OTCA_INPUT="$here/inputs" OTCA_VOTES="$here/votes" OTCA_PERMISSIONS=none
export OTCA_ALLOW_PYTHON_REWARDS="$here/rewards"
# The hub's cache is looked into where it is; what libraries would write beside it goes into this folder.
export HF_HOME="${HF_HOME:-${XDG_CACHE_HOME:-${HOME:-$here}/.cache}/huggingface}" XDG_CACHE_HOME="$here/cache"
export PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR="$here/cache/matplotlib" TRITON_CACHE_DIR="$here/cache/triton"
export TORCHINDUCTOR_CACHE_DIR="$here/cache/inductor" CUDA_CACHE_PATH="$here/cache/cuda"
if [ -n "${NEEDS_COMFYUI}" ]; then
  export COMFYUI_PATH="${COMFYUI_PATH:-$here/ComfyUI}"
  # Its own nodes look for pictures in the same folder as prompts do.
  COMFYUI_ARGUMENTS="${COMFYUI_ARGUMENTS:-} --input-directory $(printf %q "$here/inputs")"
  export COMFYUI_ARGUMENTS
fi

gpus=${GPUS:-}
if [ -z "$gpus" ]; then gpus=$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))' || echo 1); fi
nodes=${NNODES:-1}
case $gpus$nodes in
  *[!0-9]*)
    echo "run.sh: GPUS=$gpus and NNODES=$nodes are to be whole numbers. Fix: set them so, or leave them out" >&2
    exit 2
    ;;
esac

if [ "${1:-}" = --check ]; then
  shift
  exec "$python" "$otca" bundle --check "$here" --gpus "$((gpus * nodes))" "$@"
fi
if [ $# -gt 0 ]; then
  echo "run.sh: $1 is unknown. Fix: bash run.sh, bash run.sh --check or bash run.sh --venv" >&2
  exit 2
fi

run=${RUNS:-runs}/$RUN_NAME

train=(train workflow.json --output "$run" --gpus "$gpus")
if [ -n "${DEVICE:-}" ]; then train+=(--device "$DEVICE"); fi
if [ -n "${TAKE_OVER:-}" ]; then train+=(--take-over); fi
if [ -n "${NEEDS_COMFYUI}" ]; then train+=(--comfyui "$COMFYUI_PATH"); fi
for pack in "${CUSTOM_NODES[@]}"; do train+=(--custom-nodes "$pack"); done
for host in "${ALLOW_HOSTS[@]}"; do train+=(--allow-host "$host"); done

child='' signalled='' stopped=''
# Called by the traps.
# shellcheck disable=SC2317,SC2329
stop() {
  signalled=1 stopped=1
  if [ -n "$child" ]; then kill -s "$1" "$child" 2>/dev/null || true; fi
}
trap 'stop TERM' TERM HUP # HUP: the terminal is gone, as when ssh breaks off
trap 'stop INT' INT
set -m # a process group of its own for the training: Ctrl-C then reaches it once, from here

left=${RESTARTS:-3}
while true; do
  arguments=("${train[@]}")
  if [ -e "$run/workflow.json" ]; then arguments+=(--resume); fi
  "$python" "$otca" "${arguments[@]}" &
  child=$!
  code=0
  while true; do
    signalled=''
    wait "$child" && code=0 || code=$?
    if [ -z "$signalled" ]; then break; fi # else the trap ended the waiting, and the training is saving
  done
  child=''
  # 2: bad input, which no second try mends; 130 and 143: somebody stopped it, and it has saved
  case $code in 0 | 2 | 130 | 143) exit "$code" ;; esac
  if [ -n "$stopped" ] || [ "$left" -le 0 ]; then exit "$code"; fi
  left=$((left - 1))
  echo "run.sh: the training ended with exit code $code. It is begun again from its last checkpoint; $left more times if need be" >&2
  sleep "${RESTART_SECONDS:-10}"
done
