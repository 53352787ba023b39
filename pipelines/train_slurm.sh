#!/usr/bin/env bash
# Train on a SLURM cluster; pre-empted or out of time, the job puts itself back in the queue.
#
#   sbatch [--nodes 2] pipelines/train_slurm.sh CONFIG [--set key=value ...]
#
# Start it from the repository's root. Two minutes before the end SLURM sends SIGTERM here, srun
# hands it on: training finishes its step, saves and exits, and goes on from there next time.
#SBATCH --job-name=medclip-train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
config=${1:?usage: sbatch train_slurm.sh CONFIG [--set key=value ...]}
read -r head < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export NODES=$SLURM_JOB_NUM_NODES GPUS=$SLURM_GPUS_ON_NODE HEAD=$head:29500 JOB=$SLURM_JOB_ID
stopped=false code=0
trap 'stopped=true; kill -TERM "$training"' TERM
srun bash pipelines/train_torchrun.sh "$config" "${@:2}" &
training=$!
wait "$training" || code=$?
if $stopped; then
  wait "$training" || true # until the checkpoint is written
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
exit "$code"
