# SPDX-License-Identifier: MIT
"""Attention over a paged prefix and the round's own nodes."""
