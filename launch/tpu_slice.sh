#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Runs one jspec program on all hosts of a Cloud TPU slice (v5litepod-16, v6e-16
# and larger) at once, as one. The slice is made if it does not exist and kept
# afterwards.
#
#   ZONE=us-west4-a TYPE=v5litepod-16 launch/tpu_slice.sh NAME train \
#     --config configs/train/dflash.py --workdir /mnt/bucket/run ...
#   ZONE=us-west4-a TYPE=v5litepod-16 launch/tpu_slice.sh NAME serve --rows 64
#
# TYPE (v5litepod-16), VERSION and CREATE: see cloud_tpu.bash. PROGRAM is one
# that takes --all-hosts, which is added. What it reads must be on every host,
# and what it writes where all of them see it: a mounted bucket or disk.
#
# A server listens inside worker 0 only; reach it at http://localhost:8000 by
#
#   gcloud compute tpus tpu-vm ssh NAME --zone ZONE --worker 0 \
#     -- -N -L 8000:127.0.0.1:8000
#
# If one host is lost all of them end with an error: call this again, and
# training goes on from its last checkpoint.
set -euo pipefail

if [ $# -lt 2 ] || [ -z "${ZONE:-}" ]; then
  echo 'usage: ZONE=... [TYPE=...] [VERSION=...] [CREATE=0]' \
    'launch/tpu_slice.sh NAME PROGRAM [FLAGS ...]' >&2
  exit 2
fi
name=$1
program=$2
shift 2
cd "$(dirname "$0")/.."
# shellcheck source=launch/cloud_tpu.bash
source launch/cloud_tpu.bash

create "$name" v5litepod-16
send "$name" --worker all
install "$name" tpu,serve,structured,hub --worker all
# Quoted here, so that the words arrive on the VMs as they are.
words=$(printf '%q ' "$program" --all-hosts "$@")
# All at once, or the first would wait for the others in vain.
tpu ssh "$name" --worker all --command "
  cd jspec && exec .venv/bin/jspec $words
"
