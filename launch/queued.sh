#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Trains on spot TPUs of one host through queued resources. When the capacity is
# taken away, the request is made again and the run resumes from WORKDIR, which
# must outlive the VM: a mounted bucket or disk.
#
#   ZONE=us-west4-a TYPE=v5litepod-8 launch/queued.sh NAME \
#     train --config configs/train/dflash.py --workdir /mnt/bucket/run ...
set -euo pipefail

if [ $# -lt 2 ] || [ -z "${ZONE:-}" ]; then
  echo 'usage: ZONE=... [TYPE=...] [VERSION=...] launch/queued.sh NAME' \
    'PROGRAM [FLAGS ...]' >&2
  exit 2
fi
name=$1
type=${TYPE:-v5litepod-8}
version=${VERSION:-v2-alpha-tpuv5-lite}
poll_s=60
here=$(cd "$(dirname "$0")" && pwd)

state() {
  gcloud compute tpus queued-resources describe "$name" --zone "$ZONE" \
    --format 'value(state.state)' 2>/dev/null || echo ABSENT
}

delete() {
  gcloud compute tpus queued-resources delete "$name" --zone "$ZONE" \
    --force --quiet
}

while true; do
  case $(state) in
    ABSENT)
      gcloud compute tpus queued-resources create "$name" --zone "$ZONE" \
        --node-id "$name" --accelerator-type "$type" \
        --runtime-version "$version" --spot
      ;;
    ACTIVE)
      status=0
      # A VM that was just taken away must not come back at full price.
      CREATE=0 "$here/tpu_vm.sh" "$@" || status=$?
      # A program that failed on a living VM failed for good.
      if [ "$status" = 0 ] || [ "$(state)" = ACTIVE ]; then
        delete
        exit "$status"
      fi
      ;;
    FAILED | SUSPENDED)
      delete
      ;;
  esac
  sleep "$poll_s"
done
