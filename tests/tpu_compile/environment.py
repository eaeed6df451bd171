# SPDX-License-Identifier: MIT
"""The slices that programs are compiled for."""

TOPOLOGIES = ('v5e:2x2', 'v5p:2x2x1', 'v6e:2x2', 'tpu7x:2x2x1')
