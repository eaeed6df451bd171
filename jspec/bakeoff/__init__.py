# SPDX-License-Identifier: MIT
"""Every drafter on the same data, with the same steps, in one table."""
