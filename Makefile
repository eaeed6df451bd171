# One interpreter, one environment. PYTHON=... picks another interpreter.

PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
  $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    >/dev/null 2>&1 && { command -v $$name; break; }; done)
NO_PYTHON := no Python 3.11 or newer: install one, or name it with PYTHON=...
BIN := .venv/bin
# Two processes, a file at a time: most of a test is compiling, on one core.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile
# The compiler that belongs to the jax of setup.py; 0.7 GB.
LIBTPU := libtpu==0.0.42.1
# The same for CUDA; 0.2 GB, in a folder of its own: jax would find it in .venv.
CUDA := jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2 nvidia-cuda-nvcc-cu12

.PHONY: test test-slow test-all test-node test-tpu-compile test-gpu-compile \
  demo serve lint

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

# The tests that take minutes.
test-slow: .venv
	$(PYTEST) -m slow

# Every test.
test-all: test test-slow

# OpenAI's client for Node against the server; fails without Node 20 and npm,
# where the other targets skip it.
test-node: .venv
	JSPEC_NODE=1 $(BIN)/python -m pytest -q tests/server/node_test.py

# Compiles kernels and programs for four TPU generations with Mosaic and XLA:TPU;
# no device is needed. Writes build/tpu_compile.json; fails if VMEM overflows or a
# program costs more than tests/tpu_compile/baseline.json says.
test-tpu-compile: .venv
	$(BIN)/pip install --quiet '$(LIBTPU)'
	$(PYTEST) tests/kernels/tpu_lowering_test.py
	$(BIN)/python -m tests.tpu_compile.run
	JSPEC_TPU_COMPILE=1 $(PYTEST) tests/tpu_compile/fit_test.py

# Compiles the GPU kernel to H100 machine code; no device is needed.
test-gpu-compile: .venv
	$(BIN)/pip install --quiet --no-deps --upgrade --target build/cuda $(CUDA)
	JSPEC_CUDA_COMPILER=build/cuda $(PYTEST) \
	  tests/kernels/block_tree_attention_gpu_compile_test.py

# Trains a drafter, then compares drafters, on a real 135M model.
demo: .venv
	$(BIN)/jspec demo

# Serves the real 135M model on http://127.0.0.1:8000, as OpenAI's API.
serve: .venv
	$(BIN)/jspec serve

lint: .venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
