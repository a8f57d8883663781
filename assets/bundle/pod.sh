#!/usr/bin/env bash
# Trains as run.sh does, in a container that is begun again whenever its command ends, as a pod of RunPod: afterwards it stops
# the pod, so that its GPU costs nothing more, or waits where it cannot. A stop is handed on, and saved.
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")" || exit 2

training='' stopped=''
# Called by the trap.
# shellcheck disable=SC2317,SC2329
stop() {
  stopped=1
  kill -s TERM "$training" 2>/dev/null || true
}
bash run.sh &
training=$!
trap stop TERM INT
code=0
wait "$training" || code=$?
if [ -n "$stopped" ]; then
  wait "$training"
  exit $?
fi
echo "pod.sh: the training ended with exit code $code" >&2
if [ -n "${RUNPOD_POD_ID:-}" ] && command -v runpodctl >/dev/null; then runpodctl stop pod "$RUNPOD_POD_ID"; fi
exec sleep "${WAITS:-infinity}"
