# SPDX-License-Identifier: MIT
"""jspec: train drafters, serve with lossless speculative decoding, in JAX.

Importing this package imports nothing heavy; import the module you need.
"""

__version__ = '0.1.0'
