# SPDX-License-Identifier: MIT
"""Attention of the draft blocks of a training sequence."""
