# SPDX-License-Identifier: MIT
"""Depth policies: which drafts are worth verifying, and what that costs."""
