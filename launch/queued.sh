#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Trains on spot TPUs through queued resources. When the capacity is taken away,
# the request is made again and the run resumes from WORKDIR, which must outlive
# the VMs: a mounted bucket or disk. A second call goes on with the request that
# is there. At the end the request and its VMs are deleted.
#
#   ZONE=us-west4-a TYPE=v5litepod-8 launch/queued.sh NAME \
#     train --config configs/train/dflash.py --workdir /mnt/bucket/run ...
#
# TYPE      accelerator (v5litepod-8)
# VERSION   runtime (v2-alpha-tpuv5-lite)
# HOSTS     one, or all: TYPE is a slice of several, see tpu_slice.sh (one)
# POLL_S    seconds between looks at the request (60)
set -euo pipefail

hosts=${HOSTS:-one}
if [ $# -lt 2 ] || [ -z "${ZONE:-}" ] || [[ ! $hosts =~ ^(one|all)$ ]]; then
  echo 'usage: ZONE=... [TYPE=...] [VERSION=...] [HOSTS=one|all] [POLL_S=...]' \
    'launch/queued.sh NAME PROGRAM [FLAGS ...]' >&2
  exit 2
fi
name=$1
type=${TYPE:-v5litepod-8}
version=${VERSION:-v2-alpha-tpuv5-lite}
poll_s=${POLL_S:-60}
script=tpu_vm.sh
if [ "$hosts" = all ]; then
  script=tpu_slice.sh
fi
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
      CREATE=0 "$here/$script" "$@" || status=$?
      if [ "$status" = 0 ]; then
        delete
        exit
      fi
      # The request says late that its VMs are going.
      sleep "$poll_s"
      # 143: SIGTERM came, and the step in hand was saved. Any other failure on
      # VMs that are still there is the program's own, and would come again.
      if [ "$status" != 143 ] && [ "$(state)" = ACTIVE ]; then
        delete
        exit "$status"
      fi
      continue
      ;;
    FAILED | SUSPENDED)
      delete
      ;;
  esac
  sleep "$poll_s"
done
