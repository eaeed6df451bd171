# SPDX-License-Identifier: MIT
"""From prompts to batches."""
