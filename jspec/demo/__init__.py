# SPDX-License-Identifier: MIT
"""The demo: what speculation does on a real model, on this machine."""
