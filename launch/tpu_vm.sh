#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Runs one jspec program on a Cloud TPU VM of one host (v5litepod-1 to -8,
# v6e-1 to -8). The VM is made if it does not exist and kept afterwards.
#
#   ZONE=us-west4-a TYPE=v5litepod-8 launch/tpu_vm.sh NAME PROGRAM [FLAGS ...]
#   ZONE=us-west4-a launch/tpu_vm.sh NAME bench step --rows 1,16
#
# TYPE (v5litepod-8), VERSION and CREATE: see cloud_tpu.bash. The committed tree
# is copied; files that a program reads must be in it or on the VM. Delete the
# VM with
#
#   gcloud compute tpus tpu-vm delete NAME --zone ZONE
set -euo pipefail

if [ $# -lt 2 ] || [ -z "${ZONE:-}" ]; then
  echo 'usage: ZONE=... [TYPE=...] [VERSION=...] [CREATE=0]' \
    'launch/tpu_vm.sh NAME PROGRAM [FLAGS ...]' >&2
  exit 2
fi
name=$1
shift
cd "$(dirname "$0")/.."
# shellcheck source=launch/cloud_tpu.bash
source launch/cloud_tpu.bash

create "$name" v5litepod-8
send "$name"
install "$name" tpu
# Quoted here, so that the words arrive on the VM as they are.
program=$(printf '%q ' "$@")
tpu ssh "$name" --command "
  cd jspec && exec .venv/bin/jspec $program
"
