#!/usr/bin/env bash
# All stages of a config, in the order of pipelines/stages.py; what is valid already is reused.
#
#   bash pipelines/full_run.sh configs/demo.yaml [--set key=value ...]
#
# A config may name fewer stages (its `jobs` field): text alone, for example.
set -euo pipefail
cd "$(dirname "$0")/.."
config=${1:?usage: full_run.sh CONFIG [--set key=value ...]}
shift
python=${PYTHON:-python3}
# A waiting thread spins for a millisecond, then gives its core away: on a shared machine endless
# spinning costs several times the work, and never spinning costs a third of the speed.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-300000}
stages=$("$python" -m pipelines.stages --config "$config" "$@")

for stage in $stages; do
  launch=()
  if [[ $stage == train ]]; then  # Accelerate starts one process or many
    launch=(accelerate.commands.launch --num_cpu_threads_per_process 1
      --config_file "${ACCELERATE_CONFIG:-configs/accelerate/cpu.yaml}" -m)
  fi
  "$python" -m ${launch[@]+"${launch[@]}"} "pipelines.$stage" --config "$config" "$@"
done
