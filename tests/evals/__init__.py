# SPDX-License-Identifier: MIT
"""Tests of the evaluations."""
