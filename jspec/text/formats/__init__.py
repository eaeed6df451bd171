# SPDX-License-Identifier: MIT
"""How models write thoughts and tool calls, one small file each."""
