#!/usr/bin/env bash
# Train with every GPU of this machine, or of several, by torchrun.
#
#   bash pipelines/train_torchrun.sh CONFIG [--set key=value ...]
#   NODES=2 HEAD=node1:29500 bash pipelines/train_torchrun.sh CONFIG    (the same on each node)
#
# GPUS: processes on each node. The global batch stays the config's, whatever their number.
set -euo pipefail
cd "$(dirname "$0")/.."
config=${1:?usage: train_torchrun.sh CONFIG [--set key=value ...]}
shift
nodes=${NODES:-1}
gpus=${GPUS:-$(nvidia-smi --list-gpus | wc -l)}
meeting=(--standalone)
if ((nodes > 1)); then
  meeting=(--nnodes "$nodes" --rdzv-backend c10d --rdzv-id "${JOB:-medclip}"
    --rdzv-endpoint "${HEAD:?HEAD=host:port of the first node}")
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "${PYTHON:-python3}" -m torch.distributed.run "${meeting[@]}" --nproc-per-node "$gpus" -m pipelines.train \
  --config "$config" --set "train.processes=$((nodes * gpus))" "$@"
