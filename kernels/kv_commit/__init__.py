# SPDX-License-Identifier: MIT
"""Writes accepted rows into the pages."""
