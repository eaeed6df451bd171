# shellcheck shell=bash
# SPDX-License-Identifier: MIT
#
# What the scripts for Cloud TPUs share; they source it. It reads
#
# ZONE      of the TPU
# TYPE      accelerator; each script has its own default
# VERSION   runtime (v2-alpha-tpuv5-lite)
# CREATE    0: the TPU must be there

tpu() {
  gcloud compute tpus tpu-vm "$@" --zone "$ZONE"
}

# create NAME DEFAULT_TYPE: makes the TPU if it does not exist.
create() {
  if tpu describe "$1" >/dev/null; then
    return
  fi
  if [ "${CREATE:-1}" = 0 ]; then
    echo "error: no TPU VM $1 in $ZONE" >&2
    exit 1
  fi
  tpu create "$1" --accelerator-type "${TYPE:-$2}" \
    --version "${VERSION:-v2-alpha-tpuv5-lite}"
}

# send NAME [FLAGS of scp]: copies the committed tree, packed.
send() {
  archive=$(mktemp --suffix=.tar.gz)
  trap 'rm -f "$archive"' EXIT
  git archive --format=tar.gz --output "$archive" HEAD
  tpu scp "$archive" "$1:jspec.tar.gz" "${@:2}"
}

# install NAME EXTRAS [FLAGS of ssh]: unpacks it there, with an environment.
install() {
  tpu ssh "$1" "${@:3}" --command "
  set -eu
  mkdir -p jspec && tar -xzf jspec.tar.gz -C jspec && cd jspec
  # The images of some TPU generations come with an older Python.
  command -v python3.11 >/dev/null ||
    sudo apt-get install --quiet --yes python3.11 python3.11-venv
  make .venv
  .venv/bin/pip install --quiet --editable '.[$2]'
"
}
