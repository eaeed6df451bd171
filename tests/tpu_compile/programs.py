# SPDX-License-Identifier: MIT
"""Everything that `make test-tpu-compile` compiles, for each generation.

A new kernel adds a module with a tuple of programs, and the tuple here; then
`python -m tests.tpu_compile.run --update` writes what it costs into the
baseline.
"""

from tests.tpu_compile import (
  attention_programs,
  commit_programs,
  drafter_programs,
  engine_programs,
  target_programs,
  training_programs,
)

PROGRAMS = (
  *attention_programs.PROGRAMS,
  *commit_programs.PROGRAMS,
  *drafter_programs.PROGRAMS,
  *engine_programs.PROGRAMS,
  *target_programs.PROGRAMS,
  *training_programs.PROGRAMS,
)
