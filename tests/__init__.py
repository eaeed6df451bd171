# SPDX-License-Identifier: MIT
"""Tests; the folders mirror the packages."""
