# SPDX-License-Identifier: MIT
"""Benchmarks: programs, not tests."""
