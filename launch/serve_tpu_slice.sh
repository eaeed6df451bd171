#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Serves one target on all hosts of a Cloud TPU slice (v5litepod-16, v6e-16 and
# larger), as long as this runs. Every host loads the model and keeps its share;
# worker 0 takes requests, the others follow it and end when it does. The slice
# is made if it does not exist and kept afterwards.
#
#   ZONE=us-west4-a TYPE=v5litepod-16 launch/serve_tpu_slice.sh NAME [FLAGS ...]
#
# TYPE      accelerator (v5litepod-16)
# VERSION   runtime (v2-alpha-tpuv5-lite)
# CREATE    0: the slice must be there
#
# Worker 0 listens inside its VM only; reach it at http://localhost:8000 by
#
#   gcloud compute tpus tpu-vm ssh NAME --zone ZONE --worker 0 \
#     -- -N -L 8000:127.0.0.1:8000
#
# If one host is lost all of them end with an error: call this again.
set -euo pipefail

if [ $# -lt 1 ] || [ -z "${ZONE:-}" ]; then
  echo 'usage: ZONE=... [TYPE=...] [VERSION=...] [CREATE=0]' \
    'launch/serve_tpu_slice.sh NAME [FLAGS ...]' >&2
  exit 2
fi
name=$1
shift
type=${TYPE:-v5litepod-16}
version=${VERSION:-v2-alpha-tpuv5-lite}
cd "$(dirname "$0")/.."

tpu() {
  gcloud compute tpus tpu-vm "$@" --zone "$ZONE"
}

if ! tpu describe "$name" >/dev/null; then
  if [ "${CREATE:-1}" = 0 ]; then
    echo "error: no TPU slice $name in $ZONE" >&2
    exit 1
  fi
  tpu create "$name" --accelerator-type "$type" --version "$version"
fi

archive=$(mktemp --suffix=.tar.gz)
trap 'rm -f "$archive"' EXIT
git archive --format=tar.gz --output "$archive" HEAD
tpu scp "$archive" "$name:jspec.tar.gz" --worker all

# Quoted here, so that the words arrive on the VMs as they are.
flags=$(printf '%q ' "$@")
tpu ssh "$name" --worker all --command "
  set -eu
  mkdir -p jspec && tar -xzf jspec.tar.gz -C jspec && cd jspec
  # The images of some TPU generations come with an older Python.
  command -v python3.11 >/dev/null ||
    sudo apt-get install --quiet --yes python3.11 python3.11-venv
  make .venv
  .venv/bin/pip install --quiet --editable '.[tpu,serve,structured,hub]'
"
# All at once, or the first would wait for the others in vain.
tpu ssh "$name" --worker all --command "
  cd jspec && exec .venv/bin/jspec serve --all-hosts $flags
"
