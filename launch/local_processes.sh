#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Runs one jspec program as N processes of this machine, on its CPU: what slices
# and clusters do, in small.
#
#   launch/local_processes.sh N PROGRAM [FLAGS ...]
#   launch/local_processes.sh 2 train --config configs/train/dflash.py:smoke \
#     --workdir runs/two --config.data.answers=runs/local/answers.jsonl
#
# PROGRAM is one that takes --coordinator. The first process that fails ends the
# others; SIGTERM goes to all. A second call resumes what the program resumes.
set -euo pipefail

if [ $# -lt 2 ] || [[ ! $1 =~ ^[1-9][0-9]*$ ]]; then
  echo 'usage: launch/local_processes.sh N PROGRAM [FLAGS ...]' >&2
  exit 2
fi
num=$1
program=$2
shift 2
cd "$(dirname "$0")/.."
make .venv

export JAX_PLATFORMS=cpu
port=$(.venv/bin/python -c '
import socket
with socket.socket() as free:
  free.bind(("127.0.0.1", 0))
  print(free.getsockname()[1])
')
pids=()
status=0
# It ends the wait below, and with it the others.
trap 'status=143' INT TERM
for ((id = 0; id < num; id++)); do
  .venv/bin/jspec "$program" --coordinator "127.0.0.1:$port" \
    --num-processes "$num" --process-id "$id" "$@" &
  pids+=($!)
done

for ((ended = 0; ended < num && status == 0; ended++)); do
  wait -n || status=$?
done
if [ "$status" != 0 ]; then
  kill "${pids[@]}" 2>/dev/null || true
fi
wait
exit "$status"
