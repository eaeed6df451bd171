# SPDX-License-Identifier: MIT
"""A loss as a sum of means, so that portions of a batch can add up to it.

  loss = sum_i value_i,    value_i = sum over slots (weight x loss) / weight_i

A mean over portions is not the mean over the batch, because portions hold
different numbers of slots. With the weight of every part at hand it is:

  value_i = sum_portions value_i weight_i / sum_portions weight_i

A loss reports its parts among its metrics, `NAME.part` and `NAME.part_weight`
(both may be vectors: a mean for every step). No gradient flows through weights.
A loss that is no such sum reports none.
"""

import jax

from jspec.typing import Array, Float

_VALUE, _WEIGHT = '.part', '.part_weight'


def metrics(
  parts: dict[str, tuple[Float[Array, '*any'], Float[Array, '*any']]],
) -> dict[str, Array]:
  """The metrics that tell value and weight of every part."""
  return {
    **{name + _VALUE: value for name, (value, _) in parts.items()},
    **{name + _WEIGHT: weight for name, (_, weight) in parts.items()},
  }


def take(
  found: dict[str, Array],
) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
  """Tells metrics for people, values of parts and their weights apart."""
  rest, values, weights = {}, {}, {}
  for name, value in found.items():
    if name.endswith(_VALUE):
      values[name.removesuffix(_VALUE)] = value
    elif name.endswith(_WEIGHT):
      weights[name.removesuffix(_WEIGHT)] = jax.lax.stop_gradient(value)
    else:
      rest[name] = value
  return rest, values, weights
