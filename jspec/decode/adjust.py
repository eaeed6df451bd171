# SPDX-License-Identifier: MIT
"""Logit options, at every node of a draft with that node's own history.

The logits of a node decide the token behind it, so its history is what the row
has committed and the drafts from the anchor down to the node, itself included:

  committed .. a        node    history
  a - b - c             a (0)   .. a
     `- d               c (2)   .. a b c
                        d (3)   .. a d

The anchor a is committed and already counted (`history.py`); a path begins
behind it. Every rule of verification then sees, position by position, the
logits that plain decoding with the same options would see there.

The order is bias, repetition, frequency and presence, stop ids, bad words, all
before temperature and filters. vLLM (`v1/sample/sampler.py`) and Hugging Face
(`_get_logits_processor`) mask before they penalise; -inf stays -inf under any
penalty or bias, so only bias before repetition matters, and there they agree.
Bad words look at the output alone, as in vLLM.

The vocabulary is gone over once with the committed counts of the row. The few
tokens on a node's path are then computed again from the logits before
penalties and put in their place, so no count is ever kept node by node. What no
row asks for is skipped, and a row that asks for nothing keeps its logits bit by
bit. All arithmetic is float32.
"""

import jax.numpy as jnp
from jax import lax

from jspec.decode import history as history_lib
from jspec.decode import options as options_lib
from jspec.typing import Array, Float, Int


def adjust(
  logits: Float[Array, 'B T V'],
  tokens: Int[Array, 'B T'],
  parents: Int[Array, 'B T'],
  options: options_lib.Options,
  history: history_lib.History,
  stop_ids: Int[Array, 'B X'],
  *,
  max_depth: int | None = None,
) -> Float[Array, 'B T V']:
  """Applies the options of every row to the logits of its nodes.

  Args:
    logits: the target's, row t for the token behind node t.
    tokens: node 0 is the anchor.
    parents: as in `tree.Draft`.
    options: what the rows ask for.
    history: what they have committed, the anchor included.
    stop_ids: tokens that end a row, padded with -1.
    max_depth: no node is deeper; None means T - 1. A smaller bound saves time
      where the tree is wide; history further up than that is lost.

  Returns:
    Float32 logits; exactly `logits` where nothing is asked.
  """
  rows, num_nodes, vocab = logits.shape
  path = path_tokens(tokens, parents, max_depth=max_depth)
  row_of = jnp.repeat(jnp.arange(rows, dtype=jnp.int32), num_nodes)
  adjusted = adjust_packed(
    logits.reshape(rows * num_nodes, vocab),
    path.reshape(rows * num_nodes, path.shape[2]),
    row_of,
    options,
    history,
    stop_ids,
  )
  return adjusted.reshape(rows, num_nodes, vocab)


def path_tokens(
  tokens: Int[Array, 'B T'],
  parents: Int[Array, 'B T'],
  *,
  max_depth: int | None = None,
) -> Int[Array, 'B T depth']:
  """The drafts from every node up to the anchor, which is left out.

  Nearest first, the node's own token leading, then -1: node c of a - b - c has
  c b -1 .., the anchor nothing but -1.
  """
  rows, num_nodes = tokens.shape
  num_steps = num_nodes - 1 if max_depth is None else max_depth
  nodes = jnp.arange(num_nodes, dtype=jnp.int32)

  def climb(node, _):
    is_draft = node > 0
    at = jnp.maximum(node, 0)
    token = jnp.where(is_draft, jnp.take_along_axis(tokens, at, axis=1), -1)
    up = jnp.where(is_draft, jnp.take_along_axis(parents, at, axis=1), -1)
    return up, token

  start = jnp.broadcast_to(nodes, (rows, num_nodes)).astype(parents.dtype)
  _, path = lax.scan(climb, start, None, length=num_steps)
  return jnp.moveaxis(path, 0, 2)


def adjust_packed(
  logits: Float[Array, 'nodes V'],
  path: Int[Array, 'nodes depth'],
  row_of: Int[Array, 'nodes'],
  options: options_lib.Options,
  history: history_lib.History,
  stop_ids: Int[Array, 'B X'],
) -> Float[Array, 'nodes V']:
  """`adjust` on nodes of any rows in any order.

  Args:
    logits: the target's, for the token behind each node.
    path: `path_tokens` of the node: of the kept nodes of a draft
      `path_tokens(..)[row_of, node_of]`; from ancestors, tokens[ancestors].
    row_of: the row each node belongs to; of padding, any row.
    options: as for `adjust`, row by row.
    history: likewise.
    stop_ids: likewise.
  """
  steps = (
    (
      jnp.any(options.bias_values != 0),
      lambda z: _add_bias(z, row_of, options),
    ),
    (
      jnp.any(
        (options.repetition != 1)
        | (options.presence != 0)
        | (options.frequency != 0)
      ),
      lambda z: _penalise(z, path, row_of, options, history),
    ),
    (
      jnp.any(history.num_output < options.min_tokens),
      lambda z: _hold_stops(z, path, row_of, options, history, stop_ids),
    ),
    (
      jnp.any(options.bad_last >= 0),
      lambda z: _ban(z, path, row_of, options, history),
    ),
  )

  def apply(z):
    for is_asked, step in steps:
      z = lax.cond(is_asked, step, lambda z: z, z)
    return z

  # One test for all, so that asking for nothing passes one branch.
  is_any = jnp.any(jnp.stack([is_asked for is_asked, _ in steps]))
  return lax.cond(is_any, apply, lambda z: z, logits.astype(jnp.float32))


def _add_bias(z, row_of, options):
  """Spreads each row's few values over the vocabulary once, not per node."""
  rows, vocab = options.bias_ids.shape[0], z.shape[1]
  ids = jnp.where(options.bias_ids >= 0, options.bias_ids, vocab)
  bias = jnp.zeros((rows, vocab), jnp.float32)
  bias = bias.at[jnp.arange(rows)[:, None], ids].set(
    options.bias_values, mode='drop'
  )
  value = bias[row_of]
  # Adding 0 would make 0 of -0.
  return jnp.where(value != 0, z + value, z)


def _penalise(z, path, row_of, options, history):
  repetition = options.repetition[row_of][:, None]
  inverse = options.repetition_inverse[row_of][:, None]
  presence = options.presence[row_of][:, None]
  frequency = options.frequency[row_of][:, None]

  def penalised(z, is_seen, count):
    scaled = _rounded(z * jnp.where(z > 0, inverse, repetition), count)
    charge = _rounded(frequency * count, count) + presence
    # Times 1 or less 0 keeps a number but not its every bit.
    z = jnp.where(is_seen & (repetition != 1), scaled, z)
    return jnp.where((count > 0) & (charge != 0), z - charge, z)

  count = history.output_counts[row_of]
  is_seen = history.prompt_seen[row_of] | (count > 0)
  result = penalised(z, is_seen, count)
  if path.shape[1] == 0:
    return result

  ids = jnp.maximum(path, 0)
  on_path = jnp.sum(
    path[:, :, None] == path[:, None, :], axis=-1, dtype=jnp.int32
  )
  count = history.output_counts[row_of[:, None], ids] + on_path
  again = penalised(jnp.take_along_axis(z, ids, axis=1), path >= 0, count)
  # A token that is twice on the path is written twice, with one value.
  return _set(result, path, again)


def _rounded(product, count):
  """A product in float32, rounded before it is added to anything.

  Compilers may fuse it with the sum or not, program by program, and a token
  must not depend on whether its node was one of many. They cannot look through
  the bits, and do not know that counts are never negative.
  """
  bits = lax.bitcast_convert_type(product, jnp.int32) ^ (count >> 31)
  return lax.bitcast_convert_type(bits, jnp.float32)


def _hold_stops(z, path, row_of, options, history, stop_ids):
  """Behind n output tokens the next is number n + 1: held while n < min."""
  num_output = history.num_output[row_of] + _depth(path)
  is_early = num_output < options.min_tokens[row_of]
  held = jnp.where(is_early[:, None], stop_ids[row_of], -1)
  return _set(z, held, -jnp.inf)


def _ban(z, path, row_of, options, history):
  """Makes the last token of a bad word impossible behind the others."""
  length = options.bad_prefixes.shape[2]
  age = jnp.arange(length, dtype=jnp.int32)  # 0: the token just before
  depth = _depth(path)[:, None]
  padded = jnp.pad(path, ((0, 0), (0, length)), constant_values=-1)
  newest_first = history.recent[row_of][:, ::-1]
  committed = jnp.take_along_axis(
    newest_first, jnp.maximum(age - depth, 0), axis=1
  )
  before = jnp.where(age < depth, padded[:, :length], committed)
  prefixes = options.bad_prefixes[row_of]
  is_match = (prefixes < 0) | (prefixes == before[:, None, :])
  is_hit = jnp.all(is_match, axis=-1)
  return _set(z, jnp.where(is_hit, options.bad_last[row_of], -1), -jnp.inf)


def _depth(path):
  return jnp.sum(path >= 0, axis=1, dtype=jnp.int32)


def _set(z, ids, values):
  """Writes at `ids` of each node; -1, which would be the last id, nowhere."""
  nodes = jnp.arange(z.shape[0], dtype=jnp.int32)[:, None]
  ids = jnp.where(ids >= 0, ids, z.shape[1])
  return z.at[nodes, ids].set(values, mode='drop')
