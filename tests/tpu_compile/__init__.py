# SPDX-License-Identifier: MIT
"""Compiles for real TPUs on a machine that has none."""
