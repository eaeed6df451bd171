# One interpreter, one environment. PYTHON=... picks another interpreter.

PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
  $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    >/dev/null 2>&1 && { command -v $$name; break; }; done)
NO_PYTHON := no Python 3.11 or newer: install one, or name it with PYTHON=...
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q

.PHONY: test test-all test-tpu-compile demo lint

# Installs only; again when setup.py changes. The mark comes last, so a broken
# installation is tried again.
.venv: .venv/.installed

.venv/.installed: setup.py
	@test -n "$(PYTHON)" || { echo "error: $(NO_PYTHON)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

# The fast suite: every test that takes seconds, 8 fake CPU devices.
test: .venv
	$(PYTEST) -m 'not slow'

# The fast suite and the tests that take minutes.
test-all: .venv
	$(PYTEST)

# Lowers the operations for TPU and GPU with jax.export; no device is needed.
test-tpu-compile: .venv
	$(PYTEST) tests/kernels/tpu_lowering_test.py

# Trains a drafter, then compares drafters, on a real 135M model.
demo: .venv
	$(BIN)/jspec demo

lint: .venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
