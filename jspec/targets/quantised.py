# SPDX-License-Identifier: MIT
"""Which arrays of a stack take eight bits: the matrices that layers multiply.

Embedding, head, norms, routers, biases and sinks stay as they are: drafters
share the first two, and the rest is small. The fingerprint of a target is of
its arrays before, so a drafter fits all forms of the target it was trained for.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jspec import errors
from jspec.nn import qarray
from jspec.typing import Array

# By name, with the axis that a product sums over. Of `kv_up` [N, H, R] both
# are summed over; a scale for each row of H can go with either.
AXES = {
  **dict.fromkeys(('qkv', 'out', 'gate_up', 'down'), -2),
  **dict.fromkeys(('latents', 'queries'), -2),
  'kv_up': -1,
  **dict.fromkeys(('experts_gate_up', 'experts_down'), -2),
  **dict.fromkeys(('shared_gate_up', 'shared_down'), -2),
}


def checked(form: object) -> str | None:
  """The form of the weights; None: as they were loaded.

  Raises:
    UserError: there is no such form.
  """
  if form is not None and form not in qarray.FORMS:
    raise errors.UserError(
      f'weights={form!r}: expected one of {", ".join(qarray.FORMS)}, or leave'
      ' it out'
    )
  return form


def arrays(
  found: Mapping[str, np.ndarray | Array], form: str | None
) -> dict[str, np.ndarray | qarray.Weight]:
  """The arrays of a stack with those of `AXES` in eight bits.

  For arrays that are there; `quantising` reads them so.

  Args:
    found: of `architecture.array_shapes`.
    form: see `checked`.
  """
  if form is None:
    return dict(found)
  return {
    name: qarray.quantise(array, form, AXES[name]) if name in AXES else array
    for name, array in found.items()
  }


def form_of(model: Any) -> str | None:
  """The form of a model's matrices; None: none is of eight bits."""
  is_small = lambda leaf: isinstance(leaf, qarray.QArray)  # noqa: E731
  for leaf in jax.tree.leaves(model, is_leaf=is_small):
    if is_small(leaf):
      return next(
        form
        for form, dtype in qarray.DTYPES.items()
        if leaf.values.dtype == dtype
      )
  return None
