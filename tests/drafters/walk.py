# SPDX-License-Identifier: MIT
"""Laws of a block's slots, with the tokens before them forced."""

import jax.numpy as jnp

from jspec.trees import expansion


def laws(source, tokens, count):
  """Candidates [B, Q] behind the anchor and behind each of `tokens` [B, n].

  `source` is made for that anchor (`block_steps.build`).
  """
  found, state = [source.root(count)], source.start(1, tokens.shape[1])
  for level in range(tokens.shape[1]):
    nothing = jnp.zeros((tokens.shape[0], 1), jnp.int32)
    beam = expansion.Beam(
      tokens=tokens[:, level : level + 1],
      parents=nothing,
      ancestors=nothing[..., None].astype(jnp.uint32),
      is_live=nothing == 0,
      level=jnp.int32(level),
    )
    state, behind = source.step(state, beam, count)
    found.append(type(behind)(*(x[:, 0] for x in behind)))
  return found
