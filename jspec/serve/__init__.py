# SPDX-License-Identifier: MIT
"""Serving: who runs when and on which pages."""
