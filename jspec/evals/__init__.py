# SPDX-License-Identifier: MIT
"""Acceptance and losslessness, measured."""
