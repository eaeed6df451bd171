# SPDX-License-Identifier: MIT
"""The drafters: one file per method, over shared parts."""
