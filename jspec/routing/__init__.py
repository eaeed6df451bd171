# SPDX-License-Identifier: MIT
"""Which drafter suits a request."""
