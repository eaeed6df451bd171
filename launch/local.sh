#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The whole chain on this machine's CPU, minutes: the target answers 48 prompts,
# a drafter trains for 20 steps on the answers, and decodes with them.
#
#   launch/local.sh [FOLDER]          default runs/local; a second call resumes
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-runs/local}
make .venv
mkdir -p "$folder"

.venv/bin/jspec data regen --prompts shipped --limit 48 --max-tokens 96 \
  --out "$folder/answers.jsonl"
.venv/bin/jspec train --config configs/train/dflash.py:smoke \
  --workdir "$folder/run" \
  "--config.data.answers=$folder/answers.jsonl" \
  "--config.data.store=$folder/taps"
.venv/bin/jspec generate --drafter "$folder/run/export" --prompts demo --limit 2 \
  --max-tokens 48
