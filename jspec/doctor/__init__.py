# SPDX-License-Identifier: MIT
"""What a drafter checkpoint wants, and why acceptance may be low."""
