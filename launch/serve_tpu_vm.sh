#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Serves on a Cloud TPU VM of one host, as a systemd service that starts again
# with the machine. The VM is made if it does not exist. A second call brings
# the committed tree and the flags up to date and restarts the service, which
# lets accepted answers end first.
#
#   ZONE=us-west4-a launch/serve_tpu_vm.sh NAME [FLAGS of jspec serve ...]
#
# TYPE (v5litepod-1), VERSION and CREATE: see cloud_tpu.bash
# WAIT_S    seconds until it must be ready (1800)
# JSPEC_API_KEY   whoever has it may ask; it travels in a file, not in a command
#
# The service listens inside the VM only; the last line says how to reach it.
set -euo pipefail

usage() {
  echo 'usage: ZONE=... [TYPE=...] [VERSION=...] [CREATE=0] [WAIT_S=...]' \
    '[JSPEC_API_KEY=...] launch/serve_tpu_vm.sh NAME [FLAGS ...]'
}

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  usage
  exit 0
fi
if [ $# -lt 1 ] || [ -z "${ZONE:-}" ]; then
  usage >&2
  exit 2
fi
name=$1
shift
for flag in "$@"; do
  # systemd cuts what a variable holds at blanks.
  if [[ $flag =~ [[:space:]\"\'\\$] ]]; then
    echo "error: flag $flag holds a blank or a quote; write --NAME=VALUE" \
      'without any' >&2
    exit 2
  fi
done
wait_s=${WAIT_S:-1800}
cd "$(dirname "$0")/.."
# shellcheck source=launch/cloud_tpu.bash
source launch/cloud_tpu.bash

create "$name" v5litepod-1
send "$name"

# The key stays out of command lines, which everybody on a machine can read.
{
  echo "JSPEC_ARGS=$*"
  echo "JSPEC_API_KEY=${JSPEC_API_KEY:-}"
} | tpu ssh "$name" --command \
  'sudo install -m 600 /dev/stdin /etc/jspec.env'

tpu ssh "$name" --command "
  set -eu
  rm -rf jspec && mkdir jspec && tar -xzf jspec.tar.gz -C jspec && cd jspec
  # The images of some TPU generations come with an older Python.
  command -v python3.11 >/dev/null ||
    sudo apt-get install --quiet --yes python3.11 python3.11-venv
  [ -x /opt/jspec/bin/python ] || sudo python3.11 -m venv /opt/jspec
  sudo /opt/jspec/bin/pip install --quiet --upgrade '.[tpu,serve,structured,hub]'
  sudo install -m 644 launch/jspec.service /etc/systemd/system/
  # The devices of a TPU belong to root, and no other user may pin its memory.
  sudo mkdir -p /etc/systemd/system/jspec.service.d
  printf '[Service]\nDynamicUser=no\nUser=root\n' |
    sudo install -m 644 /dev/stdin /etc/systemd/system/jspec.service.d/tpu.conf
  sudo systemctl daemon-reload
  sudo systemctl enable --quiet jspec
  sudo systemctl restart jspec
  for _ in \$(seq $((wait_s / 5))); do
    if curl -fs http://127.0.0.1:8000/ready >/dev/null; then exit 0; fi
    if systemctl is-failed --quiet jspec; then break; fi
    sleep 5
  done
  sudo journalctl --unit jspec --lines 40 --no-pager
  echo 'error: the server did not get ready; its log is above' >&2
  exit 1
"
echo "ready; reach it at http://localhost:8000 while this runs:
  gcloud compute tpus tpu-vm ssh $name --zone $ZONE -- -N -L 8000:127.0.0.1:8000"
