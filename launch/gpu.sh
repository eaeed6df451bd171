#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Trains on the NVIDIA GPUs of this host, then measures what verifying costs.
#
#   launch/gpu.sh ANSWERS.jsonl WORKDIR [--config.KEY=VALUE ...]
#
# Every GPU takes rows of the batch: data.num_rows must be a multiple of their
# number. A second call with the same arguments resumes. CUDA=12 for CUDA 12.
set -euo pipefail

if [ $# -lt 2 ]; then
  echo 'usage: launch/gpu.sh ANSWERS.jsonl WORKDIR [--config.KEY=VALUE ...]' >&2
  exit 2
fi
answers=$(realpath "$1")
workdir=$(realpath -m "$2")
shift 2
cd "$(dirname "$0")/.."

extra=gpu
if [ "${CUDA:-13}" = 12 ]; then
  extra=gpu-cuda12
fi
make .venv
.venv/bin/pip install --quiet --editable ".[$extra]"
.venv/bin/python - <<'PYTHON'
import jax
if jax.default_backend() != 'gpu':
  raise SystemExit('error: jax sees no GPU: check nvidia-smi and the driver')
PYTHON

.venv/bin/jspec train --config configs/train/dflash.py --workdir "$workdir" \
  "--config.data.answers=$answers" "--config.data.store=$workdir-taps" "$@"
.venv/bin/jspec bench step --drafter "$workdir/export" --json "$workdir/step.json"
