# SPDX-License-Identifier: MIT
"""The frozen models: one decoder stack, a thin file per family."""
