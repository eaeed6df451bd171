# SPDX-License-Identifier: MIT
"""What clients may send, endpoint by endpoint; anything else is refused."""
