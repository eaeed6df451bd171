#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Runs one jspec program on a Cloud TPU VM of one host (v5litepod-1 to -8,
# v6e-1 to -8). The VM is made if it does not exist and kept afterwards.
#
#   ZONE=us-west4-a TYPE=v5litepod-8 launch/tpu_vm.sh NAME PROGRAM [FLAGS ...]
#   ZONE=us-west4-a launch/tpu_vm.sh NAME bench step --rows 1,16
#
# The committed tree is copied; files that a program reads must be in it or on
# the VM. Delete the VM with
#
#   gcloud compute tpus tpu-vm delete NAME --zone ZONE
set -euo pipefail

if [ $# -lt 2 ] || [ -z "${ZONE:-}" ]; then
  echo 'usage: ZONE=... [TYPE=...] [VERSION=...] launch/tpu_vm.sh NAME' \
    'PROGRAM [FLAGS ...]' >&2
  exit 2
fi
name=$1
shift
type=${TYPE:-v5litepod-8}
version=${VERSION:-v2-alpha-tpuv5-lite}
cd "$(dirname "$0")/.."

if ! gcloud compute tpus tpu-vm describe "$name" --zone "$ZONE" >/dev/null; then
  if [ "${CREATE:-1}" = 0 ]; then
    echo "error: no TPU VM $name in $ZONE" >&2
    exit 1
  fi
  gcloud compute tpus tpu-vm create "$name" --zone "$ZONE" \
    --accelerator-type "$type" --version "$version"
fi

archive=$(mktemp --suffix=.tar.gz)
trap 'rm -f "$archive"' EXIT
git archive --format=tar.gz --output "$archive" HEAD
gcloud compute tpus tpu-vm scp "$archive" "$name:jspec.tar.gz" --zone "$ZONE"

# Quoted here, so that the words arrive on the VM as they are.
program=$(printf '%q ' "$@")
gcloud compute tpus tpu-vm ssh "$name" --zone "$ZONE" --command "
  set -eu
  mkdir -p jspec && tar -xzf jspec.tar.gz -C jspec && cd jspec
  # The images of some TPU generations come with an older Python.
  command -v python3.11 >/dev/null ||
    sudo apt-get install --quiet --yes python3.11 python3.11-venv
  make .venv
  .venv/bin/pip install --quiet --editable '.[tpu]'
  .venv/bin/jspec $program
"
