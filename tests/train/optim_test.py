# SPDX-License-Identifier: MIT
"""What the defaults do stays what it was, bit for bit."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jspec.train import optim

PARAMS = {
  'layers.attn_norm': jnp.ones((2, 4)),
  'layers.kv': jnp.linspace(-1, 1, 32).reshape(2, 4, 4),
  'fusion.mix': jnp.ones((2, 2)),
  'fusion.gate': jnp.ones((4,)),
  'experts.router': jnp.ones((4, 3)),
  'token_head.mix_bias': jnp.ones((2, 4)),
}


def plain(learning_rate, warmup_steps, num_steps):
  """AdamW with a cosine, as trained runs have it."""
  return optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(
      optax.warmup_cosine_decay_schedule(
        learning_rate / warmup_steps,
        learning_rate,
        warmup_steps,
        num_steps,
        0.1 * learning_rate,
      ),
      b1=0.9,
      b2=0.95,
      weight_decay=0.01,
      mask=lambda params: {
        name: name == 'layers.kv' for name, _ in params.items()
      },
    ),
  )


def trained(transform, num_steps):
  """Parameters and state after steps whose gradient is the parameters' sine."""
  update = jax.jit(
    lambda params, state: transform.update(
      jax.tree.map(jnp.sin, params), state, params
    )
  )
  params, state = PARAMS, transform.init(PARAMS)
  for _ in range(num_steps):
    moves, state = update(params, state)
    params = optax.apply_updates(params, moves)
  return params, state


def names(tree):
  return [
    jax.tree_util.keystr(path, simple=True, separator='.')
    for path, _ in jax.tree_util.tree_leaves_with_path(tree)
  ]


def test_defaults_are_what_earlier_runs_were_trained_with():
  ours = trained(optim.optimizer(optim.OptimConfig(warmup_steps=3), 12), 12)
  theirs = trained(plain(6e-4, 3, 12), 12)
  # Names too: by them a checkpoint is read.
  assert names(ours) == names(theirs)
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize('name', optim.NAMES)
def test_gates_norms_and_biases_do_not_decay(name):
  config = optim.OptimConfig(
    name=name, warmup_steps=0, schedule='constant', weight_decay=0.5
  )
  transform = optim.optimizer(config, 4)
  zeros = jax.tree.map(jnp.zeros_like, PARAMS)
  moves, _ = jax.jit(transform.update)(zeros, transform.init(PARAMS), PARAMS)
  moved = {name for name, value in moves.items() if np.any(value)}
  assert moved == {'layers.kv'}
  assert re.search(config.no_decay, 'layers.kv') is None
