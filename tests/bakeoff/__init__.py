# SPDX-License-Identifier: MIT
"""Tests of jspec.bakeoff."""
