# SPDX-License-Identifier: MIT
"""Tokenizers and chat templates."""
