# SPDX-License-Identifier: MIT
"""Reading and writing weights: HF safetensors, GGUF, orbax."""
