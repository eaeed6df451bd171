# SPDX-License-Identifier: MIT
"""Layers over the cache and the kernels."""
