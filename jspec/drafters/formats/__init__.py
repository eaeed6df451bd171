# SPDX-License-Identifier: MIT
"""Checkpoint layouts of other projects, as pure conversions of dicts."""
