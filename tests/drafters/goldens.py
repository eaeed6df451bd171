# SPDX-License-Identifier: MIT
"""Drafters with the weights of the reference implementations' fixtures."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from jspec.cache import paged
from jspec.checkpoints import names
from jspec.checkpoints import safetensors as safetensors_lib
from jspec.drafters import anchors, base, borrowed
from jspec.nn import layers
from tests import shared_data

TAPS = (0, 1, 2)


class Target(nnx.Module):
  """As much of a target as a drafter borrows."""

  def __init__(self, tensors):
    self.embedding = nnx.Param(
      jnp.asarray(tensors['model.embed_tokens.weight'])
    )
    self.head = nnx.Param(jnp.asarray(tensors['lm_head.weight'].T))
    self.final_norm = nnx.Param(jnp.asarray(tensors['model.norm.weight']))
    self.config = types.SimpleNamespace(
      norm_eps=1e-6, num_layers=4, embedding_scale=1.0
    )


def target() -> Target:
  """The one target of all fixtures."""
  file = shared_data.path('goldens/targets/qwen3') / 'model.safetensors'
  return Target(safetensors.numpy.load_file(file))


def arrays(name: str, file: str = 'golden.npz') -> dict[str, np.ndarray]:
  """A fixture's numbers."""
  return dict(np.load(shared_data.path(f'goldens/drafters/{name}') / file))


def common() -> dict[str, np.ndarray]:
  """The inputs that all fixtures share."""
  return dict(np.load(shared_data.path('goldens/drafters/common.npz')))


def block_drafter(
  name: str, method, loss_config=None, ignored=(), extra=None, **fields
):
  """A block drafter from a folder of the AngelSpec layout.

  Args:
    name: of the fixture.
    method: whose drafter it is.
    loss_config: for training.
    ignored: tensors left out on purpose.
    extra: tensors that are not in the folder.
    **fields: of the config, besides what the folder says.
  """
  folder = shared_data.path(f'goldens/drafters/{name}')
  raw = json.loads((folder / 'config.json').read_text())
  fields = {'block_size': 4, 'num_draft_tokens': 3, **fields}
  config = method.config(
    width=raw['hidden_size'],
    ff_width=raw['intermediate_size'],
    num_layers=raw['num_hidden_layers'],
    num_heads=raw['num_attention_heads'],
    num_kv_heads=raw['num_key_value_heads'],
    head_width=raw['head_dim'],
    norm_eps=raw['rms_norm_eps'],
    rope_base=raw['rope_theta'],
    taps=TAPS,
    target_width=raw['hidden_size'],
    target_num_layers=4,
    vocab_size=raw['vocab_size'],
    mask_token_id=255,
    label_shift=0,
    draft_vocab_size=None,
    **fields,
  )
  drafter = method.make(
    config, loss_config, borrowed.from_target(target()), jax.random.key(0)
  )
  source = safetensors_lib.SafetensorsFolder(folder)
  tensors = {key: source.read(key) for key in source.names()}
  source = names.Held(str(folder), tensors | (extra or {}))
  fill(drafter, method, source, ('embed_tokens.weight', *ignored))
  return drafter


def fill(drafter, method, source, ignored=()) -> None:
  """Gives a drafter the weights of a checkpoint."""
  leaves = method.leaves(drafter)
  shapes = {name: leaf.shape for name, leaf in leaves.items()}
  rules = method.rules(drafter.config)
  for name, value in names.fill(rules, source, shapes, ignored=ignored).items():
    leaves[name][...] = jnp.asarray(value)


def batch(positions, segments) -> base.DraftBatch:
  """The shared sequences, with the states before the target's final norm."""
  given = common()
  return base.DraftBatch(
    tokens=jnp.asarray(given['input_ids']),
    positions=jnp.asarray(positions),
    segments=jnp.asarray(segments, jnp.int32),
    is_answer=jnp.asarray(given['loss_mask'] > 0.5),
    taps=jnp.asarray(given['target_hidden_layers']),
    last=base.LastHidden(
      jnp.asarray(given['last_hidden_prenorm']), is_normed=False
    ),
  )


def blocks(prefix: str = '') -> anchors.Anchors:
  """The shared anchors; `prefix` 'packed_' for those of packed rows."""
  given = common()
  return anchors.Anchors(
    jnp.asarray(given[prefix + 'anchors']),
    jnp.asarray(given[prefix + 'keep_mask']),
  )


@jax.jit
def train(drafter, batch, at):
  """States, loss and metrics at given anchors."""
  return drafter.train_hidden(batch, at), *drafter.loss_at(batch, at)


@jax.jit
def decode(drafter, taps, tokens, anchor):
  """Commits `taps` call by call, runs a block behind each.

  Returns:
    All slots after the final norm, for every call; and the draft of the last.
  """
  table = paged.contiguous_table(2, 4)
  state = drafter.init_state(table, 8, 4)
  hidden = []
  for taps_of_call, anchor_of_call in zip(taps, anchor, strict=True):
    num_rows = jnp.full((2,), taps_of_call.shape[1], jnp.int32)
    rows = base.Committed(
      tokens[:, : taps_of_call.shape[1]], taps_of_call, num_rows, anchor_of_call
    )
    state = drafter.commit(state, table, rows)
    table = paged.advance(table, num_rows, jnp.zeros((), bool))
    x = drafter.block.score(drafter.slots(anchor_of_call), state, table)
    x = layers.rms_norm(x, drafter.final_norm[...], drafter.config.norm_eps)
    hidden.append(x)
  return hidden, drafter.propose(state, table, anchor[-1], None, None)
