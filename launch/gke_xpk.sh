#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Runs one jspec program on slices of a GKE cluster, as a workload of xpk, and
# waits for its end. Pods that are preempted or lost come back and resume.
#
#   PROJECT=my-project ZONE=us-west4-a CLUSTER=my-cluster STORAGE=my-bucket \
#     launch/gke_xpk.sh NAME IMAGE train --config configs/train/dflash.py \
#     --workdir /mnt/my-bucket/run ...
#
# TYPE      accelerator of a slice (v5litepod-16)
# SLICES    how many (1)
# STORAGE   what `xpk storage attach` made; it holds data and WORKDIR
# RESTARTS  so often the pods may come back (50)
#
# IMAGE is launch/Dockerfile with PLATFORM=tpu, for root, as the TPU's devices
# are root's; see README.md. A second call waits for the workload that is there;
# one that failed is made again. Another program wants another NAME.
set -euo pipefail

if [ $# -lt 3 ] || [ -z "${PROJECT:-}" ] || [ -z "${ZONE:-}" ] ||
  [ -z "${CLUSTER:-}" ]; then
  echo 'usage: PROJECT=... ZONE=... CLUSTER=... [TYPE=...] [SLICES=...]' \
    '[STORAGE=...] [RESTARTS=...]' \
    'launch/gke_xpk.sh NAME IMAGE PROGRAM [FLAGS ...]' >&2
  exit 2
fi
name=$1
image=$2
program=$3
shift 3
where=(--project "$PROJECT" --zone "$ZONE" --cluster "$CLUSTER")

# Whether the workload is there, in a status by which xpk filters.
is_listed() {
  local listed
  listed=$(xpk workload list "${where[@]}" --filter-by-job "$name" \
    --filter-by-status "$1") || exit
  awk -v name="$name" '$1 == name { found = 1 } END { exit !found }' \
    <<<"$listed"
}

if is_listed FAILED; then
  xpk workload delete "${where[@]}" --workload "$name" --force
fi
if ! is_listed EVERYTHING; then
  flags=(--max-restarts "${RESTARTS:-50}")
  # A step and its checkpoint are to end after SIGTERM.
  flags+=(--termination-grace-period-seconds 120)
  # Beside 127 to 255: what a process says when another one is gone.
  flags+=(--restart-on-exit-codes 3)
  if [ -n "${STORAGE:-}" ]; then
    flags+=(--storage "$STORAGE")
  fi
  # exec: the shell that xpk starts passes SIGTERM to this process only.
  xpk workload create "${where[@]}" --workload "$name" \
    --tpu-type "${TYPE:-v5litepod-16}" --num-slices "${SLICES:-1}" \
    --docker-image "$image" "${flags[@]}" \
    --command "exec jspec $(printf '%q ' "$program" --all-hosts "$@")"
fi
# Ends with 0 if the program did.
xpk workload list "${where[@]}" --wait-for-job-completion "$name"
