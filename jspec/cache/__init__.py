# SPDX-License-Identifier: MIT
"""The key-value cache as a value."""
