# SPDX-License-Identifier: MIT
"""What must be the same in every process that serves one target.

  code       every source file of jspec
  versions   of JAX and Python
  settings   sizes and policies of the engine
  devices    of the mesh, in their order
  target     arrays by form, and a sample of each
  drafter    likewise

Processes that differ would hang, or decode nonsense, at some call.
"""

import hashlib
import platform
import re
import zlib
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jspec.serve import program_key, settings

NUM_SAMPLED = 1024  # Numbers of an array.


def facts(
  target: Any,
  drafter: Any,
  sizes: settings.Sizes,
  mesh: Mesh,
  *,
  is_split: bool,
) -> dict[str, str]:
  """Digests by name, the same in processes that fit together.

  Args:
    target: the model, as it was loaded here.
    drafter: who drafts, or None.
    sizes: of the engine.
    mesh: of all processes.
    is_split: whether the host may have a part in a round.
  """
  devices = [
    (device.id, device.process_index, device.device_kind)
    for device in mesh.devices.flat
  ]
  found = {
    'code': program_key.source(),
    'versions': f'{jax.__version__} {platform.python_version()}',
    'settings': f'{sizes} {is_split}',
    'devices': f'{devices}',
    'target': _model(target),
    'drafter': _model(drafter),
  }
  return {name: _digest(text) for name, text in found.items()}


def _model(model):
  leaves, structure = jax.tree.flatten(model)
  return f'{type(model).__name__} {structure} {[_array(x) for x in leaves]}'


def _array(leaf):
  array = np.asarray(leaf)
  step = max(array.size // NUM_SAMPLED, 1)
  sample = np.ascontiguousarray(array.reshape(-1)[::step])
  return array.dtype.name, array.shape, zlib.crc32(sample.view(np.uint8))


def _digest(text):
  # Functions among the options are printed with their address.
  text = re.sub(r' at 0x[0-9a-f]+', '', text)
  return hashlib.sha256(text.encode()).hexdigest()[:16]
