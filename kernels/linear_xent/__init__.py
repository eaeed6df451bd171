# SPDX-License-Identifier: MIT
"""LM head and loss together, without the logits of all rows."""
