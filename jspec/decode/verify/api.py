# SPDX-License-Identifier: MIT
"""Keeps what verification allows of a round's drafts: the rules by name.

  rule       drafts                 promise             module
  walk       function of the prefix plain's own tokens  walk (R1)
  token      sampled chain          plain's law         chain (R2)
  block      sampled chain          plain's law         block
  recursive  sampled tree           plain's law         recursive
  traversal  sampled tree           plain's law         traversal

`block` keeps at least as many drafts as `token` on average, `traversal` nearly
always more than `recursive`; on a chain they are equal, pair by pair. Sampled
drafts must not anticipate: whether and where a node hangs in the tree may
depend on the committed prefix and on tokens drawn before, not on its own.

All take greedy and sampled rows in one call: a row of temperature 0 keeps the
longest match with the argmax under every rule. p is the law the request asked
for (temperature and filters, as `sampling.law`), q the law the drafter drew
from as it says, never filtered again.
"""

import jax
import numpy as np

from jspec import errors, tree
from jspec import packing as packing_lib
from jspec.decode import sampling
from jspec.decode.verify import (
  accepted,
  block,
  chain,
  recursive,
  traversal,
  walk,
)
from jspec.typing import Array, Float, Int

WALK, TOKEN, BLOCK = 'walk', 'token', 'block'
RECURSIVE, TRAVERSAL = 'recursive', 'traversal'
RULES = {
  WALK: walk.accept,
  TOKEN: chain.accept,
  BLOCK: block.accept,
  RECURSIVE: recursive.accept,
  TRAVERSAL: traversal.accept,
}
CHAIN_RULES = (TOKEN, BLOCK)
DRAWS = ('independent', 'without_replacement')


def accept(
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  anchor_positions: Int[Array, 'B'],
  rule: str = 'auto',
) -> accepted.Accepted:
  """Keeps a path of each draft and adds the token behind it.

  Args:
    logits: the target's, row j for the token after node j.
    draft: trees; `num_nodes` says where each ends. Under `token` and `block` a
      row ends before the first node whose parent is not the one before it.
    params: sampling parameters of the rows.
    anchor_positions: absolute position of each anchor, from which the round's
      random numbers derive.
    rule: a name of `RULES`, or 'auto': `walk` without q, `token` with it.

  Raises:
    errors.UserError: the rule is unknown or not for this draft (`check`).
    ValueError: the shapes of logits and draft do not fit.
  """
  rule = check(
    rule,
    draws=None if draft.q is None else draft.q.draws,
    is_chain=_is_chain(draft.parents),
  )
  _check_shapes(logits, draft)
  return RULES[rule](logits, draft, params, anchor_positions)


def accept_packed(
  logits: Float[Array, 'Q V'],
  packing: packing_lib.Packing,
  draft: tree.Draft,
  params: sampling.Sampling,
  anchor_positions: Int[Array, 'B'],
  rule: str = 'auto',
) -> accepted.Accepted:
  """`accept` on nodes that share one axis.

  `walk` looks at the nodes it visits where they are; the rules for sampled
  drafts compare whole laws and get their logits row by row.
  """
  rule = check(
    rule,
    draws=None if draft.q is None else draft.q.draws,
    is_chain=_is_chain(draft.parents),
  )
  if rule == WALK:
    return walk.accept_packed(logits, packing, draft, params, anchor_positions)
  logits = packing.to_rows(logits)
  _check_shapes(logits, draft)
  return RULES[rule](logits, draft, params, anchor_positions)


def check(rule: str, *, draws: str | None, is_chain: bool | None) -> str:
  """The rule that `rule` stands for, for drafts of this form.

  Args:
    rule: as for `accept`.
    draws: how siblings are drawn (`tree.SparseLaw.draws`); None where drafts
      are a function of the committed prefix.
    is_chain: whether drafts are chains; None where it is not known yet.

  Raises:
    errors.UserError: the rule is unknown, or would be wrong for such drafts.
  """
  if draws is not None and draws not in DRAWS:
    raise errors.UserError(
      f'draws {draws!r}: siblings are drawn {" or ".join(DRAWS)}'
    )
  if rule == 'auto':
    rule = WALK if draws is None else TOKEN
  if rule not in RULES:
    raise errors.UserError(
      f'verification rule {rule!r}: give auto, {", ".join(RULES)}'
    )
  if rule == WALK and draws is not None:
    raise errors.UserError(
      'verification rule walk is for drafts that are a function of the'
      f' committed prefix, these are sampled: give {_others(WALK)}'
    )
  if rule != WALK and draws is None:
    raise errors.UserError(
      f'verification rule {rule} needs the law drafts were sampled from, and'
      ' these have none: sample the drafts or give walk'
    )
  if rule in CHAIN_RULES and is_chain is False:
    raise errors.UserError(
      f'verification rule {rule} is for chains and these drafts are trees:'
      f' give {_others(WALK, *CHAIN_RULES)}'
    )
  return rule


def _others(*names):
  return ', '.join(rule for rule in RULES if rule not in names)


def _is_chain(parents):
  """Whether every row is a chain; None while the parents are being traced."""
  if isinstance(parents, jax.core.Tracer):
    return None
  chains = np.arange(parents.shape[1]) - 1
  return bool(np.all(np.asarray(parents) == chains))


def _check_shapes(logits, draft):
  shape = draft.tokens.shape
  named = {
    'logits': logits.shape[:2],
    'draft.parents': draft.parents.shape,
    'draft.q.ids': shape if draft.q is None else draft.q.ids.shape[:2],
    'draft.q.probs': shape if draft.q is None else draft.q.probs.shape[:2],
  }
  for name, found in named.items():
    if found != shape:
      raise ValueError(
        f'{name} has {found} rows and nodes, draft.tokens has {shape}: score'
        ' every node of the draft, and no more'
      )
