#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Runs one jspec program on the NVIDIA GPUs of several Slurm nodes, a process for
# each GPU. From the root of the repository, which all nodes must see:
#
#   sbatch --job-name dflash --nodes 2 --gpus-per-node 8 launch/slurm.sh train \
#     --config configs/train/dflash.py --workdir /shared/run ...
#
# PROGRAM is one that takes --all-hosts, which is added. Before the time is up,
# and when the job is preempted, the step in hand is saved and the job goes back
# into the queue, where it resumes. Jobs of one name run one after the other.
# CUDA=12 for CUDA 12.
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@180
#SBATCH --dependency=singleton
set -euo pipefail

if [ $# -lt 1 ] || [ -z "${SLURM_JOB_ID:-}" ]; then
  echo 'usage: sbatch --job-name NAME --nodes N --gpus-per-node N' \
    'launch/slurm.sh PROGRAM [FLAGS ...]' >&2
  exit 2
fi
program=$1
shift
gpus=${SLURM_GPUS_ON_NODE:-0}
if [ "$gpus" = 0 ]; then
  echo 'error: this job has no GPUs: sbatch --gpus-per-node N' >&2
  exit 2
fi
# Slurm runs a copy of this script from elsewhere.
cd "$SLURM_SUBMIT_DIR"

extra=gpu
if [ "${CUDA:-13}" = 12 ]; then
  extra=gpu-cuda12
fi
make .venv
.venv/bin/pip install --quiet --editable ".[$extra]"

status=0
# JAX gives every process the GPU of its number, so each must see all.
srun --kill-on-bad-exit=1 --gpu-bind=none \
  --ntasks="$((SLURM_JOB_NUM_NODES * gpus))" --ntasks-per-node="$gpus" \
  --cpus-per-task="$((SLURM_CPUS_ON_NODE / gpus))" \
  .venv/bin/jspec "$program" --all-hosts "$@" || status=$?
# 143: SIGTERM came, and the step in hand was saved.
if [ "$status" = 143 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
