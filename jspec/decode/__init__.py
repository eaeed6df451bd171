# SPDX-License-Identifier: MIT
"""Sampling, verification, the round, offline generation."""
