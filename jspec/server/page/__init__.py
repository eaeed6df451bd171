# SPDX-License-Identifier: MIT
"""The page at `/`: a chat that shows how every token came."""
