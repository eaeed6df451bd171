# SPDX-License-Identifier: MIT
"""The training program and its parts."""
