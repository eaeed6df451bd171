# SPDX-License-Identifier: MIT
"""Operations with more than one implementation; jax only."""
