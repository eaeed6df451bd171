# SPDX-License-Identifier: MIT
"""Tree builders: from what a drafter thinks to a `tree.Draft`."""
