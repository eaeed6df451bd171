# SPDX-License-Identifier: MIT
"""Tests of what is in launch/."""
