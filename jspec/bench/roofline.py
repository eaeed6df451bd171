# SPDX-License-Identifier: MIT
"""The least time in which this machine can score some nodes of some rows.

  least = max(bytes / read rate, FLOPs / matmul rate)

  bytes   all weights once, but of experts as many as one token meets; and the
          cached rows that every row sees
  FLOPs   2 x tokens x numbers of the matrices that a token meets

Both rates are measured in the same run. Several tokens may meet more experts,
and attention computes, too: the least is a bound, not a forecast.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jspec.bench import timing
from jspec.cache import forms
from jspec.targets import architecture

_EXPERTS = 'experts_'


@dataclasses.dataclass(frozen=True)
class Roofline:
  """What a target needs and what the machine gives.

  Attributes:
    weight_bytes: that a step reads whatever it scores.
    held_bytes: of all weights but the embedding, all experts included.
    row_bytes: cached, that a row sees.
    token_flop: operations of a token.
    bytes_per_s: read from memory.
    flop_per_s: of a large matmul in the type of the weights.
  """

  weight_bytes: int
  held_bytes: int
  row_bytes: int
  token_flop: int
  bytes_per_s: float
  flop_per_s: float

  def seconds(self, rows: int, nodes: int) -> float:
    """The least for so many nodes of each of so many rows."""
    num_bytes = self.weight_bytes + rows * self.row_bytes
    flop = rows * nodes * self.token_flop
    return max(num_bytes / self.bytes_per_s, flop / self.flop_per_s)


def measure(model: Any, context: int) -> Roofline:
  """Counts what a target needs and measures both rates.

  Args:
    model: the target.
    context: cached tokens of a row.
  """
  config = model.config
  share = 1.0
  if config.experts is not None:
    share = config.experts.top_k / config.experts.num_experts
  # A step reads this and one row of the embedding. What is kept in two forms
  # is read in one.
  parts = (model.layers, model.final_norm, model.head)
  weights, read, held = [], 0.0, 0
  for path, leaf in jax.tree_util.tree_leaves_with_path(parts):
    is_expert = any(_EXPERTS in str(key) for key in path)
    weights.append(np.asarray(leaf))
    read += leaf.nbytes * (share if is_expert else 1)
    held += leaf.nbytes
  numbers = config.width * config.vocab_size
  for layer in range(config.num_layers):
    for name, shape in architecture.layer_shapes(config, layer).items():
      is_expert = name.startswith(_EXPERTS)
      if not name.endswith(('norm', 'bias', 'sinks')):
        numbers += math.prod(shape) * (share if is_expert else 1)
  return Roofline(
    weight_bytes=round(read),
    held_bytes=held,
    row_bytes=_row_bytes(model, context),
    token_flop=round(2 * numbers),
    bytes_per_s=timing.read_rate(weights),
    flop_per_s=timing.flop_rate(dtype=model.head[...].dtype),
  )


def _row_bytes(model, context):
  """Keys and values of what a row sees, in all layers."""
  config, form = model.config, model.cache_form
  dtype = model.embedding[...].dtype if form is None else forms.DTYPES[form]
  heads, width = architecture.cached_row(config)
  of_head = width * dtype.itemsize
  if forms.has_scales(form):
    of_head += jnp.dtype(jnp.bfloat16).itemsize
  seen = sum(
    min(window or context, context) for window in architecture.windows(config)
  )
  return 2 * seen * heads * of_head
