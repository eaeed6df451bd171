# SPDX-License-Identifier: MIT
"""Checkpoints to examine: good ones, and ones with a single thing changed."""

import json

import jax.numpy as jnp
import numpy as np

from jspec.checkpoints import safetensors
from jspec.drafters import interchange
from jspec.drafters.formats import folder
from jspec.testing import toy
from tests import shared_data

FINGERPRINT, TEMPLATE = '0' * 16, 'f' * 16
NORM = 'final_norm.weight'


def good(path, of=None, *, ids=None, mask_token_id=toy.MASK_TOKEN_ID, **fields):
  """A whole checkpoint of a trained-looking drafter."""
  of = of or toy.target()
  drafter = toy.drafter(of, draft_token_ids=ids, mask_token_id=mask_token_id)
  belongs = {
    'target_name': 'toy',
    'target_fingerprint': FINGERPRINT,
    'template': TEMPLATE,
  }
  interchange.save(path, drafter, **(belongs | fields))
  return path


def edit(path, change):
  """Rewrites a checkpoint after `change(config, tensors)`, in place."""
  config, tensors = folder.read(path)
  change(config, tensors)
  safetensors.write(path, tensors, config)
  return path


def golden(path, name, change=lambda config, tensors: None):
  """A golden checkpoint of another project with something changed."""
  config, tensors = folder.read(shared_data.path(f'goldens/drafters/{name}'))
  change(config, tensors)
  safetensors.write(path, tensors, config)
  return path


def ones(tensors):
  """Norm gains as before training."""
  for name, values in tensors.items():
    if 'norm' in name:
      tensors[name] = np.ones_like(values)


def same_as(path, config):
  """Whether config.json still holds `config`."""
  return json.loads((path / 'config.json').read_text()) == config


def ids(*values):
  return jnp.asarray(values, jnp.int32)
