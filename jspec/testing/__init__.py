# SPDX-License-Identifier: MIT
"""Toys and conformance suites, for us and for extensions."""
